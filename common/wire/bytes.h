#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace mesh::wire {

/// Appends little-endian values to a buffer.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& out) : out_(out) {}

  template <std::integral T>
  void put(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i, bits = static_cast<decltype(bits)>(bits >> 7 >> 1)) {
      out_ += static_cast<char>(bits & 0xff);
    }
  }
  void put_float(float value) { put(std::bit_cast<std::uint32_t>(value)); }
  void put_bytes(std::string_view bytes) { out_.append(bytes); }

 private:
  std::string& out_;
};

/// Takes little-endian values from the front of a buffer. After the first read beyond the end all reads give
/// zero or nothing and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <std::integral T>
  T take() {
    const std::string_view raw = take_bytes(sizeof(T));
    std::make_unsigned_t<T> bits = 0;
    for (std::size_t i = raw.size(); i-- > 0;) {
      bits = static_cast<decltype(bits)>(bits << 7 << 1 | static_cast<unsigned char>(raw[i]));
    }
    return static_cast<T>(bits);
  }
  float take_float() { return std::bit_cast<float>(take<std::uint32_t>()); }
  /// Exactly `count` bytes, or an empty view.
  std::string_view take_bytes(std::uint64_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <class Id>
  Id take_id() {
    return Id::from_bytes(take_bytes(Id::kSize)).value_or(Id{});
  }

  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace mesh::wire
