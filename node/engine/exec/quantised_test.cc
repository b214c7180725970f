#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "common/json/view.h"
#include "node/engine/testing/edited_checkpoint.h"
#include "node/engine/testing/golden.h"
#include "node/engine/weights/shard_loader.h"

// Quantised weights against bitsandbytes and transformers (tests/golden/quantised).
namespace mesh::engine::testing {
namespace {

using ::testing::HasSubstr;

std::string quantised_folder(const std::string& name) {
  return std::string(MESH_SOURCE_DIR) + "/tests/golden/quantised/" + name;
}

std::vector<float> golden_tensor(const std::string& name) {
  const auto file = safetensors::MappedFile::open(quantised_folder("golden.safetensors"));
  Golden golden;
  golden.tensors = *file;
  return golden.tensor(name);
}

struct Reference {
  std::vector<TokenId> ids;
  double divergence = 0;  // of the quantised model from the original
};

Reference reference(const std::string& variant) {
  std::ifstream file(quantised_folder("golden.json"));
  std::stringstream text;
  text << file.rdbuf();
  const auto value = json::parse(text.str());
  const json::View view(*value);
  auto ids = *view.get_list<TokenId>("ids");
  if (variant.starts_with("tiny-llama")) ids.resize(8);
  return {std::move(ids), *view.field("kl")->get<double>(variant)};
}

/// Mean KL(expected ‖ actual) of rows of logits.
double divergence(const std::vector<float>& expected, const std::vector<float>& actual, std::size_t vocab) {
  const auto log_sum = [&](const float* row) {
    double sum = 0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]});
    return std::log(sum);
  };
  double total = 0;
  for (std::size_t at = 0; at < expected.size(); at += vocab) {
    const float* p = expected.data() + at;
    const float* q = actual.data() + at;
    const double p_sum = log_sum(p), q_sum = log_sum(q);
    for (std::size_t i = 0; i < vocab; ++i)
      total += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
  }
  return total / static_cast<double>(expected.size() / vocab);
}

struct Variant {
  const char* name;    // of the golden data
  const char* folder;  // of the checkpoint
  Quantization asked;
  WeightFormat format;
  const char* original = "original";  // logits of the model that was quantised
  bool whole_rows = false;            // of blocks of 64: a GPU's own kernels take it

  std::string path() const { return whole_rows ? golden_folder(folder) : quantised_folder(folder); }
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

class Quantised : public ::testing::TestWithParam<Variant> {};

TEST_P(Quantised, LogitsAreThoseOfTheWeightsThatTheCodesMean) {
  const Reference expected = reference(GetParam().name);
  const std::vector<float> logits = golden_tensor(GetParam().name + std::string(".logits"));
  const std::size_t vocab = logits.size() / expected.ids.size();
  for (const ComputeType compute : {ComputeType::kFloat32, ComputeType::kBfloat16}) {
    const auto engine = cpu_engine(compute);
    const auto shard = load_all(*engine, GetParam().path(), GetParam().asked);
    Chain chain(*engine, shard, {}, HiddenType::kFloat32, 64);
    const std::vector<float> ours = chain.logits(expected.ids);
    EXPECT_LE(divergence(logits, ours, vocab), 0.002);
    if (compute == ComputeType::kBfloat16) continue;  // its KV cache is bfloat16
    EXPECT_LE(max_difference(ours, logits), 1e-4);
    EXPECT_LE(nmse(ours, logits), 1e-9);
    const double from_original =
        divergence(golden_tensor(GetParam().original + std::string(".logits")), ours, vocab);
    EXPECT_NEAR(from_original, expected.divergence, 0.01 * expected.divergence);
    RecordProperty("kl_from_bfloat16", fmt::format("{:.6f}", from_original));
    fmt::print("{}: KL(bf16 ‖ ours) {:.6f}, the reference's {:.6f}\n", GetParam().name, from_original,
               expected.divergence);
  }
}

/// On a machine with a GPU; MESHNET_CUDA_LIBRARY names libmeshnet_cuda.so.
TEST_P(Quantised, EveryPathOfAGpuIsAsGood) {
  const char* library = std::getenv("MESHNET_CUDA_LIBRARY");
  if (library == nullptr) GTEST_SKIP() << "MESHNET_CUDA_LIBRARY is not set";
  const Reference expected = reference(GetParam().name);
  const std::vector<float> logits = golden_tensor(GetParam().name + std::string(".logits"));
  const std::size_t vocab = logits.size() / expected.ids.size();
  for (const CudaPath path :
       {CudaPath::kGraphs, CudaPath::kLaunches, CudaPath::kAmpere, CudaPath::kPortable, CudaPath::kEager}) {
    const auto engine = Engine::create({.device = Device::kCuda,
                                        .compute = ComputeType::kBfloat16,
                                        .memory_bytes = std::uint64_t{1} << 30,
                                        .cuda_library = library,
                                        .cuda_path = path});
    ASSERT_TRUE(engine.ok()) << message_of(engine.status());
    const auto shard = load_all(**engine, GetParam().path(), GetParam().asked);
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{2}, std::size_t{7}, expected.ids.size()}) {
      // In chunks of seven the head is a stage without layers.
      const std::uint32_t split = chunk == 7 ? shard->profile().layer_count() : 1;
      Chain chain(**engine, shard, {split}, HiddenType::kFloat32, 64);
      EXPECT_LE(divergence(logits, chain.logits(expected.ids, chunk), vocab), 0.002)
          << "path " << static_cast<int>(path) << " chunk " << chunk;
    }
    const ForwardCounts counts = (*engine)->forward_counts();
    EXPECT_EQ(counts.ops == 0, GetParam().whole_rows && path != CudaPath::kEager) << static_cast<int>(path);
  }
}

