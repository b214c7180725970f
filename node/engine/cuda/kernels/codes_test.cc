#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "node/engine/cuda/kernels/kernels_fixture.h"
#include "node/engine/cuda/kernels/step_ends.h"
#include "node/engine/ops/quantise.h"

// Products of quantised matrices against float64 sums over the weights that their codes mean
// (ops::dequantise_row, which is bitsandbytes'). Products of two halves are added in halves by eights: each
// rounding is off by 2⁻¹¹ of a partial sum.
namespace mesh::engine::cuda {
namespace {

using ops::MatrixFormat;
constexpr std::array kFormats{MatrixFormat::kInt8, MatrixFormat::kNf4, MatrixFormat::kFp8};

/// A quantised matrix on the GPU and its weights here.
struct Coded {
  int out, in, group;
  MatrixFormat format;
  std::vector<std::uint8_t> host_codes;
  std::vector<float> host_scales;
  std::vector<float> weights;
  std::unique_ptr<DeviceArray<std::uint8_t>> rows;

  Coded(MatrixFormat kind, int outs, int ins, const Values& values) : out(outs), in(ins), format(kind) {
    group = static_cast<int>(ops::scale_group(format, in));
    const auto code_bytes = static_cast<std::size_t>(ops::code_bytes(format, in));
    const std::size_t groups = std::size_t(in / group);
    host_codes.resize(code_bytes * std::size_t(out));
    host_scales.resize(groups * std::size_t(out));
    weights.resize(std::size_t(in) * std::size_t(out));
    const std::vector<float> narrow = to_float(values);
    for (std::size_t row = 0; row < std::size_t(out); ++row) {
      std::uint8_t* row_codes = host_codes.data() + row * code_bytes;
      float* row_scales = host_scales.data() + row * groups;
      EXPECT_TRUE(
          ops::quantise_row(format, narrow.data() + row * std::size_t(in), in, row_codes, row_scales));
      ops::dequantise_row(format, row_codes, row_scales, in, weights.data() + row * std::size_t(in));
    }
    const CodedMatrix layout{nullptr, format, out, in, group};
    const auto row_bytes = std::size_t(layout.row_bytes());
    std::vector<std::uint8_t> laid(row_bytes * std::size_t(out), 0xFF);
    for (std::size_t row = 0; row < std::size_t(out); ++row) {
      lay_row(layout, host_codes.data() + row * code_bytes, host_scales.data() + row * groups,
              reinterpret_cast<std::byte*>(laid.data()) + row * row_bytes);
    }
    rows = std::make_unique<DeviceArray<std::uint8_t>>(laid);
  }
  CodedMatrix matrix() const { return {rows->data(), format, out, in, group}; }

  double product(std::size_t at, std::span<const double> x, double* size = nullptr) const {
    double sum = 0, all = 0;
    for (std::size_t k = 0; k < std::size_t(in); ++k) {
      const double term = double{weights[at * std::size_t(in) + k]} * x[k];
      sum += term, all += std::abs(term);
    }
    if (size != nullptr) *size = all;
    return sum;
  }
};

/// Errors of many values: none beyond its bound, and small on the whole.
class Errors {
 public:
  void add(double actual, double expected, double bound) {
    ASSERT_NEAR(actual, expected, bound);
    squares_ += (actual - expected) * (actual - expected);
    size_ += expected * expected;
  }
  double relative() const { return std::sqrt(squares_ / size_); }

