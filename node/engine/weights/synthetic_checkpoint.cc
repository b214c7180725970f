#include "node/engine/weights/synthetic_checkpoint.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "common/base/checked.h"
#include "common/hub/file_names.h"
#include "node/engine/models/decoder_spec.h"
#include "node/engine/weights/tensor_catalogue.h"

namespace mesh::engine {
namespace {

using safetensors::Dtype;
using safetensors::TensorInfo;

constexpr std::string_view kWeights = "model.safetensors";
constexpr std::size_t kSums = 3 * 255 + 1;
constexpr float kScale = 0.02f / 256;  // the standard deviation of 2·(a + b + c) is 256

/// config.json alone, in memory.
class ConfigFiles final : public hub::ModelFiles {
 public:
  ConfigFiles(std::string name, std::string config) : name_(std::move(name)), config_(std::move(config)) {
    sizes_.emplace(hub::kConfig, config_.size());
  }
  std::string describe() const override { return "synthetic " + name_; }
  const std::map<std::string, std::uint64_t, std::less<>>& files() const override { return sizes_; }
  Status ensure(const hub::FileRanges& wanted, const hub::ProgressFn&) override {
    return hub::check_ranges(*this, wanted);
  }
  StatusOr<std::filesystem::path> path(std::string_view name) override {
    return error(StatusCode::kNotFound, "{} has no file {}", describe(), name);
  }
  StatusOr<std::string> read(std::string_view name, hub::ByteRange range) override {
    MESH_RETURN_IF_ERROR(ensure({{std::string(name), {range}}}, {}));
    return config_.substr(range.offset, range.length);
  }

 private:
  const std::string name_, config_;
  std::map<std::string, std::uint64_t, std::less<>> sizes_;
};

/// SplitMix64's finaliser: each bit of the result depends on each of `z`.
constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::uint64_t key_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t key = mixed(seed + 0x9E3779B97F4A7C15ULL);
  for (const char c : name) key = mixed(key ^ static_cast<unsigned char>(c));
  return key;
}

/// Value number `index` is that of entry sum(index) of a table with kSums entries: two to a random word.
struct RandomSums {
  std::uint64_t key;

