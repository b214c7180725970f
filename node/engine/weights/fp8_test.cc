#include "node/engine/weights/fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "node/engine/ops/quantise.h"
#include "node/engine/testing/edited_checkpoint.h"
#include "node/engine/weights/quantised_rows.h"

// FP8 checkpoints (tests/golden/quantised: fp8-block, fp8-channel) as torch means them.
namespace mesh::engine::testing {
namespace {

using ::testing::HasSubstr;

std::string folder_of(const std::string& name) {
  return std::string(MESH_SOURCE_DIR) + "/tests/golden/quantised/" + name;
}

/// Keeps the rows that it is given, as floats.
class Rows final : public QuantisedLoader {
 public:
  Rows(std::int64_t out, std::int64_t in) : values(static_cast<std::size_t>(out * in)), in_(in) {}
  Status put(std::int64_t first, const std::uint8_t* codes, const float* scales, std::int64_t rows) override {
    const std::int64_t groups = in_ / ops::scale_group(ops::MatrixFormat::kFp8, in_);
    for (std::int64_t row = 0; row < rows; ++row) {
      ops::dequantise_row(ops::MatrixFormat::kFp8, codes + row * in_, scales + row * groups, in_,
                          values.data() + (first + row) * in_);
    }
    return absl::OkStatus();
  }
  Status set_bias(std::int64_t, std::span<const float>) override { return absl::OkStatus(); }
  StatusOr<std::shared_ptr<const LinearWeight>> finish() override {
    return std::shared_ptr<const LinearWeight>();
  }
  std::vector<float> values;

 private:
  const std::int64_t in_;
};

/// The weights of a matrix, read in pieces of `piece` rows.
StatusOr<std::vector<float>> weights_of(hub::Checkpoint& checkpoint, const std::string& name,
                                        std::int64_t piece) {
  const auto shape = checkpoint.info(name)->shape;
  MESH_ASSIGN_OR_RETURN(const FoundTensor found, fp8::find(checkpoint, name, shape, false));
  if (!found.problem.empty()) return error(StatusCode::kInvalidArgument, "{}", found.problem);
  MESH_ASSIGN_OR_RETURN(const fp8::Scales scales,
                        fp8::read_scales(checkpoint, found.tensor, shape[0], shape[1]));
  const auto out = static_cast<std::int64_t>(shape[0]), in = static_cast<std::int64_t>(shape[1]);
  Rows rows(out, in);
  RowScratch scratch;
  for (std::int64_t first = 0; first < out; first += piece) {
    const std::int64_t count = std::min(piece, out - first);
    MESH_ASSIGN_OR_RETURN(const std::string_view bytes,
                          checkpoint.slice(name, static_cast<std::uint64_t>(first * in),
                                           static_cast<std::uint64_t>(count * in)));
    MESH_RETURN_IF_ERROR(put_fp8(bytes, scales, in, first, count, {rows, first, scratch}));
  }
  return rows.values;
}

TEST(Fp8Checkpoint, WeightsAreThoseOfTorchToTheBit) {
  Golden golden;
  golden.tensors = *safetensors::MappedFile::open(folder_of("golden.safetensors"));
  // Scales as F32 and E8M0 for blocks, F32 [out, 1] and BF16 [out] for rows; edges are partial blocks.
  for (const std::string format : {"fp8-block", "fp8-channel"}) {
    const auto checkpoint = open_checkpoint(folder_of(format));
    for (const std::string module : {"model.layers.0.self_attn.k_proj", "model.layers.1.mlp.up_proj"}) {
      const std::vector<float> expected = golden.tensor(format + "." + module);  // the last 16 rows
      for (const std::int64_t piece : {7, 1000}) {
        const auto weights = weights_of(*checkpoint, module + ".weight", piece);
        ASSERT_TRUE(weights.ok()) << weights.status();
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                               weights->end() - static_cast<std::ptrdiff_t>(expected.size())))
            << format << " " << module;
      }
    }
  }
}

TEST(Fp8Checkpoint, EveryBlockHasItsOwnScale) {
  // Codes that all mean 1; scale number i is i + 1.
  const EditedCheckpoint edited(folder_of("fp8-block"), [](Tensors& tensors) {
    EditableTensor& codes = tensors["model.layers.0.mlp.gate_proj.weight"];
    codes.data.assign(codes.data.size(), '\x38');
    const float scales[] = {1, 2, 3, 4};
    std::memcpy(tensors["model.layers.0.mlp.gate_proj.weight_scale_inv"].data.data(), scales, sizeof(scales));
  });
  const auto weights =
      weights_of(*open_checkpoint(edited.folder()), "model.layers.0.mlp.gate_proj.weight", 50);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (std::size_t row = 0; row < 144; ++row) {
    for (std::size_t column = 0; column < 160; ++column)
      ASSERT_EQ((*weights)[row * 160 + column], (row < 128 ? 1 : 3) + (column < 128 ? 0 : 1));
  }
}