 private:
  double squares_ = 0, size_ = 0;
};

struct CodedCase {
  int rows, out, in;
  StreamStore store;
  bool norm, bias;
  double input_deviation = 1;
};

class CodedStream : public Kernels,
                    public ::testing::WithParamInterface<std::tuple<MatrixFormat, CodedCase>> {};

TEST_P(CodedStream, GivesTheProduct) {
  const auto& [format, c] = GetParam();
  const auto rows = static_cast<std::size_t>(c.rows), out = static_cast<std::size_t>(c.out),
             in = static_cast<std::size_t>(c.in);
  const Coded coded(format, c.out, c.in, normal(out * in, 0.05));
  const Values x = rounded(normal(rows * in, c.input_deviation)), norm = normal(in), bias = normal(out, 0.3);
  const bool gated = c.store == StreamStore::kSiluMul;
  const std::size_t width = gated ? out / 2 : out;
  const Values before = normal(rows * width);
  const Values entering = c.norm ? normed(x, norm, 1e-5) : x;
  DeviceArray<std::uint16_t> narrow_x(to_bf16(x)), gated_y(rows * width);
  DeviceArray<float> wide_x(to_float(x)), norms(to_float(norm)), biases(to_float(bias)), y(to_float(before));
  done(stream_linear(launch_, {.bias = c.bias ? biases.data() : nullptr,
                               .out = c.out,
                               .in = c.in,
                               .x = c.norm ? static_cast<const void*>(wide_x.data()) : narrow_x.data(),
                               .norm = c.norm ? norms.data() : nullptr,
                               .epsilon = 1e-5f,
                               .rows = c.rows,
                               .store = c.store,
                               .y = gated ? static_cast<void*>(gated_y.data()) : y.data(),
                               .coded = coded.matrix()}));
  const Values actual = gated ? from_bf16(gated_y.host()) : from_float(y.host());
  Errors errors;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto inputs = std::span(entering).subspan(row * in, in);
    for (std::size_t i = 0; i < width; ++i) {
      double size = 0, up_size = 0;
      double expected = coded.product(i, inputs, &size) + (c.bias ? bias[i] : 0);
      double off = size * 0x1p-8 + 1e-6;
      if (gated) {
        const double up = coded.product(i + width, inputs, &up_size) + (c.bias ? bias[i + width] : 0);
        off = 1.1 * off * std::abs(up) + up_size * 0x1p-8 * std::abs(silu(expected));
        expected = silu(expected) * up;
        off += kRound * std::abs(expected) + 1e-5;
      }
      if (c.store == StreamStore::kAdd) expected += before[row * width + i];
      errors.add(actual[row * width + i], expected, off);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_LT(errors.relative(), gated ? 0x1p-8 : 0x1p-10);
}

class CodedInputs : public Kernels, public ::testing::WithParamInterface<MatrixFormat> {};

// A step tells by it that a row is not finite.
TEST_P(CodedInputs, ThatAreNoNumbersReachEveryOutput) {
  constexpr int kOut = 34, kIn = 832;
  const Coded coded(GetParam(), kOut, kIn, normal(std::size_t{kOut} * kIn, 0.05));
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const bool with_norm : {false, true}) {
      std::vector<float> x = to_float(normal(kIn));
      x[300] = bad;
      DeviceArray<std::uint16_t> narrow_x(to_bf16(Values(x.begin(), x.end())));
      DeviceArray<float> wide_x(x), norm(to_float(normal(kIn))), y(std::size_t{kOut});
      done(stream_linear(launch_, {.out = kOut,
                                   .in = kIn,
                                   .x = with_norm ? static_cast<const void*>(wide_x.data()) : narrow_x.data(),
                                   .norm = with_norm ? norm.data() : nullptr,
                                   .epsilon = 1e-5f,
                                   .rows = 1,
                                   .y = y.data(),
                                   .coded = coded.matrix()}));
      for (const float value : y.host()) EXPECT_FALSE(std::isfinite(value)) << bad;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Formats, CodedInputs, ::testing::ValuesIn(kFormats));

INSTANTIATE_TEST_SUITE_P(
    Shapes, CodedStream,
    ::testing::Combine(::testing::ValuesIn(kFormats),
                       ::testing::Values(CodedCase{1, 40, 64, StreamStore::kAssign, false, false},
                                         CodedCase{2, 41, 192, StreamStore::kAssign, false, true},
                                         CodedCase{1, 384, 576, StreamStore::kAssign, true, true},
                                         CodedCase{2, 2000, 1088, StreamStore::kAdd, false, true},
                                         CodedCase{1, 96, 14336, StreamStore::kAdd, false, false, 3000},
                                         CodedCase{2, 130, 14336, StreamStore::kAssign, false, false, 1e-6},
                                         CodedCase{2, 1024, 4096, StreamStore::kSiluMul, true, false},
                                         CodedCase{1, 9000, 1536, StreamStore::kSiluMul, false, true},
                                         CodedCase{2, 64, 28672, StreamStore::kAdd, false, false})));

// 99 KiB are what a block of a GeForce of the 30 and 40 series may take.
TEST(CodedRoom, OneRowOfAnEightBillionModelFitsAHomeGpu) {
  for (const MatrixFormat format : kFormats) {
    CodedMatrix matrix{nullptr, format, 4096, 14336, static_cast<int>(ops::scale_group(format, 14336))};
    std::byte here{};
    matrix.rows = &here;
    EXPECT_LE(stream_bytes({.in = 14336, .rows = 1, .coded = matrix}), 99u * 1024);
  }
}

TEST_F(Kernels, CodedStreamOfInputsThatAreNotFiniteIsNotFinite) {
  for (const MatrixFormat format : kFormats) {
    const Coded coded(format, 16, 256, normal(16 * 256));
    for (const float bad : {INFINITY, NAN}) {
      Values x = normal(256);
      x[77] = bad;
      std::vector<std::uint16_t> narrow = to_bf16(x);
      if (std::isnan(bad)) narrow[77] = 0x7fc0;
      DeviceArray<std::uint16_t> xs(narrow);
      DeviceArray<float> y(16);
      done(stream_linear(
          launch_,
          {.out = 16, .in = 256, .x = xs.data(), .rows = 1, .y = y.data(), .coded = coded.matrix()}));
      const std::vector<float> values = y.host();
      EXPECT_TRUE(std::ranges::none_of(values, [](float v) { return std::isfinite(v); }));
    }
  }
}

class CodedTile : public Kernels,
                  public ::testing::WithParamInterface<std::tuple<MatrixFormat, int, std::pair<int, int>>> {};

TEST_P(CodedTile, GivesTheProduct) {
  if (major_ < 8) GTEST_SKIP() << "no bfloat16 tensor cores";
  const auto& [format, row_count, shape] = GetParam();
  const auto rows = static_cast<std::size_t>(row_count), out = static_cast<std::size_t>(shape.first),
             in = static_cast<std::size_t>(shape.second);
  const Coded coded(format, shape.first, shape.second, normal(out * in, 0.05));
  const Values x = rounded(normal(rows * in, 2));
  DeviceArray<std::uint16_t> xs(to_bf16(x)), narrow_y(rows * out);
  DeviceArray<float> y(rows * out);
  done(tile_codes(launch_, coded.matrix(), xs.data(), row_count, y.data(), false));
  done(tile_codes(launch_, coded.matrix(), xs.data(), row_count, narrow_y.data(), true));
  const Values actual = from_float(y.host()), narrow = from_bf16(narrow_y.host());
  Errors errors;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < out; ++i) {
      double size = 0;
      const double expected = coded.product(i, std::span(x).subspan(row * in, in), &size);
      errors.add(actual[row * out + i], expected, size * kRound + 1e-6);  // quantiles become bfloat16
      if (HasFatalFailure()) return;
      ASSERT_NEAR(narrow[row * out + i], actual[row * out + i], kRound * std::abs(actual[row * out + i]));
    }
  }
  EXPECT_LT(errors.relative(), format == MatrixFormat::kNf4 ? 0x1p-8 : 0x1p-16);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CodedTile,
    ::testing::Combine(::testing::ValuesIn(kFormats), ::testing::Values(3, 8, 16, 31, 48, 64),
                       ::testing::Values(std::pair(40, 64), std::pair(200, 1088), std::pair(32, 4096))));

TEST_F(Kernels, DequantisedWeightsAreTheCodesBitForBit) {
  for (const MatrixFormat format : kFormats) {
    for (const auto& [out, in] : {std::pair(33, 512), std::pair(5, 192), std::pair(3, 100)}) {
      if (format == MatrixFormat::kNf4 && in % 64 != 0) continue;
      const Coded coded(format, out, in, normal(std::size_t(out * in), 0.05));
      DeviceArray<float> wide(coded.weights.size());
      DeviceArray<std::uint16_t> narrow(coded.weights.size());
      done(dequantise(launch_, coded.matrix(), nullptr, out, wide.data(), false));
      done(dequantise(launch_, coded.matrix(), nullptr, out, narrow.data(), true));
      EXPECT_EQ(wide.host(), coded.weights);
      std::vector<std::uint16_t> expected;
      for (const float weight : coded.weights) expected.push_back(bf16(weight));
      EXPECT_EQ(narrow.host(), expected);

      DeviceArray<int> picked(std::vector<int>{2, 0});
      DeviceArray<float> two(2 * std::size_t(in));
      done(dequantise(launch_, coded.matrix(), picked.data(), 2, two.data(), false));
      const auto row = [&](std::size_t at) {
        const auto first = coded.weights.begin() + std::ptrdiff_t(at) * in;
        return std::vector<float>(first, first + in);
      };
      std::vector<float> rows = row(2);
      const std::vector<float> second = row(0);
      rows.insert(rows.end(), second.begin(), second.end());
      EXPECT_EQ(two.host(), rows);
    }
  }
}

TEST_F(Kernels, InputRowsOfACodedEmbeddingAreItsWeights) {
  for (const MatrixFormat format : kFormats) {
    const Coded coded(format, 20, 128, normal(20 * 128));
    HostArray<HostTables> host;
    host->block_count = 0;
    host->ids[0] = 19, host->ids[1] = kNoRow, host->ids[2] = 4;
    DeviceArray<HostTables> tables(1);
    DeviceArray<float> x(3 * 128);
    StepInput input{.host = host.data(), .device = tables.data(), .rows = 3, .hidden = 128};
    input.coded = coded.matrix(), input.x = x.data();
    done(begin_step(launch_, input));
    const std::vector<float> rows = x.host();
    for (std::size_t i = 0; i < 128; ++i) {
      ASSERT_EQ(rows[i], coded.weights[19 * 128 + i]);
      ASSERT_EQ(rows[128 + i], 0);
      ASSERT_EQ(rows[256 + i], coded.weights[4 * 128 + i]);
    }
  }
}

TEST_F(Kernels, MadeUpCodesAreNumbersAndFollowTheSeed) {
  for (const MatrixFormat format : kFormats) {
    constexpr std::size_t kOut = 256, kIn = 1024;
    const int group = static_cast<int>(ops::scale_group(format, kIn));
    const auto weights_of = [&](std::uint64_t seed) {
      CodedMatrix matrix{nullptr, format, kOut, kIn, group};
      DeviceArray<std::uint8_t> rows(kOut * std::size_t(matrix.row_bytes()));
      matrix.rows = rows.data();
      DeviceArray<float> weights(kOut * kIn);
      done(fill_codes(nullptr, matrix, seed, 0.02f));
      done(dequantise(launch_, matrix, nullptr, kOut, weights.data(), false));
      return weights.host();
    };
    const std::vector<float> weights = weights_of(5);
    double sum = 0, squares = 0;
    for (const float weight : weights) sum += weight, squares += double{weight} * weight;
    EXPECT_NEAR(sum / (kOut * kIn), 0, 0.002);
    EXPECT_NEAR(std::sqrt(squares / (kOut * kIn)), 0.02, 0.006);
    EXPECT_EQ(weights, weights_of(5));
    EXPECT_NE(weights, weights_of(6));
  }
}

}  // namespace
}  // namespace mesh::engine::cuda
