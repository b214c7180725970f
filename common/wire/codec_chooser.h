#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "common/wire/codec.h"

namespace mesh::wire {

/// Chooses the codec of one link from moving averages. Compressing pays iff BW < (1 − ρ)/(1/Vc + 1/Vd), where
/// ρ is coded over raw size, Vc and Vd are the speeds of both ends in raw bytes a second and BW is the link's
/// in coded bytes a second. Vd is not measured across the link: the receiver's is taken to be the sender's
/// own ratio to Vc (kDecodeSpeedup).
class CodecChooser {
 public:
  /// The split codec decodes about twice as fast as it encodes.
  static constexpr double kDecodeSpeedup = 2.0;
  /// Smaller payloads cost a round trip, not bandwidth: their times say nothing of the link, and they go
  /// uncompressed.
  static constexpr std::uint64_t kMinSample = 32 * 1024;

  explicit CodecChooser(CodecPolicy policy) : policy_(policy) {}

  Codec choose(std::uint64_t raw_bytes) const;
  /// `took`: from the first byte written to the answer, less what the peer needs without a payload (the
  /// smallest round trip seen on this link).
  void sent(std::uint64_t coded_bytes, Duration took);
  void encoded(std::uint64_t raw_bytes, std::uint64_t coded_bytes, Duration took);

  /// Bytes a second; 0 while nothing was measured.
  double bandwidth() const { return bandwidth_; }
  /// The bandwidth below which compressing pays.
  double break_even() const;

 private:
  CodecPolicy policy_;
  double bandwidth_ = 0;
  double encode_speed_ = 1.0e9;
  double ratio_ = 0.7;
};

}  // namespace mesh::wire
