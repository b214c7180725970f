#pragma once

#include <initializer_list>
#include <string_view>

#include "common/json/view.h"
#include "node/engine/models/decoder_spec.h"

namespace mesh::engine {

/// An error that names the first of `keys` whose value is neither absent, null, false, 0, 1 nor empty: a
/// change of the mathematics that the family does not know.
Status refuse_keys(const json::View& config, std::initializer_list<std::string_view> keys);
/// refuse_keys() for what no family here knows (softcaps, multipliers, experts, …).
Status refuse_foreign_keys(const json::View& config);

/// An integer in [1, high]; an error when absent.
StatusOr<std::uint32_t> size_field(const json::View& config, std::string_view key, std::uint32_t high);
StatusOr<std::uint32_t> size_field_or(const json::View& config, std::string_view key, std::uint32_t high,
                                      std::uint32_t fallback);
/// dtype or torch_dtype, without "torch."; empty when absent.
StatusOr<std::string> stated_dtype(const json::View& config);
/// silu, gelu_new, gelu_pytorch_tanh or gelu; an error that lists them.
StatusOr<Activation> activation_field(const json::View& config, std::string_view key,
                                      std::string_view fallback);
/// A finite number above 0.
StatusOr<float> epsilon_field(const json::View& config, std::string_view key, double fallback);

inline constexpr std::uint32_t kMaxLayers = 4096;
inline constexpr std::uint32_t kMaxHidden = 65536;
inline constexpr std::uint32_t kMaxIntermediate = 1u << 20;
inline constexpr std::uint32_t kMaxVocab = 1u << 24;
inline constexpr std::uint32_t kMaxHeads = 4096;
inline constexpr std::uint32_t kMaxHeadDim = 1024;
inline constexpr std::uint32_t kMaxPositions = 1u << 26;

}  // namespace mesh::engine
