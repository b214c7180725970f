#include "common/wire/codec.h"

#include <zstd.h>

#include "common/base/check.h"

namespace mesh::wire {
namespace {

/// bf16 is sign (1), exponent (8), mantissa (7): the high byte holds the sign and seven exponent bits, the
/// low byte the exponent's last bit and the mantissa. Rotating the pair left by one makes the exponent a byte
/// of its own.
void split(std::string_view raw, std::string& exponents, std::string& rest) {
  const std::size_t count = raw.size() / 2;
  exponents.resize(count);
  const std::size_t at = rest.size();
  rest.resize(at + count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto low = static_cast<unsigned char>(raw[2 * i]);
    const auto high = static_cast<unsigned char>(raw[2 * i + 1]);
    exponents[i] = static_cast<char>(high << 1 | low >> 7);
    rest[at + i] = static_cast<char>((high & 0x80) | (low & 0x7f));
  }
}

void join(std::string_view exponents, std::string_view rest, std::string& raw) {
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    const auto exponent = static_cast<unsigned char>(exponents[i]);
    const auto tail = static_cast<unsigned char>(rest[i]);
    raw[2 * i] = static_cast<char>(exponent << 7 | (tail & 0x7f));
    raw[2 * i + 1] = static_cast<char>((tail & 0x80) | exponent >> 1);
  }
}

}  // namespace

struct HiddenCodec::Contexts {
  ZSTD_CCtx* compress = ZSTD_createCCtx();
  ZSTD_CCtx* literals = ZSTD_createCCtx();
  ZSTD_DCtx* decompress = ZSTD_createDCtx();

  Contexts() {
    MESH_CHECK(compress && literals && decompress);
    ZSTD_CCtx_setParameter(compress, ZSTD_c_compressionLevel, 1);
    // Exponents have no repeats worth finding: matches of seven bytes or more, so that Huffman does the work.
    ZSTD_CCtx_setParameter(literals, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(literals, ZSTD_c_minMatch, 7);
  }
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() {
    ZSTD_freeCCtx(compress);
    ZSTD_freeCCtx(literals);
    ZSTD_freeDCtx(decompress);
  }

  static void append(ZSTD_CCtx* context, std::string_view raw, std::string& out) {
    const std::size_t at = out.size();
    out.resize(at + ZSTD_compressBound(raw.size()));
    const std::size_t size =
        ZSTD_compress2(context, out.data() + at, out.size() - at, raw.data(), raw.size());
    MESH_CHECK(!ZSTD_isError(size));
    out.resize(at + size);
  }

  Status restore(std::string_view coded, std::size_t raw_size, std::string& raw) const {
    const unsigned long long content = ZSTD_getFrameContentSize(coded.data(), coded.size());
    if (content == ZSTD_CONTENTSIZE_ERROR)
      return error(StatusCode::kInvalidArgument, "hidden states: not a zstd frame");
    if (content != raw_size) {
      return error(
          StatusCode::kInvalidArgument, "hidden states: the zstd frame says {} bytes, the header implies {}",
          content == ZSTD_CONTENTSIZE_UNKNOWN ? "an unknown number of" : std::to_string(content), raw_size);
    }
    if (ZSTD_getDictID_fromFrame(coded.data(), coded.size()) != 0) {
      return error(StatusCode::kInvalidArgument, "hidden states: the zstd frame wants a dictionary");
    }
    if (ZSTD_findFrameCompressedSize(coded.data(), coded.size()) != coded.size()) {
      return error(StatusCode::kInvalidArgument, "hidden states: expected exactly one whole zstd frame");
    }
    raw.resize(raw_size);
    const std::size_t got = ZSTD_decompressDCtx(decompress, raw.data(), raw_size, coded.data(), coded.size());
    if (ZSTD_isError(got))
      return error(StatusCode::kInvalidArgument, "hidden states: {}", ZSTD_getErrorName(got));
    if (got != raw_size) return error(StatusCode::kInvalidArgument, "hidden states: the zstd frame is short");
    return absl::OkStatus();
  }
};

HiddenCodec::HiddenCodec() : contexts_(std::make_unique<Contexts>()) {}
HiddenCodec::~HiddenCodec() = default;
HiddenCodec::HiddenCodec(HiddenCodec&&) noexcept = default;
HiddenCodec& HiddenCodec::operator=(HiddenCodec&&) noexcept = default;

void HiddenCodec::encode(Codec codec, std::string_view raw, std::string& out) {
  MESH_CHECK(raw.size() % 2 == 0);
  switch (codec) {
    case Codec::kIdentity:
      out.append(raw);
      return;
    case Codec::kZstd:
      Contexts::append(contexts_->compress, raw, out);
      return;
    case Codec::kSplit: {
      std::string rest;
      split(raw, plane_, rest);
      Contexts::append(contexts_->literals, plane_, out);
      out.append(rest);
      return;
    }
  }
}

StatusOr<std::string> HiddenCodec::decode(Codec codec, std::string_view coded, std::size_t raw_size) {
  MESH_CHECK(raw_size % 2 == 0);
  std::string raw;
  switch (codec) {
    case Codec::kIdentity:
      if (coded.size() != raw_size) {
        return error(StatusCode::kInvalidArgument, "hidden states: {} bytes came, the header implies {}",
                     coded.size(), raw_size);
      }
      return std::string(coded);
    case Codec::kZstd:
      MESH_RETURN_IF_ERROR(contexts_->restore(coded, raw_size, raw));
      return raw;
    case Codec::kSplit: {
      const std::size_t count = raw_size / 2;
      if (coded.size() < count) {
        return error(StatusCode::kInvalidArgument, "hidden states: {} bytes cannot hold {} mantissas",
                     coded.size(), count);
      }
      MESH_RETURN_IF_ERROR(contexts_->restore(coded.substr(0, coded.size() - count), count, plane_));
      raw.resize(raw_size);
      join(plane_, coded.substr(coded.size() - count), raw);
      return raw;
    }
  }
  return error(StatusCode::kInvalidArgument, "hidden states: unknown codec {}", static_cast<int>(codec));
}

StatusOr<CodecPolicy> parse_codec_policy(std::string_view name) {
  if (name == "auto") return CodecPolicy::kAuto;
  if (name == "zstd") return CodecPolicy::kZstd;
  if (name == "split") return CodecPolicy::kSplit;
  if (name == "identity") return CodecPolicy::kIdentity;
  return error(StatusCode::kInvalidArgument,
               "unknown wire codec \"{}\": expected auto, zstd, split or identity", name);
}

std::string_view name_of(Codec codec) {
  switch (codec) {
    case Codec::kIdentity:
      return "identity";
    case Codec::kZstd:
      return "zstd";
    case Codec::kSplit:
      return "split";
  }
  return "unknown";
}

}  // namespace mesh::wire
