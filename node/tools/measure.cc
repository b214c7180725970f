#include "node/tools/measure.h"

#include <algorithm>
#include <chrono>

#include "node/tools/session_group.h"

namespace mesh::tools {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StatusOr<double> prefill_seconds(engine::Engine& engine, const std::shared_ptr<const engine::Shard>& shard,
                                 const std::vector<LayerRange>& ranges, const Workload& work) {
  MESH_ASSIGN_OR_RETURN(const auto one, SessionGroup::open(engine, shard, ranges, 1, work.prompt));
  const double start = now();
  MESH_RETURN_IF_ERROR(one->prefill(work.prompt, work.chunk));
  return now() - start;
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Cost cost_of(const engine::ModelProfile& profile, const LayerRange& range, bool head,
             engine::ComputeType compute, engine::Quantization quantization) {
  const engine::WeightFormat computed = compute == engine::ComputeType::kFloat32
                                            ? engine::WeightFormat::kFloat32
                                            : engine::WeightFormat::kBfloat16;
  const engine::WeightFormat format = profile.matrix_format(computed, quantization);
  Cost cost;
  cost.kv_bytes = static_cast<double>(profile.kv_bytes_per_token(range, computed));
  for (std::uint32_t i = range.begin; i < range.end; ++i) {
    cost.layer_values += static_cast<double>(profile.layers[i].matrix_values);
    cost.weight_bytes += static_cast<double>(profile.layers[i].matrix_bytes(format));
  }
  if (head) cost.weight_bytes += static_cast<double>(profile.head.matrix_bytes(format));
  return cost;
}

StatusOr<Measured> measure(engine::Engine& engine, const std::shared_ptr<const engine::Shard>& shard,
                           const std::vector<LayerRange>& ranges, const Workload& work,
                           const std::function<void()>& between) {
  MESH_ASSIGN_OR_RETURN(const auto group, SessionGroup::open(engine, shard, ranges, work.sessions,
                                                             work.context + work.decoded + 1));
  MESH_RETURN_IF_ERROR(group->prefill(work.context, work.chunk));
  MESH_RETURN_IF_ERROR(group->decode());  // a device may prepare at the first step of a kind
  std::vector<double> prefills, steps;
  for (int round = 0; round < work.rounds; ++round) {
    if (between) between();
    if (work.prefill) {
      MESH_ASSIGN_OR_RETURN(const double seconds, prefill_seconds(engine, shard, ranges, work));
      prefills.push_back(seconds);
    }
    group->back_to(work.context);
    for (Position step = 0; step < work.decoded; ++step) {
      const double start = now();
      MESH_RETURN_IF_ERROR(group->decode());
      steps.push_back(now() - start);
    }
  }
  return Measured{.prefill_seconds = prefills.empty() ? 0 : median(prefills),
                  .decode_seconds = median(steps),
                  .mean_context = work.context + 0.5 * work.decoded};
}

}  // namespace mesh::tools