TEST_P(Quantised, SplitsAndChunksChangeNoBit) {
  const auto engine = cpu_engine(ComputeType::kBfloat16);
  const auto shard = load_all(*engine, GetParam().path(), GetParam().asked);
  const std::vector<TokenId> ids = reference(GetParam().name).ids;
  Chain whole(*engine, shard, {}, HiddenType::kFloat32, 64);
  const std::vector<float> expected = whole.logits(ids);
  for (const std::size_t chunk : {1, 3, 7}) {
    Chain chunked(*engine, shard, {1}, HiddenType::kFloat32, 64);
    EXPECT_EQ(chunked.logits(ids, chunk), expected) << chunk;
  }
}

TEST_P(Quantised, ProfileAndPlanKnowTheBytes) {
  const auto checkpoint = open_checkpoint(GetParam().path());
  const ModelProfile profile = *read_model_profile(*checkpoint->files().read_small("config.json"));
  const Quantization quantization = *profile.quantization(GetParam().asked);
  EXPECT_EQ(profile.matrix_format(WeightFormat::kFloat32, quantization), GetParam().format);
  const LayerRange all{0, profile.layer_count()};
  const std::uint64_t stated = profile.weight_bytes(all, true, true, GetParam().format);
  const auto engine = cpu_engine(ComputeType::kBfloat16);
  const ShardSpec spec = shard_of(profile, all, GetParam().asked);
  const ShardNeeds needs = *engine->shard_needs(*checkpoint, {}, spec);
  const auto shard = *engine->load(*checkpoint, {}, spec, {});
  EXPECT_EQ(shard->bytes(), needs.weight_bytes);
  EXPECT_EQ(engine->memory().weight_bytes, needs.weight_bytes);
  // Memory pads outputs to multiples of 32, which this model's are.
  EXPECT_EQ(stated, needs.weight_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Quantised,
    ::testing::Values(
        Variant{"int8", "int8", Quantization::kNone, WeightFormat::kInt8},
        Variant{"nf4", "nf4", Quantization::kNf4, WeightFormat::kNf4},
        Variant{"nf4-double", "nf4-double", Quantization::kNone, WeightFormat::kNf4},
        Variant{"load-int8", "original", Quantization::kInt8, WeightFormat::kInt8},
        Variant{"load-nf4", "original", Quantization::kNf4, WeightFormat::kNf4},
        Variant{"load-fp8", "original", Quantization::kFp8, WeightFormat::kFp8},
        Variant{"fp8-block", "fp8-block", Quantization::kNone, WeightFormat::kFp8, "fp8-block.original"},
        Variant{"fp8-channel", "fp8-channel", Quantization::kFp8, WeightFormat::kFp8, "fp8-channel.original"},
        Variant{"tiny-llama-int8", "tiny-llama", Quantization::kInt8, WeightFormat::kInt8, "tiny-llama",
                true},
        Variant{"tiny-llama-nf4", "tiny-llama", Quantization::kNf4, WeightFormat::kNf4, "tiny-llama", true},
        Variant{"tiny-llama-fp8", "tiny-llama", Quantization::kFp8, WeightFormat::kFp8, "tiny-llama", true}),
    [](const auto& info) { return test_name(info.param.name); });

/// Loads a whole model below the Engine, whose matrices no one sees.
class Loaded {
 public:
  Loaded(const std::string& folder, Quantization quantization)
      : checkpoint_(open_checkpoint(folder)), context_{*ops_, budget_, store_} {
    const ModelProfile profile = *read_model_profile(*checkpoint_->files().read_small("config.json"));
    const ShardSpec spec = shard_of(profile, {0, profile.layer_count()}, quantization);
    const auto plan = plan_shard(context_, *checkpoint_, {}, spec);
    EXPECT_TRUE(plan.ok()) << plan.status();
    const auto shard = load_shard(context_, *checkpoint_, **plan, {});
    EXPECT_TRUE(shard.ok()) << shard.status();
    shard_ = *shard;
  }
  /// Rows [begin, end).
  std::vector<float> rows(const LinearPtr& matrix, std::int32_t begin, std::int32_t end) const {
    std::vector<std::int32_t> which;
    for (std::int32_t row = begin; row < end; ++row) which.push_back(row);
    std::vector<float> values(which.size() * static_cast<std::size_t>(matrix->in_features()));
    ops_->embed(*matrix, which, {values.data(), end - begin, matrix->in_features()});
    return values;
  }
  const LayerPart& layer(std::uint32_t index) const { return shard_->layer(index); }
  const LoadedShard& shard() const { return *shard_; }

 private:
  std::unique_ptr<DeviceOps> ops_ = *make_cpu_ops(1);
  MemoryBudget budget_{1u << 28};
  PartStore store_;
  std::shared_ptr<hub::Checkpoint> checkpoint_;
  LoadContext context_;
  std::shared_ptr<const LoadedShard> shard_;
};

TEST(Bitsandbytes, ItsCheckpointsMeanToUsWhatTheyMeanToIt) {
  for (const std::string name : {"int8", "nf4", "nf4-double"}) {
    const Loaded loaded(quantised_folder(name), Quantization::kNone);
    // qkv: 64 query rows, then 32 key rows.
    EXPECT_EQ(loaded.rows(loaded.layer(0).qkv, 80, 96),
              golden_tensor(name + ".model.layers.0.self_attn.k_proj"));
    EXPECT_EQ(loaded.rows(loaded.layer(1).mlp_out, 48, 64),
              golden_tensor(name + ".model.layers.1.mlp.down_proj"));
  }
}

TEST(Bitsandbytes, WeightsQuantisedAtLoadAreTheSameToTheBit) {
  for (const auto& [name, quantization] :
       {std::pair("int8", Quantization::kInt8), std::pair("nf4", Quantization::kNf4)}) {
    const Loaded theirs(quantised_folder(name), quantization);
    const Loaded ours(quantised_folder("original"), quantization);
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const LayerPart& a = ours.layer(layer);
      const LayerPart& b = theirs.layer(layer);
      EXPECT_EQ(ours.rows(a.qkv, 0, 128), theirs.rows(b.qkv, 0, 128));
      EXPECT_EQ(ours.rows(a.attention_out, 0, 64), theirs.rows(b.attention_out, 0, 64));
      EXPECT_EQ(ours.rows(a.mlp_in, 0, 672), theirs.rows(b.mlp_in, 0, 672));
      if (quantization == Quantization::kInt8) {
        EXPECT_EQ(ours.rows(a.mlp_out, 0, 64), theirs.rows(b.mlp_out, 0, 64));
      }
    }
  }
}

