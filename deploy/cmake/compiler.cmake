# Language level, warnings, sanitizers, ccache and linker, for every target of ours.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-fPIC)  # programs too: one precompiled header serves rooms and programs
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

find_program(MESH_CCACHE ccache)
if(MESH_CCACHE)
  # Build folders of one checkout share their objects: hash_dir off; the sloppiness lets precompiled headers hit.
  set(mesh_launcher "${CMAKE_COMMAND}" -E env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros "${MESH_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER ${mesh_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${mesh_launcher})
endif()
find_program(MESH_MOLD mold)
if(MESH_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

add_library(mesh_options INTERFACE)
target_compile_options(mesh_options INTERFACE -Wall -Wextra -Wpedantic $<$<BOOL:${MESH_WERROR}>:-Werror>
  # What the GCC 12 optimiser sees in moves of std::variant and std::optional that hold none, and in std::string.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-error=maybe-uninitialized;-Wno-error=array-bounds;-Wno-error=stringop-overflow;-Wno-error=restrict>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(mesh_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
target_include_directories(mesh_options INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/generated")
if(MESH_SANITIZE)
  add_compile_options(-fsanitize=${MESH_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MESH_SANITIZE})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # The packaged abseil was built by g++, whose names for constrained templates clang 18 and newer no longer use.
  add_compile_options(-fclang-abi-compat=17)
endif()
if(MESH_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of the parsers, not of the targets alone
endif()
