#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <new>

#include "common/base/check.h"
#include "node/engine/device/device_ops.h"
#include "node/engine/device/stage_forward.h"

namespace mesh::engine::testing {

/// A device that runs forwards when a test lets it, in order: a row's output is 2 · input + 1 in every place,
/// as bits; the token after it is its input. An id is its own input.
class HeldStage final : public StageForward {
 public:
  void hold(bool held) {
    {
      const std::lock_guard lock(mutex_);
      held_ = held;
    }
    changed_.notify_all();
  }
  /// Forward `number`, from 1, ends with an error.
  void fail(std::uint64_t number) { failing_ = number; }
  /// Called by the next begin(), before it does anything.
  void before_begin(std::function<void()> call) { before_begin_ = std::move(call); }
  /// How many segments took their input from the device.
  int handed_over() const { return handed_over_; }

  bool takes(StageModel&) const override { return true; }
  StageCounts counts() const override { return {}; }
  Status begin(const StageModel& model, StageBatch& batch) override {
    if (before_begin_) std::exchange(before_begin_, {})();
    batch.number = ++begun_;
    if (StageBatch* const first = first_of_two()) finish(*first).IgnoreError();
    const std::lock_guard lock(mutex_);
    rows_.push_back({});
    if (rows_.size() > 2) rows_.pop_front();
    std::size_t count = 0;
    Forward forward{&batch, model.shape.hidden, {}, &rows_.back()};
    for (const StageSegment& segment : batch.segments) {
      handed_over_ += segment.hidden_on_device;
      count += static_cast<std::size_t>(segment.rows * model.shape.hidden);
      Input input{segment.ids, {}, nullptr};
      if (segment.hidden_on_device) input.device = static_cast<const std::uint16_t*>(segment.hidden);
      for (std::int64_t row = 0; segment.hidden != nullptr && !segment.hidden_on_device && row < segment.rows;
           ++row) {
        std::uint16_t first;
        std::memcpy(&first, static_cast<const char*>(segment.hidden) + row * model.shape.hidden * 2, 2);
        input.host.push_back(first);
      }
      forward.inputs.push_back(std::move(input));
    }
    rows_.back().resize(count);
    forwards_.push_back(std::move(forward));
    return absl::OkStatus();
  }
  Status finish(StageBatch& batch) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_; });
    while (std::ranges::any_of(forwards_, [&](const Forward& one) { return one.batch == &batch; })) {
      run(forwards_.front());
      forwards_.pop_front();
    }
    return batch.status;
  }
  const std::byte* hidden_rows(const StageBatch& batch) const override {
    if (begun_ - batch.number >= rows_.size()) return nullptr;
    return reinterpret_cast<const std::byte*>(rows_[rows_.size() - 1 - (begun_ - batch.number)].data());
  }

 private:
  struct Input {
    std::span<const std::int32_t> ids;
    std::vector<std::uint16_t> host;
    const std::uint16_t* device;
  };
  struct Forward {
    StageBatch* batch;
    std::int64_t hidden;
    std::vector<Input> inputs;
    std::vector<std::uint16_t>* rows;
  };

  StageBatch* first_of_two() {
    const std::lock_guard lock(mutex_);
    return forwards_.size() == 2 ? forwards_.front().batch : nullptr;
  }

  void run(const Forward& forward) {
    StageBatch& batch = *forward.batch;
    const auto width = static_cast<std::size_t>(forward.hidden);
    std::vector<std::uint16_t> values;
    for (std::size_t i = 0; i < batch.segments.size(); ++i) {
      const StageSegment& segment = batch.segments[i];
      const Input& input = forward.inputs[i];
      const std::size_t first = values.size();
      for (std::size_t row = 0; row < static_cast<std::size_t>(segment.rows); ++row) {
        const auto value = input.device != nullptr ? input.device[row * width]
                           : input.host.empty()    ? static_cast<std::uint16_t>(input.ids[row])
                                                   : input.host[row];
        values.push_back(value);
        std::fill_n(forward.rows->begin() + static_cast<std::ptrdiff_t>((first + row) * width), width,
                    static_cast<std::uint16_t>(2 * value + 1));
      }
      if (segment.out != nullptr) {
        std::memcpy(segment.out, forward.rows->data() + first * width,
                    static_cast<std::size_t>(segment.rows) * width * 2);
      }
    }
    batch.finite.assign(values.size(), 1);
    for (StageSampled& one : batch.sampled)
      one.finite = true, one.id = values[static_cast<std::size_t>(one.row)];
    if (batch.number == failing_) batch.status = error(StatusCode::kInternal, "the device broke");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  std::function<void()> before_begin_;
  std::uint64_t begun_ = 0, failing_ = 0;
  int handed_over_ = 0;
  std::deque<Forward> forwards_;
  std::deque<std::vector<std::uint16_t>> rows_;  // of the last two forwards
};