TEST(QuantisedLoad, TransposedSourcesAreTurnedFirst) {
  // gpt2's Conv1D weights lie [in, out]; each row of the product is quantised by itself.
  const std::string folder = golden_folder("tiny-gpt2");
  const Loaded plain(folder, Quantization::kNone);
  const Loaded int8(folder, Quantization::kInt8);
  const std::vector<float> exact = plain.rows(plain.layer(2).mlp_in, 0, 512);
  const std::vector<float> rounded = int8.rows(int8.layer(2).mlp_in, 0, 512);
  for (std::size_t row = 0; row < 512; ++row) {
    float largest = 0;
    for (std::size_t i = 0; i < 128; ++i) largest = std::max(largest, std::abs(exact[row * 128 + i]));
    for (std::size_t i = 0; i < 128; ++i)
      ASSERT_NEAR(rounded[row * 128 + i], exact[row * 128 + i], largest * 0.502f / 127) << row << "," << i;
  }
}

TEST(QuantisedLoad, ACheckpointThatIsQuantisedBecomesNothingElse) {
  const auto engine = cpu_engine(ComputeType::kBfloat16);
  const auto shard = engine->load(*open_checkpoint(quantised_folder("nf4")), {},
                                  {{0, 1}, false, false, Quantization::kInt8}, {});
  EXPECT_THAT(std::string(message_of(shard.status())), HasSubstr("quantised to nf4 and cannot become int8"));
}

