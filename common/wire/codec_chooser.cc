#include "common/wire/codec_chooser.h"

#include <algorithm>

namespace mesh::wire {
namespace {

constexpr double kWeight = 0.2;  // of the newest sample

void blend(double& average, double sample) {
  average += kWeight * (sample - average);
}
double seconds(Duration took) {
  return std::max(1e-9, std::chrono::duration<double>(took).count());
}

}  // namespace

Codec CodecChooser::choose(std::uint64_t raw_bytes) const {
  switch (policy_) {
    case CodecPolicy::kZstd:
      return Codec::kZstd;
    case CodecPolicy::kSplit:
      return Codec::kSplit;
    case CodecPolicy::kIdentity:
      return Codec::kIdentity;
    case CodecPolicy::kAuto:
      break;
  }
  if (raw_bytes < kMinSample || bandwidth_ == 0) return Codec::kIdentity;
  return bandwidth_ < break_even() ? Codec::kSplit : Codec::kIdentity;
}

void CodecChooser::sent(std::uint64_t coded_bytes, Duration took) {
  if (coded_bytes < kMinSample) return;
  const double sample = static_cast<double>(coded_bytes) / seconds(took);
  if (bandwidth_ == 0) bandwidth_ = sample;
  blend(bandwidth_, sample);
}

void CodecChooser::encoded(std::uint64_t raw_bytes, std::uint64_t coded_bytes, Duration took) {
  if (raw_bytes < kMinSample) return;
  blend(encode_speed_, static_cast<double>(raw_bytes) / seconds(took));
  blend(ratio_, static_cast<double>(coded_bytes) / static_cast<double>(raw_bytes));
}

double CodecChooser::break_even() const {
  return std::max(0.0, 1 - ratio_) / (1 / encode_speed_ + 1 / (kDecodeSpeedup * encode_speed_));
}

}  // namespace mesh::wire