struct Damage {
  const char* what;
  std::vector<const char*> said;
  void (*edit)(Tensors&);
};
constexpr const char* kUp = "model.layers.0.mlp.up_proj.weight";
constexpr const char* kUpScale = "model.layers.0.mlp.up_proj.weight_scale_inv";

void put_scale(Tensors& tensors, std::uint32_t bits) {
  std::memcpy(tensors[kUpScale].data.data() + 4, &bits, sizeof(bits));
}

TEST(Fp8Checkpoint, DamageIsRefusedWithTheTensorAndTheFix) {
  const Damage damages[] = {
      {"a code that is no number",
       {kUp, "not a number", "fetch it again"},
       [](Tensors& t) { t[kUp].data[500] = '\x7f'; }},
      {"its negative", {kUp, "not a number"}, [](Tensors& t) { t[kUp].data.back() = '\xff'; }},
      {"an infinite scale", {kUpScale, "inf"}, [](Tensors& t) { put_scale(t, 0x7F800000); }},
      {"a scale that is no number", {kUpScale, "nan"}, [](Tensors& t) { put_scale(t, 0x7FC00000); }},
      {"a scale of infinite weights", {kUpScale}, [](Tensors& t) { put_scale(t, 0x7F000000); }},
      {"no scale", {kUp, "weight_scale_inv", "is missing"}, [](Tensors& t) { t.erase(kUpScale); }},
      {"a scale of another shape",
       {kUpScale, "needed F32, BF16, F16 or F8_E8M0 of shape [2, 2]"},
       [](Tensors& t) { t[kUpScale].shape = {4, 1}; }},
      {"a scale of another type",
       {kUpScale, "I32"},
       [](Tensors& t) { t[kUpScale].dtype = safetensors::Dtype::kI32; }},
      {"codes of another shape",
       {kUp, "[160, 144]", "FP8 codes of a [144, 160] matrix"},
       [](Tensors& t) { t[kUp].shape = {160, 144}; }},
      {"a kept module with codes",
       {"model.layers.1.mlp.down_proj.weight", "not converted", "off that list"},
       [](Tensors& t) {
         EditableTensor& kept = t["model.layers.1.mlp.down_proj.weight"];
         kept.dtype = safetensors::Dtype::kF8E4M3;
         kept.data.resize(kept.data.size() / 2);
       }},
      {"one of stacked matrices in bfloat16",
       {kUp, "gate_proj", "quantise both or none"},
       [](Tensors& t) {
         t[kUp].dtype = safetensors::Dtype::kBF16;
         t[kUp].data.resize(t[kUp].data.size() * 2);
       }},
      {"another codes' type",
       {kUp, "F8_E5M2, needed"},
       [](Tensors& t) { t[kUp].dtype = safetensors::Dtype::kF8E5M2; }},
      {"a tensor that no module has",
       {"model.layers.0.mlp.up_proj.weight_scale_2"},
       [](Tensors& t) { t["model.layers.0.mlp.up_proj.weight_scale_2"] = t[kUpScale]; }},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    const EditedCheckpoint edited(folder_of("fp8-block"), damage.edit);
    const auto engine = cpu_engine(ComputeType::kBfloat16);
    const auto shard = engine->load(*open_checkpoint(edited.folder()), {}, {{0, 2}, false, false}, {});
    ASSERT_FALSE(shard.ok());
    for (const char* said : damage.said)
      EXPECT_THAT(std::string(message_of(shard.status())), HasSubstr(said));
  }
}

TEST(Fp8Checkpoint, AnE8m0ScaleOf255IsNoNumber) {
  const EditedCheckpoint edited(folder_of("fp8-block"), [](Tensors& tensors) {
    tensors["model.layers.1.mlp.up_proj.weight_scale_inv"].data[0] = '\xff';
  });
  const auto weights = weights_of(*open_checkpoint(edited.folder()), "model.layers.1.mlp.up_proj.weight", 64);
  EXPECT_THAT(std::string(message_of(weights.status())), HasSubstr("up_proj.weight_scale_inv holds nan"));
}

TEST(Fp8Checkpoint, OneScaleMayStandForAWholeMatrix) {
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{}, std::vector<std::uint64_t>{1}, std::vector<std::uint64_t>{1, 1}}) {
    const EditedCheckpoint edited(folder_of("fp8-channel"), [&](Tensors& tensors) {
      tensors["model.layers.1.self_attn.o_proj.weight_scale"].shape = shape;
      tensors["model.layers.1.self_attn.o_proj.weight"].data.assign(160 * 128, '\x40');  // 2
    });
    const auto checkpoint = open_checkpoint(edited.folder());
    std::uint16_t bits;
    std::memcpy(&bits, checkpoint->tensor("model.layers.1.self_attn.o_proj.weight_scale")->data(), 2);
    const auto weights = weights_of(*checkpoint, "model.layers.1.self_attn.o_proj.weight", 33);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_THAT(*weights, ::testing::Each(2 * std::bit_cast<float>(std::uint32_t{bits} << 16)));
  }
}

}  // namespace
}  // namespace mesh::engine::testing