/// Memory of the host and a HeldStage; nothing goes op by op.
class HeldStageOps : public DeviceOps {
 public:
  HeldStage& held() { return stage_; }
  StageForward* stage() override { return &stage_; }
  std::uint64_t free_memory() const override { return std::uint64_t{1} << 30; }
  StatusOr<DeviceMemory> allocate(std::uint64_t bytes) override {
    auto* memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}));
    std::memset(memory, 0, bytes);
    return DeviceMemory(memory, [](std::byte* at) { ::operator delete(at, std::align_val_t{64}); });
  }
  std::int64_t kv_block_bytes(std::int64_t kv_heads, std::int64_t head_dim, Element element) const override {
    return 2 * ops::KvLayout::kBlock * kv_heads * head_dim * ops::element_size(element);
  }
  Status finish() override { return absl::OkStatus(); }

  StatusOr<DeviceMemory> upload_vector(std::span<const float>) override { return none(); }
  StatusOr<std::unique_ptr<LinearLoader>> linear_loader(std::int64_t, std::int64_t, Element) override {
    return none();
  }
  void copy(const std::byte*, std::byte*, std::uint64_t) override { never(); }
  void upload(std::span<const float>, float*) override { never(); }
  void download(ConstMatrix, float*) override { never(); }
  void upload_bf16(const void*, Matrix) override { never(); }
  void download_bf16(ConstMatrix, void*) override { never(); }
  bool all_finite(ConstMatrix) override { return never(), false; }
  void embed(const LinearWeight&, std::span<const std::int32_t>, Matrix) override { never(); }
  void linear(const LinearWeight&, ConstMatrix, Matrix, ops::Store) override { never(); }
  void rms_norm(ConstMatrix, const float*, float, Matrix) override { never(); }
  void rms_norm_heads(Matrix, std::int64_t, const float*, float) override { never(); }
  void layer_norm(ConstMatrix, const float*, const float*, float, Matrix) override { never(); }
  void rotary(Matrix, std::int64_t, ConstMatrix, ConstMatrix) override { never(); }
  void append_kv(const ops::KvLayout&, std::span<const ops::AttentionSegment>, ConstMatrix,
                 ConstMatrix) override {
    never();
  }
  void attention(const ops::KvLayout&, const ops::AttentionOptions&, std::span<const ops::AttentionSegment>,
                 ConstMatrix, Matrix) override {
    never();
  }
  void silu_mul(ConstMatrix, Matrix) override { never(); }
  void gelu_tanh(Matrix) override { never(); }
  void gelu_exact(Matrix) override { never(); }
  void add(Matrix, ConstMatrix) override { never(); }
  void gather_rows(ConstMatrix, std::span<const std::int32_t>, Matrix) override { never(); }

 private:
  static Status none() { return error(StatusCode::kUnimplemented, "no weights"); }
  static void never() { MESH_CHECK(false); }
  HeldStage stage_;
};

}  // namespace mesh::engine::testing
