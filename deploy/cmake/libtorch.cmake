# LibTorch from the torch wheel, as imported targets written by hand: the wheel's own find_package insists on a whole
# CUDA toolkit. The programs link none of it (docs/decisions/005): the CUDA part does and is opened at run time.
file(GLOB torch_home LIST_DIRECTORIES true "${MESH_DEPS}/venv/lib/python3*/site-packages/torch")
if(NOT torch_home)
  message(FATAL_ERROR "LibTorch is not under ${MESH_DEPS}/venv: run deploy/setup first")
endif()
cmake_path(GET torch_home PARENT_PATH site_packages)
set(MESH_CUDA_HOME "${site_packages}/nvidia/cu13")

foreach(lib c10 torch_cpu)
  add_library(torch::${lib} SHARED IMPORTED)
  set_target_properties(torch::${lib} PROPERTIES IMPORTED_LOCATION "${torch_home}/lib/lib${lib}.so")
  target_include_directories(torch::${lib} SYSTEM INTERFACE "${torch_home}/include")
  target_compile_definitions(torch::${lib} INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
endforeach()
target_link_libraries(torch::torch_cpu INTERFACE torch::c10)
add_library(mesh_torch INTERFACE)
target_link_libraries(mesh_torch INTERFACE torch::torch_cpu torch::c10)
# libtorch_cpu itself needs libcudart and libcupti, from their own wheels.
target_link_options(mesh_torch INTERFACE "-Wl,-rpath-link,${MESH_CUDA_HOME}/lib" "-Wl,--allow-shlib-undefined")
if(NOT MESH_PORTABLE)
  target_link_options(mesh_torch INTERFACE "-Wl,-rpath,${torch_home}/lib" "-Wl,-rpath,${MESH_CUDA_HOME}/lib")
endif()
