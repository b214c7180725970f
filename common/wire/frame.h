#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/identity/mac.h"
#include "common/wire/codec.h"
#include "common/wire/segment.h"

namespace mesh::wire {

inline constexpr std::string_view kFramesRoute = "/mesh/v1/frames";
inline constexpr std::string_view kFrameContentType = "application/x-meshnet-frame";
/// One segment of most rows and widest, and what stands beside it; senders put more together up to 4 MiB
/// alone.
inline constexpr std::uint64_t kMaxFrameBytes =
    std::uint64_t{2} * kMaxSegmentRows * kMaxHidden + (std::uint64_t{4} << 20);
inline constexpr std::size_t kFrameHeaderBytes = 12;
inline constexpr std::size_t kSegmentHeaderBytes = 112;

/// A segment as it came: all but the hidden states, which stay coded until the MAC was checked. Views into
/// the frame.
struct ReceivedSegment {
  Segment segment;
  Codec codec = Codec::kIdentity;
  std::string_view coded;
  std::string_view covered;  ///< what the MAC covers
  Mac mac;
};

/// Splits a frame. Every length is checked against what is left before anything of that size is made.
StatusOr<std::vector<ReceivedSegment>> parse_frame(std::string_view body);
bool mac_fits(const ReceivedSegment& received, const SessionSecret& secret);
/// Decodes the hidden states into received.segment.hidden. Call it after mac_fits().
Status decode_hidden(ReceivedSegment& received, HiddenCodec& codec);

/// Builds one frame, segment by segment.
class FrameWriter {
 public:
  /// `segment` obeys the limits of segment.h; it is ours, so breaking them is a programmer's error.
  void add(const Segment& segment, const SessionSecret& secret, Codec codec, HiddenCodec& coder);
  std::size_t segments() const { return count_; }
  /// Hidden states before and after coding.
  std::uint64_t raw_bytes() const { return raw_bytes_; }
  std::uint64_t coded_bytes() const { return coded_bytes_; }
  /// The body to POST. Call once, after at least one add().
  std::string finish();

 private:
  std::string body_ = std::string(kFrameHeaderBytes, '\0');
  std::size_t count_ = 0;
  std::uint64_t raw_bytes_ = 0;
  std::uint64_t coded_bytes_ = 0;
};

}  // namespace mesh::wire
