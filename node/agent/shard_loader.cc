#include "node/agent/shard_loader.h"

#include <unistd.h>

#include <cstdio>

#include "common/hub/file_names.h"
#include "node/agent/about_size.h"
#include "node/agent/memory_parts.h"
#include "node/agent/progress_line.h"

namespace mesh {
namespace {

constexpr Duration kLineEvery = std::chrono::seconds(10);
constexpr Duration kTerminalEvery = std::chrono::milliseconds(250);

}  // namespace

Status load_layers(Node& node, const std::shared_ptr<hub::Checkpoint>& checkpoint,
                   const ModelIdentity& identity, const LayerRange& layers, std::uint32_t layer_count,
                   engine::Quantization quantization, const log::Logger& log, HostShare& share,
                   const std::atomic<bool>& cancelled) {
  MESH_ASSIGN_OR_RETURN(const std::string config, checkpoint->files().read_small(hub::kConfig));
  MESH_ASSIGN_OR_RETURN(const engine::ModelProfile profile, engine::read_model_profile(config));
  if (layer_count != 0 && profile.layer_count() != layer_count) {
    return error(StatusCode::kFailedPrecondition, "{} has {} layers, the catalogue says {}",
                 checkpoint->files().describe(), profile.layer_count(), layer_count);
  }
  if (layers.empty() || layers.end > profile.layer_count()) {
    return error(StatusCode::kOutOfRange, "layers {} are empty or outside {}, which has layers [0, {})",
                 to_string(layers), checkpoint->files().describe(), profile.layer_count());
  }
  const engine::ShardSpec spec = engine::shard_of(profile, layers, quantization);
  MESH_ASSIGN_OR_RETURN(const engine::ShardNeeds needs,
                        node.engine().shard_needs(*checkpoint, identity, spec));
  log.info("layers {} of {} need {} of memory", to_string(layers), checkpoint->files().describe(),
           about_size(needs.total()));

  const engine::MemoryUse used = node.engine().memory();
  MESH_RETURN_IF_ERROR(
      share.reserve(used.weight_bytes + used.cache_bytes + used.working_bytes + needs.total()));

  const SteadyClock clock;
  const TimePoint began = clock.now();
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  ProgressLine line("layers " + to_string(layers), terminal ? kTerminalEvery : kLineEvery, began);
  bool drawn = false;
  const auto progress = [&](const engine::LoadProgress& so_far) {
    const auto text = line.note(so_far.fetching ? "fetching" : "loading", so_far.bytes_done,
                                so_far.bytes_total, clock.now());
    if (text && terminal) {
      std::fprintf(stderr, "\r\033[K%s", text->c_str());
      drawn = true;
    } else if (text) {
      log.info("{}", *text);
    }
    return !cancelled.load();
  };
  const Status loaded = node.load_shard(checkpoint, identity, spec, progress);
  if (drawn) std::fprintf(stderr, "\r\033[K");
  MESH_RETURN_IF_ERROR(loaded);
  log.info("layers {} are ready after {:.1f} s", to_string(layers),
           std::chrono::duration<double>(clock.now() - began).count());
  log.info("{}", to_string(memory_parts(node.engine().memory(), share.memory())));
  return absl::OkStatus();
}

}  // namespace mesh
