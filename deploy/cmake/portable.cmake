# Preset portable: an installed folder that runs on another Linux x86-64 machine with this one's glibc or a newer one.
#   bin/  the programs, linked to Debian's archives where it ships them, and the CUDA part
#   lib/  what it ships as shared objects only, and the C++ runtime, of which a process should have one
# LibTorch and CUDA are the other machine's own: its wheels' folders `torch` and `nvidia`, linked beside bin/.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../torch/lib;$ORIGIN/../nvidia/cu13/lib")
# A program's RPATH serves the libraries of its libraries, too; a RUNPATH would not.
add_link_options(-Wl,--disable-new-dtags)

# Debian's abseil has both kinds and names the shared ones. Its archives do not fit into a shared object, and programs and CUDA
# part should have one abseil.
if(NOT MESH_CUDA)
  get_directory_property(imported IMPORTED_TARGETS)
  foreach(target IN LISTS imported)
    get_target_property(location ${target} IMPORTED_LOCATION_NONE)
    string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
    if(target MATCHES "^absl::" AND EXISTS "${archive}")
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE "${archive}")
    endif()
  endforeach()
endif()

# Called after the rooms.
function(mesh_install_portable)
  install(TARGETS meshnet-node meshnet-tracker RUNTIME_DEPENDENCY_SET carried RUNTIME DESTINATION bin)
  if(TARGET mesh_cuda)
    install(TARGETS mesh_cuda RUNTIME_DEPENDENCY_SET carried LIBRARY DESTINATION bin)
  endif()
  if(TARGET engine_bench)
    install(TARGETS engine_bench RUNTIME DESTINATION bin OPTIONAL)
  endif()
  install(RUNTIME_DEPENDENCY_SET carried PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|resolv)\\.so" "^ld-linux"
      "^lib(torch|c10|cud|nv)"
    LIBRARY DESTINATION lib)
  install(FILES LICENSE DESTINATION .)
endfunction()