TEST(QuantisedLoad, NamesTheWeightThatIsNotFinite) {
  const EditedCheckpoint edited("tiny-llama", [](Tensors& tensors) {
    std::string& data = tensors["model.layers.1.mlp.up_proj.weight"].data;
    data[1000] = '\x80';
    data[1001] = '\x7f';  // +inf in bfloat16
  });
  for (const Quantization quantization : {Quantization::kInt8, Quantization::kNf4}) {
    const auto engine = cpu_engine(ComputeType::kBfloat16);
    const auto shard =
        engine->load(*open_checkpoint(edited.folder()), {}, {{0, 2}, false, false, quantization}, {});
    EXPECT_THAT(std::string(message_of(shard.status())),
                HasSubstr("model.layers.1.mlp.up_proj.weight: has a weight that is not finite"));
  }
}

TEST(QuantisedLoad, AHeadThatInt8CannotHoldIsRefusedUnderEveryQuantization) {
  const EditedCheckpoint edited("tiny-llama", [](Tensors& tensors) {
    std::string& data = tensors["lm_head.weight"].data;
    data[1000] = '\x80';
    data[1001] = '\x47';  // 65536 in bfloat16, more than half precision has
  });
  for (const Quantization quantization : {Quantization::kInt8, Quantization::kNf4, Quantization::kFp8}) {
    const auto engine = cpu_engine(ComputeType::kBfloat16);
    const auto shard =
        engine->load(*open_checkpoint(edited.folder()), {}, {{0, 2}, false, true, quantization}, {});
    EXPECT_THAT(std::string(message_of(shard.status())),
                HasSubstr("lm_head.weight: has a weight that is not finite in half precision, as INT8 needs "
                          "it; use --quantization bfloat16"));
  }
}

struct Damage {
  const char* tensor;
  const char* message;
  void (*edit)(Tensors&, const std::string& name);
};
constexpr const char* kDown = "model.layers.0.mlp.down_proj.weight";

TEST(QuantisedLoad, DamagedCheckpointsAreRefusedWithTheTensorsName) {
  const Damage damages[] = {
      {".absmax", "is missing", [](Tensors& t, const std::string& name) { t.erase(name); }},
      {".absmax", "needed U8 336",
       [](Tensors& t, const std::string& name) {
         t[name].shape = {100};
         t[name].data.resize(100);
       }},
      {".nested_absmax", "not finite",
       [](Tensors& t, const std::string& name) { t[name].data.assign(8, '\xff'); }},
      {".quant_map", "not that of NF4",
       [](Tensors& t, const std::string& name) { t[name].data.assign(64, '\0'); }},
      {".quant_state.bitsandbytes__nf4", "quant_state",
       [](Tensors& t, const std::string& name) { t[name].data.assign(168, '{'); }},
      {".quant_state.bitsandbytes__nf4", "needed nf4, 64, [64, 336]",
       [](Tensors& t, const std::string& name) {
         const std::size_t at = t[name].data.find("336");
         t[name].data.replace(at, 3, "335");
       }},
      {"", "needed nf4 codes of a [64, 336] matrix",
       [](Tensors& t, const std::string& name) {
         t[name].shape = {5, 1};
         t[name].data.resize(5);
       }},
  };
  for (const Damage& damage : damages) {
    const std::string name = kDown + std::string(damage.tensor);
    const EditedCheckpoint edited(quantised_folder("nf4-double"),
                                  [&](Tensors& tensors) { damage.edit(tensors, name); });
    const auto engine = cpu_engine(ComputeType::kBfloat16);
    const auto shard = engine->load(*open_checkpoint(edited.folder()), {}, {{0, 1}, false, false}, {});
    ASSERT_FALSE(shard.ok()) << name;
    EXPECT_THAT(std::string(message_of(shard.status())), HasSubstr(damage.message));
    EXPECT_THAT(std::string(message_of(shard.status())), HasSubstr(kDown));
  }
}

}  // namespace
}  // namespace mesh::engine::testing
