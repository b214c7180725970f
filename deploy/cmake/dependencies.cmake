# Third-party libraries as imported targets. docs/dependencies.md says why each is here.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(OpenSSL REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
if(MESH_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

# cpp-httplib: header-only. Only common/net includes it.
add_library(httplib INTERFACE)
target_include_directories(httplib SYSTEM INTERFACE "${MESH_DEPS}/httplib")
target_compile_definitions(httplib INTERFACE CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_USE_POLL
  CPPHTTPLIB_LISTEN_BACKLOG=1024 CPPHTTPLIB_TCP_NODELAY=true)
target_link_libraries(httplib INTERFACE Threads::Threads OpenSSL::SSL OpenSSL::Crypto)

if(MESH_TORCH)
  include(libtorch)
endif()
