#include "node/start.h"

#include <cstdio>

#include "common/base/version.h"
#include "common/host/open_files.h"
#include "node/program.h"
#include "node/settings.h"
#include "node/signals.h"
#include "node/tools/commands.h"
#include "node/versions.h"

namespace mesh {

int start_node(int argc, char** argv, FaultPoints* faults) {
  using config::Settings;
  if (const auto exit_code = tools::run_command(argc, argv)) return *exit_code;
  block_signals();
  raise_open_files();
  NodeSettings values;
  Settings settings("node", "Gives this machine's layers of large language models to a mesh.",
                    version_text("meshnet-node", wire_versions_text(), cuda_part_text()));
  declare_node_settings(settings, values);
  const auto outcome = settings.load(config::Sources::of_process(argc, argv, "node"));
  if (outcome.exit_code) {
    std::fputs(outcome.output.c_str(), *outcome.exit_code == config::kExitDone ? stdout : stderr);
    return *outcome.exit_code;
  }
  if (const Status complete = complete_node_settings(values); !complete.ok()) {
    std::fprintf(stderr, "meshnet-node: %s\n", std::string(message_of(complete)).c_str());
    return config::kExitUsage;
  }
  log::Options log_options;
  log_options.level = *log::parse_level(values.log_level);
  log_options.format = *log::parse_format(values.log_format);
  return run_node(values, log::Logger(log_options), faults);
}

}  // namespace mesh
