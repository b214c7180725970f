#pragma once

#include <gtest/gtest.h>

#include "node/engine/ops/linear.h"
#include "node/engine/ops/ops_test_util.h"
#include "node/engine/ops/quantise.h"

namespace mesh::ops {

/// Random codes and scales of a whole matrix, what they mean, and the same packed.
struct Quantised {
  std::vector<float> weight;  // [n, k]
  PackedLinear packed;
};

inline Quantised random_matrix(MatrixFormat format, std::int64_t n, std::int64_t k,
                               const std::vector<float>& bias = {}, const PackOptions& options = {}) {
  std::mt19937 engine(7);
  const std::int64_t groups = k / scale_group(format, k), bytes = code_bytes(format, k);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * bytes));
  for (std::uint8_t& code : codes) {
    do {
      code = static_cast<std::uint8_t>(engine());
    } while (format == MatrixFormat::kFp8 && (code & 0x7F) == 0x7F);  // no number
  }
  std::vector<float> scales = random_values(n * groups, 8);
  Quantised made;
  made.weight.resize(static_cast<std::size_t>(n * k));
  for (std::int64_t row = 0; row < n; ++row) {
    dequantise_row(format, codes.data() + row * bytes, scales.data() + row * groups, k,
                   made.weight.data() + row * k);
  }
  auto packer = QuantisedPacker::create(n, k, format, options);
  EXPECT_TRUE(packer.ok());
  const std::int64_t first = n / 3;  // in two pieces
  EXPECT_TRUE(packer->append(codes.data(), scales.data(), first).ok());
  EXPECT_TRUE(packer->append(codes.data() + first * bytes, scales.data() + first * groups, n - first).ok());
  if (!bias.empty()) {
    EXPECT_TRUE(packer->set_bias(0, bias).ok());
  }
  auto packed = packer->finish();
  EXPECT_TRUE(packed.ok());
  made.packed = *std::move(packed);
  return made;
}

inline std::string_view format_name(MatrixFormat format) {
  constexpr std::string_view kNames[] = {"F32", "Bf16", "Int8", "Nf4", "Fp8"};
  return kNames[static_cast<std::size_t>(format)];
}

}  // namespace mesh::ops
