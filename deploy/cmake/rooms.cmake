# One static library per room, named mesh_<room>; its tests are one program, <room>_test, made of the *_test.cc beside the code.
function(mesh_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(mesh_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(mesh_${name} PUBLIC mesh_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  mesh_use_precompiled(mesh_${name} mesh_room_headers)
endfunction()

add_custom_target(unit_tests COMMENT "every <room>_test")
# ARITHMETIC: nearly all of it is kernels; left out under the thread sanitizer, which would take a quarter of an hour for it.
function(mesh_test name)
  cmake_parse_arguments(ARG "ARITHMETIC" "" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT MESH_TESTS OR (ARG_ARITHMETIC AND MESH_SANITIZE MATCHES thread))
    return()
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE mesh_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  mesh_use_precompiled(${name}_test mesh_test_headers)
  target_compile_options(${name}_test PRIVATE -O0)  # the code under test is optimised, its tests compile fast
  target_compile_definitions(${name}_test PRIVATE MESH_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_dependencies(unit_tests ${name}_test)
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES LABELS "unit;${ARG_LABELS}")
endfunction()
