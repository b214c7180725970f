#include "node/engine/testing/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/base/check.h"
#include "common/hub/open_model.h"
#include "common/json/view.h"

namespace mesh::engine::testing {
namespace {

template <class T>
T must(StatusOr<T> value) {
  if (!value.ok()) ADD_FAILURE() << message_of(value.status());
  MESH_CHECK(value.ok());
  return *std::move(value);
}

template <class T>
std::vector<T> list_of(const json::View& view, std::string_view key) {
  return must(view.get_list<T>(key));
}

GoldenPrompt read_prompt(const json::View& view) {
  GoldenPrompt prompt;
  prompt.free = must(view.get<bool>("free"));
  prompt.one_pass = must(view.get<std::string>("kind")) == "one_pass";
  prompt.prompt = list_of<TokenId>(view, "prompt_ids");
  prompt.completion = list_of<TokenId>(view, "completion_ids");
  prompt.logprobs = list_of<double>(view, "logprobs");
  prompt.margins = list_of<double>(view, "margin");
  prompt.argmax = list_of<TokenId>(view, "argmax");
  prompt.argmax_margin = list_of<double>(view, "argmax_margin");
  prompt.top_positions = list_of<std::size_t>(view, "top_positions");
  return prompt;
}

}  // namespace

std::vector<TokenId> GoldenPrompt::all() const {
  std::vector<TokenId> ids = prompt;
  ids.insert(ids.end(), completion.begin(), completion.end());
  return ids;
}

std::vector<float> Golden::tensor(const std::string& tensor_name) const {
  const safetensors::TensorInfo& info = *must(tensors->info(tensor_name));
  const std::string_view bytes = must(tensors->map(info));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string test_name(std::string folder) {
  std::ranges::replace(folder, '-', '_');
  return folder;
}

std::string golden_folder(const std::string& name) {
  return std::string(MESH_SOURCE_DIR) + "/tests/golden/checkpoints/" + name;
}

std::shared_ptr<hub::Checkpoint> open_checkpoint(const std::string& folder) {
  return must(hub::Checkpoint::open(must(hub::open_folder(folder))));
}

Golden read_golden(const std::string& name) {
  Golden golden;
  golden.name = name;
  const std::string folder = golden_folder(name);
  std::ifstream file(folder + "/golden.json");
  std::stringstream text;
  text << file.rdbuf();
  const json::Value value =
      must(json::parse(text.str(), {.max_bytes = 8u << 20, .max_depth = 32, .max_values = 1u << 20}));
  const json::View view(value);
  golden.bf16_nmse = must(view.get<double>("bf16_nmse"));
  for (const json::View& prompt : must(must(view.field("prompts")).elements())) {
    golden.prompts.push_back(read_prompt(prompt));
  }
  for (const json::View& wire : must(must(view.field("wire")).elements())) {
    golden.wire.push_back({list_of<std::uint32_t>(wire, "splits"), must(wire.get<std::size_t>("prompt")),
                           list_of<TokenId>(wire, "completion_ids"), list_of<double>(wire, "margin")});
  }
  golden.tensors = must(safetensors::MappedFile::open(folder + "/golden.safetensors"));
  return golden;
}

ModelIdentity identity_for(const std::string& name) {
  ModelIdentity identity;
  for (std::size_t i = 0; i < name.size(); ++i)
    identity.bytes[i % ModelIdentity::kSize] ^= static_cast<std::uint8_t>(name[i]);
  return identity;
}

std::unique_ptr<Engine> cpu_engine(ComputeType compute, std::uint64_t memory) {
  return must(Engine::create({.device = Device::kCpu,
                              .compute = compute,
                              .threads = 2,
                              .memory_bytes = memory,
                              .cuda_library = {}}));
}

std::shared_ptr<const Shard> load(Engine& engine, const std::string& folder, const LayerRange& range) {
  const auto checkpoint = open_checkpoint(folder);
  const ModelProfile profile = must(read_model_profile(must(checkpoint->files().read_small("config.json"))));
  return must(engine.load(*checkpoint, identity_for(folder), shard_of(profile, range), {}));
}

Segment token_segment(CacheId cache, std::vector<TokenId> ids, Position start) {
  Segment segment;
  segment.cache = cache;
  segment.start = start;
  segment.rows = static_cast<std::uint32_t>(ids.size());
  segment.ids = std::move(ids);
  segment.want = Want::kTokens;
  segment.want_logits = true;
  return segment;
}

std::shared_ptr<const Shard> load_all(Engine& engine, const std::string& folder, Quantization quantization) {
  const auto checkpoint = open_checkpoint(folder);
  const ModelProfile profile = must(read_model_profile(must(checkpoint->files().read_small("config.json"))));
  const ShardSpec spec = shard_of(profile, {0, profile.layer_count()}, quantization);
  return must(engine.load(*checkpoint, identity_for(folder), spec, {}));
}

Chain::Chain(Engine& engine, std::shared_ptr<const Shard> shard, const std::vector<std::uint32_t>& splits,
             HiddenType hand_over, Position max_positions)
    : engine_(engine), shard_(std::move(shard)), hand_over_(hand_over) {
  std::uint32_t begin = 0;
  for (const std::uint32_t split : splits) ranges_.push_back({std::exchange(begin, split), split});
  ranges_.push_back({begin, shard_->profile().layer_count()});
  for (const LayerRange& range : ranges_)
    caches_.push_back(must(engine.open_cache(shard_, range, max_positions)));
}

Chain::~Chain() {
  for (const CacheId cache : caches_) engine_.close_cache(cache);
}

SegmentResult Chain::run(std::span<const TokenId> ids, Segment last) {
  std::string hidden;
  for (std::size_t hop = 0; hop < ranges_.size(); ++hop) {
    const bool tail = hop + 1 == ranges_.size();
    Segment segment = tail ? last : Segment{};
    segment.cache = caches_[hop];
    segment.start = position_;
    segment.rows = static_cast<std::uint32_t>(ids.size());
    if (hop == 0) segment.ids.assign(ids.begin(), ids.end());
    segment.hidden = std::move(hidden);
    segment.hidden_type = segment.out_type = hand_over_;
    auto results = must(engine_.step(shard_, ranges_[hop], std::span(&segment, 1)));
    EXPECT_TRUE(results[0].status.ok()) << message_of(results[0].status);
    if (tail) {
      position_ += segment.rows;
      return std::move(results[0]);
    }
    hidden = std::move(results[0].hidden);
  }
  return {};
}

std::vector<float> Chain::logits(std::span<const TokenId> ids) {
  Segment last;
  last.want = Want::kTokens;
  last.want_logits = true;
  for (std::uint32_t row = 0; row < ids.size(); ++row) last.sample_rows.push_back(row);
  return run(ids, std::move(last)).logits;
}

std::vector<float> Chain::logits(std::span<const TokenId> ids, std::size_t chunk) {
  std::vector<float> all;
  for (std::size_t first = 0; first < ids.size(); first += chunk) {
    const std::vector<float> some = logits(ids.subspan(first, std::min(chunk, ids.size() - first)));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

SampledToken Chain::next(std::span<const TokenId> ids, const SamplingParams& sampling) {
  Segment last;
  last.want = Want::kTokens;
  last.sampling = sampling;
  SegmentResult result = run(ids, std::move(last));
  MESH_CHECK(result.tokens.size() == 1);
  return result.tokens[0];
}

std::vector<TokenId> generate(Chain& chain, std::span<const TokenId> prompt, std::size_t count) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(chain.next(i == 0 ? prompt : std::span<const TokenId>(&ids.back(), 1)).id);
  }
  return ids;
}

double nmse(std::span<const float> actual, std::span<const float> expected) {
  MESH_CHECK(actual.size() == expected.size());
  double error = 0, power = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - double{expected[i]}, 2);
    power += std::pow(double{expected[i]}, 2);
  }
  return error / power;
}

double max_difference(std::span<const float> actual, std::span<const float> expected) {
  MESH_CHECK(actual.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(double{actual[i]} - double{expected[i]});
    if (!(difference <= most)) most = difference;
  }
  return most;
}

}  // namespace mesh::engine::testing
