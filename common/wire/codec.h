#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::wire {

/// How hidden states lie in a segment. Lossless all of them.
enum class Codec : std::uint8_t {
  kIdentity = 0,
  kZstd = 1,   ///< one zstd frame
  kSplit = 2,  ///< one zstd frame over the exponents, then sign and mantissa bytes as they are
};

/// What `--wire-codec` may say. kAuto takes kSplit where the measured link is slow enough to gain
/// (CodecChooser).
enum class CodecPolicy : std::uint8_t { kAuto, kZstd, kSplit, kIdentity };
StatusOr<CodecPolicy> parse_codec_policy(std::string_view name);
std::string_view name_of(Codec codec);

/// Codes bf16 values (two bytes each, little-endian). Holds zstd's working memory; one per thread.
class HiddenCodec {
 public:
  HiddenCodec();
  ~HiddenCodec();
  HiddenCodec(HiddenCodec&&) noexcept;
  HiddenCodec& operator=(HiddenCodec&&) noexcept;

  /// Appends the coded bytes to `out`. `raw` has an even size.
  void encode(Codec codec, std::string_view raw, std::string& out);
  /// Exactly `raw_size` bytes, known before from the segment's header; nothing larger is ever allocated.
  /// Refuses any other content size, more than one frame, skippable frames and dictionaries.
  StatusOr<std::string> decode(Codec codec, std::string_view coded, std::size_t raw_size);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
  std::string plane_;
};

}  // namespace mesh::wire
