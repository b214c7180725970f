#include <cstdio>

#include "common/base/version.h"
#include "node/program.h"
#include "node/settings.h"
#include "node/signals.h"
#include "node/versions.h"

int main(int argc, char** argv) {
  using mesh::config::Settings;
  mesh::block_signals();
  mesh::NodeSettings values;
  Settings settings("node", "Gives this machine's layers of large language models to a mesh.",
                    mesh::version_text("meshnet-node", mesh::wire_versions_text(), mesh::cuda_part_text()));
  mesh::declare_node_settings(settings, values);
  const auto outcome = settings.load(mesh::config::Sources::of_process(argc, argv, "node"));
  if (outcome.exit_code) {
    std::fputs(outcome.output.c_str(), *outcome.exit_code == mesh::config::kExitDone ? stdout : stderr);
    return *outcome.exit_code;
  }
  if (const mesh::Status complete = mesh::complete_node_settings(values); !complete.ok()) {
    std::fprintf(stderr, "meshnet-node: %s\n", std::string(mesh::message_of(complete)).c_str());
    return mesh::config::kExitUsage;
  }
  mesh::log::Options log_options;
  log_options.level = *mesh::log::parse_level(values.log_level);
  log_options.format = *mesh::log::parse_format(values.log_format);
  return mesh::run_node(values, mesh::log::Logger(log_options));
}
