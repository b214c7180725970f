#include "node/tools/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>

#include "common/hub/checkpoint.h"
#include "common/hub/file_names.h"
#include "common/safetensors/mapped_file.h"

namespace mesh::tools {
namespace {

using safetensors::Dtype;

constexpr std::string_view kIds = "ids";
constexpr double kFloat32Tolerance = 1e-8, kBfloat16Tolerance = 1e-3;

template <class T>
std::vector<T> values_of(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// The reference's values; one operation's are read when it is computed.
class Golden {
 public:
  static StatusOr<Golden> open(const std::filesystem::path& path) {
    Golden golden;
    MESH_ASSIGN_OR_RETURN(golden.file_, safetensors::MappedFile::open(path));
    MESH_ASSIGN_OR_RETURN(const auto* const info, golden.file_->info(kIds));
    if (info->shape.size() != 1 || (info->dtype != Dtype::kI32 && info->dtype != Dtype::kI64) ||
        info->bytes == 0) {
      return error(StatusCode::kInvalidArgument, "{}: ids are no list of I32 or I64", path.string());
    }
    MESH_ASSIGN_OR_RETURN(const std::string_view bytes, golden.file_->map(*info));
    if (info->dtype == Dtype::kI32) {
      golden.ids_ = values_of<std::int32_t>(bytes);
    } else {
      for (const std::int64_t id : values_of<std::int64_t>(bytes)) {
        if (id < 0 || id > std::numeric_limits<TokenId>::max())
          return error(StatusCode::kInvalidArgument, "{}: {} is no token id", path.string(), id);
        golden.ids_.push_back(static_cast<TokenId>(id));
      }
    }
    if (golden.ids_.size() > engine::kMaxSegmentRows) {
      return error(StatusCode::kInvalidArgument, "{}: {} ids, at most {} can be compared", path.string(),
                   golden.ids_.size(), engine::kMaxSegmentRows);
    }
    for (const auto& [name, tensor] : golden.file_->header().tensors) {
      if (name == kIds) continue;
      if (tensor.dtype != Dtype::kF32 || tensor.shape.size() != 2 || tensor.shape[0] != golden.ids_.size()) {
        return error(StatusCode::kInvalidArgument, "{}: {} is not F32 [{}, width]", path.string(), name,
                     golden.ids_.size());
      }
    }
    return golden;
  }

  const std::vector<TokenId>& ids() const { return ids_; }
  const std::map<std::string, safetensors::TensorInfo, std::less<>>& tensors() const {
    return file_->header().tensors;
  }
  StatusOr<std::vector<float>> values(const safetensors::TensorInfo& tensor) const {
    MESH_ASSIGN_OR_RETURN(const std::string_view bytes, file_->map(tensor));
    std::vector<float> values = values_of<float>(bytes);
    file_->release(bytes);
    return values;
  }

 private:
  std::shared_ptr<safetensors::MappedFile> file_;
  std::vector<TokenId> ids_;
};

/// Compares while the model runs, so that no more than one operation's values are in memory.
class Comparer final : public engine::OperationObserver {
 public:
  explicit Comparer(const Golden& golden) : golden_(golden) {}

  void seen(std::string_view operation, std::optional<std::uint32_t> layer, std::size_t rows,
            std::size_t cols, std::span<const float> values) override {
    const std::string name = layer ? fmt::format("layer.{}.{}", *layer, operation) : std::string(operation);
    const auto found = golden_.tensors().find(name);
    if (found == golden_.tensors().end() || !problem_.ok()) return;
    if (found->second.shape[1] != cols) {
      problem_ = error(StatusCode::kInvalidArgument, "{} has {} values a row in the reference, {} here", name,
                       found->second.shape[1], cols);
      return;
    }
    auto expected = golden_.values(found->second);
    if (!expected.ok()) {
      problem_ = expected.status();
      return;
    }
    ComparedOperation& compared = place(name);
    std::size_t& done = rows_[name];
    for (std::size_t row = 0; row < rows && done < golden_.ids().size(); ++row, ++done) {
      const double off =
          row_error(values.subspan(row * cols, cols), std::span(*expected).subspan(done * cols, cols));
      if (off <= compared.worst) continue;
      compared.worst = off;
      compared.row = done;
    }
  }

  /// What was compared; an error when the reference has values that a `complete` run did not compute.
  StatusOr<std::vector<ComparedOperation>> take(bool complete) {
    MESH_RETURN_IF_ERROR(problem_);
    std::vector<std::string> left;
    for (const auto& [name, tensor] : golden_.tensors()) {
      if (name != kIds && !rows_.contains(name)) left.push_back(name);
    }
    if (complete && !left.empty()) {
      return error(StatusCode::kInvalidArgument,
                   "the reference has values that this model does not compute: {}", fmt::join(left, ", "));
    }
    if (complete && operations_.empty())
      return error(StatusCode::kInvalidArgument, "the reference has no values beside ids");
    return std::move(operations_);
  }

 private:
  ComparedOperation& place(const std::string& name) {
    for (ComparedOperation& operation : operations_) {
      if (operation.name == name) return operation;
    }
    operations_.push_back({.name = name});
    return operations_.back();
  }
  static double row_error(std::span<const float> ours, std::span<const float> reference) {
    double off = 0, power = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double difference = double{ours[i]} - double{reference[i]};
      off += difference * difference;
      power += double{reference[i]} * double{reference[i]};
    }
    if (off == 0) return 0;
    const double error = power > 0 ? off / power : std::numeric_limits<double>::infinity();
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }

  const Golden& golden_;
  Status problem_;
  std::vector<ComparedOperation> operations_;
  std::map<std::string, std::size_t> rows_;
};

Status run_model(hub::Checkpoint& checkpoint, const Golden& golden, const CompareOptions& options,
                 Comparer& comparer) {
  engine::EngineOptions engine_options = options.engine;
  engine_options.observer = &comparer;
  MESH_ASSIGN_OR_RETURN(const auto engine, engine::Engine::create(engine_options));
  MESH_ASSIGN_OR_RETURN(const std::string config, checkpoint.files().read_small(hub::kConfig));
  MESH_ASSIGN_OR_RETURN(const engine::ModelProfile profile, engine::read_model_profile(config));
  const LayerRange whole{0, profile.layer_count()};
  MESH_ASSIGN_OR_RETURN(const auto shard,
                        engine->load(checkpoint, {}, shard_of(profile, whole, options.quantization), {}));
  engine::Segment segment;
  segment.rows = static_cast<std::uint32_t>(golden.ids().size());
  MESH_ASSIGN_OR_RETURN(segment.cache, engine->open_cache(shard, whole, segment.rows));
  segment.ids = golden.ids();
  segment.want = engine::Want::kTokens;
  for (std::uint32_t row = 0; row < segment.rows; ++row) segment.sample_rows.push_back(row);
  MESH_ASSIGN_OR_RETURN(const auto results, engine->step(shard, whole, std::span(&segment, 1)));
  return results[0].status;
}

}  // namespace

const ComparedOperation* Comparison::first_wrong() const {
  const auto wrong = std::ranges::find(operations, true, &ComparedOperation::wrong);
  return wrong == operations.end() ? nullptr : &*wrong;
}

StatusOr<Comparison> compare(hub::Checkpoint& checkpoint, const std::filesystem::path& golden,
                             const CompareOptions& options) {
  MESH_ASSIGN_OR_RETURN(const Golden reference, Golden::open(golden));
  Comparer comparer(reference);
  const Status ran = run_model(checkpoint, reference, options, comparer);
  Comparison comparison;
  MESH_ASSIGN_OR_RETURN(comparison.operations, comparer.take(ran.ok()));
  const bool exact = options.engine.compute == engine::ComputeType::kFloat32 &&
                     options.quantization == engine::Quantization::kNone;
  comparison.tolerance = options.tolerance.value_or(exact ? kFloat32Tolerance : kBfloat16Tolerance);
  for (ComparedOperation& operation : comparison.operations)
    operation.wrong = operation.worst > comparison.tolerance;
  // A wrong tensor may end the forward (values that are not finite): what came before it tells where.
  if (comparison.first_wrong() == nullptr) MESH_RETURN_IF_ERROR(ran);
  return comparison;
}

std::string to_text(const Comparison& comparison) {
  std::string text;
  const ComparedOperation* const first = comparison.first_wrong();
  double worst = 0;
  for (const ComparedOperation& operation : comparison.operations) {
    text += fmt::format("{:28} {:9.2e} in row {}{}\n", operation.name, operation.worst, operation.row,
                        &operation == first ? "  <- first beyond the tolerance" : "");
    worst = std::max(worst, operation.worst);
    if (&operation == first) break;
  }
  if (first == nullptr) {
    text += fmt::format("{} operations agree: the worst row is off by {:.2e}, allowed are {:.2e}\n",
                        comparison.operations.size(), worst, comparison.tolerance);
  } else {
    text += fmt::format("{} differs: {:.2e} in row {}, allowed are {:.2e}; all before it agree\n",
                        first->name, first->worst, first->row, comparison.tolerance);
  }
  return text;
}

}  // namespace mesh::tools
