#pragma once

#include <optional>

namespace mesh::tools {

/// `meshnet-node bench …` and `meshnet-node compare …`: runs the command that the first argument names and
/// returns the exit code. Nothing when it names none.
std::optional<int> run_command(int argc, const char* const* argv);

}  // namespace mesh::tools
