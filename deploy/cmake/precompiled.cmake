# What every room's translation units include, parsed once: the standard library, status, format, JSON; for tests gtest
# too. Most of a unit's compile time is these headers. Reuse needs the very same flags, so all code is -fPIC and each
# room sees the definitions of these libraries. Clang's builds go without, which keeps each file's own includes honest.
option(MESH_PRECOMPILE "Precompile the headers that all rooms include" ON)

add_library(mesh_vocabulary INTERFACE)
target_link_libraries(mesh_vocabulary INTERFACE absl::status absl::statusor fmt::fmt Boost::json Threads::Threads)

set(mesh_vocabulary_headers <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <deque> <filesystem> <fstream>
  <functional> <map> <memory> <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <utility> <variant>
  <vector> <absl/status/status.h> <absl/status/statusor.h> <boost/json/value.hpp> <fmt/format.h>)

function(mesh_precompiled name)
  if(MESH_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/${name}.cc" CONTENT "")
    add_library(${name} OBJECT "${CMAKE_BINARY_DIR}/generated/${name}.cc")
    cmake_parse_arguments(ARG "" "" "DEPS;HEADERS" ${ARGN})
    target_link_libraries(${name} PRIVATE mesh_options mesh_vocabulary ${ARG_DEPS})
    target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()
mesh_precompiled(mesh_room_headers HEADERS ${mesh_vocabulary_headers})
if(MESH_TESTS)
  mesh_precompiled(mesh_test_headers DEPS GTest::gmock GTest::gtest HEADERS ${mesh_vocabulary_headers} <gmock/gmock.h> <gtest/gtest.h>)
  if(TARGET mesh_test_headers)
    target_compile_options(mesh_test_headers PRIVATE -O0)  # as mesh_test does
  endif()
endif()

# mesh_use_precompiled(TARGET mesh_room_headers|mesh_test_headers)
function(mesh_use_precompiled target headers)
  target_link_libraries(${target} PUBLIC mesh_vocabulary)
  if(TARGET ${headers})
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()
