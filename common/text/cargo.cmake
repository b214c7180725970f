# The crate rust/ as an imported static library. All presets share one build of it, under ${MESH_DEPS}/cargo-target.
set(MESH_CARGO "$ENV{MESH_CARGO}" CACHE FILEPATH "cargo 1.85 or newer")
if(NOT MESH_CARGO)
  # Ubuntu has newer ones beside its own, by version; Debian 12 has cargo-web, which installs as cargo.
  find_program(MESH_CARGO_FOUND NAMES cargo-1.89 cargo HINTS "$ENV{HOME}/.cargo/bin" REQUIRED)
  set(MESH_CARGO "${MESH_CARGO_FOUND}" CACHE FILEPATH "cargo 1.85 or newer" FORCE)
endif()

set(crate "${CMAKE_CURRENT_SOURCE_DIR}/rust")
set(text_lib "${MESH_DEPS}/cargo-target/release/libmesh_text.a")
file(GLOB_RECURSE crate_sources CONFIGURE_DEPENDS "${crate}/src/*.rs")
add_custom_command(
  OUTPUT "${text_lib}"
  COMMAND "${MESH_CARGO}" build --release --locked --quiet --manifest-path "${crate}/Cargo.toml"
          --target-dir "${MESH_DEPS}/cargo-target"
  # cargo leaves the file's time alone when nothing changed.
  COMMAND "${CMAKE_COMMAND}" -E touch "${text_lib}"
  DEPENDS "${crate}/Cargo.toml" "${crate}/Cargo.lock" ${crate_sources}
  COMMENT "cargo build mesh-text"
  USES_TERMINAL VERBATIM)
add_custom_target(mesh_text_cargo DEPENDS "${text_lib}")

add_library(mesh_text_rust STATIC IMPORTED GLOBAL)
set_target_properties(mesh_text_rust PROPERTIES IMPORTED_LOCATION "${text_lib}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;dl;m")
add_dependencies(mesh_text_rust mesh_text_cargo)
