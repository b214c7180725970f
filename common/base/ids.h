#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace mesh {

/// Lower-case hex of `bytes`.
std::string to_hex(std::string_view bytes);
/// The bytes that `hex` spells (either case); nothing if it is not hex of even length.
std::optional<std::string> from_hex(std::string_view hex);

/// N opaque bytes with a type of their own; written as 2·N hex digits.
template <class Tag, std::size_t N>
struct OpaqueId {
  std::array<std::uint8_t, N> bytes{};

  static constexpr std::size_t kSize = N;
  friend auto operator<=>(const OpaqueId&, const OpaqueId&) = default;
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), N}; }
  std::string hex() const { return to_hex(view()); }
  bool empty() const { return *this == OpaqueId{}; }

  static std::optional<OpaqueId> from_bytes(std::string_view raw) {
    if (raw.size() != N) return std::nullopt;
    OpaqueId id;
    for (std::size_t i = 0; i < N; ++i) id.bytes[i] = static_cast<std::uint8_t>(raw[i]);
    return id;
  }
  static std::optional<OpaqueId> parse(std::string_view hex_digits) {
    const auto raw = from_hex(hex_digits);
    return raw ? from_bytes(*raw) : std::nullopt;
  }
};

/// A counter with a type of its own.
template <class Tag>
struct Ordinal {
  std::uint64_t value = 0;

  friend auto operator<=>(const Ordinal&, const Ordinal&) = default;
  Ordinal next() const { return {value + 1}; }
};

/// SHA-256 of a node's ed25519 public key.
using NodeId = OpaqueId<struct NodeTag, 32>;
using SessionId = OpaqueId<struct SessionTag, 16>;
/// 32 random bytes from the head; keys the MAC of a session's frames and token messages.
using SessionSecret = OpaqueId<struct SecretTag, 32>;
using Sha256 = OpaqueId<struct Sha256Tag, 32>;
/// Hash over the hashes of a model's files, the quantisation and the data type: equal identity, equal
/// outputs.
using ModelIdentity = OpaqueId<struct IdentityTag, 32>;

/// Numbers a plan; fences directives only.
using Epoch = Ordinal<struct EpochTag>;
/// Numbers the route of one session; only the head raises it.
using Generation = Ordinal<struct GenerationTag>;
/// Numbers segments; proto-docs/session.md says by whom and within what.
using Seq = Ordinal<struct SeqTag>;
/// Tokens before a row in its session.
using Position = std::uint32_t;
using TokenId = std::int32_t;

/// Layers [begin, end) of a model.
struct LayerRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend auto operator<=>(const LayerRange&, const LayerRange&) = default;
  std::uint32_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool contains(const LayerRange& other) const { return begin <= other.begin && other.end <= end; }
  bool contains(std::uint32_t layer) const { return begin <= layer && layer < end; }
};
std::string to_string(const LayerRange& range);

}  // namespace mesh

template <class Tag, std::size_t N>
struct std::hash<mesh::OpaqueId<Tag, N>> {
  std::size_t operator()(const mesh::OpaqueId<Tag, N>& id) const noexcept {
    return std::hash<std::string_view>{}(id.view());
  }
};
template <class Tag>
struct std::hash<mesh::Ordinal<Tag>> {
  std::size_t operator()(const mesh::Ordinal<Tag>& n) const noexcept {
    return std::hash<std::uint64_t>{}(n.value);
  }
};
