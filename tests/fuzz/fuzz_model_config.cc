// config.json of any model, its quantization_config too: what is accepted has a profile that adds up.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "node/engine/models/decoder_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::engine;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec = read_decoder_spec(text);
  if (!spec.ok()) return 0;
  const ModelProfile& profile = spec->profile;
  MESH_CHECK(profile.layer_count() > 0 && profile.allows({0, profile.layer_count()}));
  MESH_CHECK(spec->layer_plans.size() == profile.layer_count());
  const mesh::LayerRange all{0, profile.layer_count()};
  for (const Quantization asked :
       {Quantization::kNone, Quantization::kInt8, Quantization::kNf4, Quantization::kFp8}) {
    const auto quantization = profile.quantization(asked);
    if (!quantization.ok()) continue;
    const WeightFormat format = profile.matrix_format(WeightFormat::kBfloat16, *quantization);
    MESH_CHECK(profile.weight_bytes(all, true, true, format) >
               profile.weight_bytes(all, false, false, format));
  }
  for (const LayerPlan& plan : spec->layer_plans) {
    // Names of the input's own are compared with these.
    for (const MatrixPlan* matrix : {&plan.qkv, &plan.mlp_out}) (void)spec->keeps(matrix->weights[0]);
  }
  return 0;
}
