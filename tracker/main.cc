#include <cstdio>

#include "common/base/version.h"
#include "common/host/open_files.h"
#include "node/signals.h"
#include "node/versions.h"
#include "tracker/program.h"
#include "tracker/settings.h"

int main(int argc, char** argv) {
  using mesh::config::Settings;
  mesh::block_signals();
  mesh::raise_open_files();
  mesh::tracker::TrackerSettings values;
  Settings settings(
      "tracker", "Answers prompts with models whose layers run on the nodes of a mesh.",
      mesh::version_text("meshnet-tracker", mesh::wire_versions_text(), mesh::cuda_part_text()));
  mesh::tracker::declare_tracker_settings(settings, values);
  const auto outcome = settings.load(mesh::config::Sources::of_process(argc, argv, "tracker"));
  if (outcome.exit_code) {
    std::fputs(outcome.output.c_str(), *outcome.exit_code == mesh::config::kExitDone ? stdout : stderr);
    return *outcome.exit_code;
  }
  if (const mesh::Status complete = mesh::tracker::complete_tracker_settings(values); !complete.ok()) {
    std::fprintf(stderr, "meshnet-tracker: %s\n", std::string(mesh::message_of(complete)).c_str());
    return mesh::config::kExitUsage;
  }
  mesh::log::Options log_options;
  log_options.level = *mesh::log::parse_level(values.log_level);
  log_options.format = *mesh::log::parse_format(values.log_format);
  return mesh::tracker::run_tracker(values, mesh::log::Logger(log_options));
}