  std::size_t operator()(std::uint64_t index) const {
    const std::uint64_t word = mixed(key + (index >> 1) * 0x9E3779B97F4A7C15ULL) >> (index & 1 ? 24 : 0);
    return (word & 255) + (word >> 8 & 255) + (word >> 16 & 255);
  }
};

struct SyntheticTensor {
  TensorInfo info;
  std::uint64_t key = 0;
  bool around_one = false;
};
using TensorTable = std::map<std::string, SyntheticTensor, std::less<>>;

template <class Value>
std::array<Value, kSums> table_of(bool around_one) {
  std::array<Value, kSums> table;
  for (std::size_t sum = 0; sum < kSums; ++sum) {
    const float value = (around_one ? 1.0f : 0.0f) + (2 * static_cast<float>(sum) - 765) * kScale;
    if constexpr (std::is_same_v<Value, float>) {
      table[sum] = value;
    } else {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      table[sum] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
  }
  return table;
}

template <class Value>
void fill(const SyntheticTensor& tensor, std::uint64_t first, std::uint64_t count, char* out) {
  static const std::array<Value, kSums> kPlain = table_of<Value>(false), kAroundOne = table_of<Value>(true);
  const auto& table = tensor.around_one ? kAroundOne : kPlain;
  const RandomSums sums{tensor.key};
  for (std::uint64_t i = 0; i < count; ++i)
    std::memcpy(out + i * sizeof(Value), &table[sums(first + i)], sizeof(Value));
}

class SyntheticCheckpoint final : public hub::Checkpoint {
 public:
  SyntheticCheckpoint(std::shared_ptr<hub::ModelFiles> files, TensorTable tensors)
      : Checkpoint(std::move(files), names_of(tensors)), tensors_(std::move(tensors)) {}

  StatusOr<TensorInfo> info(std::string_view tensor) override {
    MESH_ASSIGN_OR_RETURN(const SyntheticTensor* const found, find(tensor));
    return found->info;
  }
  Status ensure(const std::vector<std::string>& tensors, const hub::ProgressFn&) override {
    for (const std::string& tensor : tensors) MESH_RETURN_IF_ERROR(find(tensor).status());
    return absl::OkStatus();
  }
  StatusOr<std::string_view> slice(std::string_view tensor, std::uint64_t begin,
                                   std::uint64_t length) override {
    MESH_ASSIGN_OR_RETURN(const SyntheticTensor* const found, find(tensor));
    const auto end = checked_add(begin, length);
    if (!end || *end > found->info.bytes) {
      return error(StatusCode::kOutOfRange, "bytes [{}, +{}) of {}, which has {}", begin, length, tensor,
                   found->info.bytes);
    }
    const std::uint64_t size = safetensors::dtype_bits(found->info.dtype) / 8;
    const std::uint64_t first = begin / size, count = (*end + size - 1) / size - first;
    std::unique_ptr<char[]> bytes(new char[std::max<std::uint64_t>(1, count * size)]);
    size == 2 ? fill<std::uint16_t>(*found, first, count, bytes.get())
              : fill<float>(*found, first, count, bytes.get());
    const std::string_view span(bytes.get() + (begin - first * size), length);
    const std::lock_guard lock(mutex_);
    spans_.emplace(span.data(), std::move(bytes));
    return span;
  }
  StatusOr<std::string_view> read(std::string_view tensor, std::uint64_t begin, std::uint64_t length,
                                  safetensors::ReadBuffer&) override {
    return slice(tensor, begin, length);
  }
  std::optional<std::uint64_t> made_of(std::string_view tensor) const override {
    const auto found = tensors_.find(tensor);
    return found == tensors_.end() ? std::nullopt : std::optional(found->second.key);
  }
  void release(std::string_view span) override {
    const std::lock_guard lock(mutex_);
    spans_.erase(span.data());
  }

 private:
  static TensorFiles names_of(const TensorTable& tensors) {
    TensorFiles names;
    for (const auto& [name, tensor] : tensors) names.emplace(name, kWeights);
    return names;
  }
  StatusOr<const SyntheticTensor*> find(std::string_view name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      return error(StatusCode::kNotFound, "{} has no tensor {}", files().describe(), name);
    return &found->second;
  }

  const TensorTable tensors_;
  std::mutex mutex_;
  std::map<const char*, std::unique_ptr<char[]>> spans_;  ///< by where what was given begins
};

/// The tensors of `spec`, by their names on disk.
class TensorTableMaker {
 public:
  TensorTableMaker(const DecoderSpec& spec, std::uint64_t seed)
      : prefix_(spec.prefixes.front()),
        dtype_(spec.profile.stated_dtype == "float32" ? Dtype::kF32 : Dtype::kBF16),
        seed_(seed) {
    add(spec.embedding_plan.tokens);
    if (spec.embedding_plan.positions) add(*spec.embedding_plan.positions);
    for (const LayerPlan& layer : spec.layer_plans) {
      for (const MatrixPlan* plan : {&layer.qkv, &layer.attention_out, &layer.mlp_in, &layer.mlp_out}) {
        for (const TensorSource* source : sources_of(*plan)) add(*source);
      }
      add(layer.attention_norm);
      add(layer.mlp_norm);
      if (layer.query_norm) add(*layer.query_norm);
      if (layer.key_norm) add(*layer.key_norm);
    }
    add(spec.head_plan.norm);
    add(spec.head_plan.matrix);
  }
  TensorTable take() { return std::move(table_); }

 private:
  void add(const TensorSource& source, bool around_one = false) {
    const std::string name = source.prefixed ? prefix_ + source.name : source.name;
    std::uint64_t bytes = safetensors::dtype_bits(dtype_) / 8;
    for (const std::uint64_t size : source.shape) bytes *= size;
    table_[name] = {{dtype_, source.shape, 0, bytes}, key_of(name, seed_), around_one};
  }
  void add(const NormPlan& plan) {
    add(plan.weight, true);
    if (plan.bias) add(*plan.bias);
  }

  const std::string prefix_;
  const Dtype dtype_;
  const std::uint64_t seed_;
  TensorTable table_;
};

}  // namespace

StatusOr<std::shared_ptr<hub::Checkpoint>> synthetic_checkpoint(const std::string& name,
                                                                const std::string& config_json,
                                                                std::uint64_t seed) {
  MESH_ASSIGN_OR_RETURN(const DecoderSpec spec, read_decoder_spec(config_json));
  if (spec.profile.stored_quantization != Quantization::kNone) {
    return error(StatusCode::kInvalidArgument,
                 "synthetic {}: config.json states quantised weights; leave quantization_config out, weights "
                 "are quantised when they are loaded",
                 name);
  }
  auto files = std::make_shared<ConfigFiles>(name, config_json);
  return std::make_shared<SyntheticCheckpoint>(std::move(files), TensorTableMaker(spec, seed).take());
}

}  // namespace mesh::engine
