#include <gtest/gtest.h>

#include <cmath>

#include "node/engine/cuda/kernels/kernels_fixture.h"

// Against the formulas in float64. A float32 sum of n products is off by at most n · 2⁻²⁴ · Σ|products|; a
// bfloat16 result by 2⁻⁸ of itself.
namespace mesh::engine::cuda {
namespace {

struct StreamCase {
  int rows, out, in;
  StreamStore store;
  bool norm, bias;
};

class Stream : public Kernels, public ::testing::WithParamInterface<StreamCase> {
 protected:
  void check() {
    const StreamCase& c = GetParam();
    const auto rows = static_cast<std::size_t>(c.rows), out = static_cast<std::size_t>(c.out),
               in = static_cast<std::size_t>(c.in);
    const Values weight = rounded(normal(out * in, 0.05)), x = rounded(normal(rows * in)), norm = normal(in);
    const Values bias = normal(out, 0.3);
    const bool gated = c.store == StreamStore::kSiluMul;
    const std::size_t width = gated ? out / 2 : out;
    const Values before = normal(rows * width);
    const Values entering = c.norm ? rounded(normed(x, norm, 1e-5)) : x;
    DeviceArray<std::uint16_t> weights(to_bf16(weight)), narrow_x(to_bf16(x)), gated_y(rows * width);
    DeviceArray<float> wide_x(to_float(x)), norms(to_float(norm)), biases(to_float(bias)),
        y(to_float(before));
    const StreamLinear linear{.weight = weights.data(),
                              .bias = c.bias ? biases.data() : nullptr,
                              .out = c.out,
                              .in = c.in,
                              .x = c.norm ? static_cast<const void*>(wide_x.data()) : narrow_x.data(),
                              .norm = c.norm ? norms.data() : nullptr,
                              .epsilon = 1e-5f,
                              .rows = c.rows,
                              .store = c.store,
                              .y = gated ? static_cast<void*>(gated_y.data()) : y.data()};
    done(stream_linear(launch_, linear));
    const Values actual = gated ? from_bf16(gated_y.host()) : from_float(y.host());
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < width; ++i) {
        const auto product = [&](std::size_t at, double& sum, double& off) {
          double size = 0, most = 0;
          sum = c.bias ? bias[at] : 0;
          for (std::size_t k = 0; k < in; ++k) {
            const double term = weight[at * in + k] * entering[row * in + k];
            sum += term, size += std::abs(term), most = std::max(most, std::abs(term));
          }
          off = static_cast<double>(in) * 0x1p-24 * size + 1e-6;
          if (c.norm) off += 4 * kRound * most;  // a norm that rounds the other way
        };
        double sum = 0, off = 0, up = 0, up_off = 0;
        product(i, sum, off);
        double expected = sum;
        if (gated) {
          product(i + width, up, up_off);
          expected = silu(sum) * up;
          off = 1.1 * off * std::abs(up) + up_off * std::abs(silu(sum)) + kRound * std::abs(expected) + 1e-6;
        }
        if (c.store == StreamStore::kAdd) expected += before[row * width + i], off += 1e-6;
        ASSERT_NEAR(actual[row * width + i], expected, off) << "row " << row << " output " << i;
      }
    }
  }
};

TEST_P(Stream, GivesTheProduct) {
  check();
}

INSTANTIATE_TEST_SUITE_P(Shapes, Stream,
                         ::testing::Values(StreamCase{1, 40, 64, StreamStore::kAssign, false, false},
                                           StreamCase{1, 384, 576, StreamStore::kAssign, true, true},
                                           StreamCase{2, 2000, 1032, StreamStore::kAdd, false, true},
                                           StreamCase{1, 96, 14336, StreamStore::kAdd, false, false},
                                           StreamCase{2, 6000, 2048, StreamStore::kAssign, true, true},
                                           StreamCase{2, 1024, 4096, StreamStore::kSiluMul, true, false},
                                           StreamCase{1, 9000, 1536, StreamStore::kSiluMul, false, true},
                                           StreamCase{2, 200, 5120, StreamStore::kSiluMul, true, true}));

TEST_F(Kernels, NormAddsWhatIsPendingAndKeepsTheSum) {
  constexpr std::size_t kRows = 5, kWidth = 9000;
  const Values x = normal(kRows * kWidth), delta = normal(kRows * kWidth), bias = normal(kWidth),
               weight = normal(kWidth);
  DeviceArray<float> xs(to_float(x)), deltas(to_float(delta)), biases(to_float(bias)),
      weights(to_float(weight));
  DeviceArray<std::uint16_t> out(kRows * kWidth);
  done(norm_rows(launch_, xs.data(), deltas.data(), biases.data(), weights.data(), 1e-5f, nullptr, out.data(),
                 kRows, kWidth));
  Values sum = x;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += delta[i] + bias[i % kWidth];
  const Values expected = normed(sum, weight, 1e-5), kept = from_float(xs.host()),
               actual = from_bf16(out.host());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(kept[i], sum[i], 1e-5);
    ASSERT_NEAR(actual[i], expected[i], kRound * std::abs(expected[i]) + 1e-5);
  }
}

TEST_F(Kernels, NormPicksTheSampledRows) {
  constexpr std::size_t kWidth = 64;
  const Values x = normal(4 * kWidth), weight = normal(kWidth);
  DeviceArray<float> xs(to_float(x)), weights(to_float(weight));
  DeviceArray<int> sampled(std::vector<int>{3, 1});
  DeviceArray<std::uint16_t> out(2 * kWidth);
  done(norm_rows(launch_, xs.data(), nullptr, nullptr, weights.data(), 1e-5f, sampled.data(), out.data(), 2,
                 kWidth));
  const Values all = normed(x, weight, 1e-5), actual = from_bf16(out.host());
  for (std::size_t i = 0; i < kWidth; ++i) {
    ASSERT_NEAR(actual[i], all[3 * kWidth + i], kRound * std::abs(all[3 * kWidth + i]) + 1e-6);
    ASSERT_NEAR(actual[kWidth + i], all[kWidth + i], kRound * std::abs(all[kWidth + i]) + 1e-6);
  }
}

TEST_F(Kernels, FinishTellsRowsThatAreNotFinite) {
  std::vector<float> x(3 * 64, 1.0f);
  x[64 + 63] = INFINITY;
  x[2 * 64] = NAN;
  DeviceArray<float> xs(x);
  DeviceArray<int> finite(3);
  done(finish_rows(launch_, xs.data(), nullptr, nullptr, finite.data(), 3, 64));
  EXPECT_EQ(finite.host(), (std::vector<int>{1, 0, 0}));
}

TEST_F(Kernels, GateIsSiluTimesUp) {
  constexpr std::size_t kRows = 3, kInner = 2056;
  const Values x = rounded(normal(kRows * 2 * kInner)), bias = normal(2 * kInner);
  DeviceArray<std::uint16_t> xs(to_bf16(x)), out(kRows * kInner);
  DeviceArray<float> biases(to_float(bias));
  done(silu_mul_rows(launch_, xs.data(), biases.data(), out.data(), kRows, kInner));
  const Values actual = from_bf16(out.host());
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t i = 0; i < kInner; ++i) {
      const double expected =
          silu(x[row * 2 * kInner + i] + bias[i]) * (x[row * 2 * kInner + kInner + i] + bias[kInner + i]);
      ASSERT_NEAR(actual[row * kInner + i], expected, kRound * std::abs(expected) + 1e-5);
    }
  }
}

TEST_F(Kernels, BestTokenIsTheLowestAmongEqualsWithItsLogprob) {
  constexpr std::size_t kVocab = 200001;  // a thread has more values than it loads at a time
  Values logits = normal(3 * kVocab, 2);
  logits[777] = logits[1033] = logits[40000] = 20;
  logits[kVocab + kVocab - 1] = 30;
  std::vector<float> values = to_float(logits);
  values[2 * kVocab + 5] = NAN;
  DeviceArray<float> device(values);
  DeviceArray<std::uint8_t> scratch(std::vector<std::uint8_t>(best_scratch_bytes(3), 0));
  for (int round = 0; round < 2; ++round) {  // the scratch is left as it was found
    DeviceArray<Best> best(3);
    done(best_tokens(launch_, device.data(), 3, kVocab, scratch.data(), best.data()));
    const std::vector<Best> found = best.host();
    EXPECT_EQ(found[0].id, 777);
    EXPECT_EQ(found[1].id, static_cast<int>(kVocab) - 1);
    EXPECT_EQ(found[2].id, -1);
    for (std::size_t row = 0; row < 2; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < kVocab; ++i) sum += std::exp(double{values[row * kVocab + i]});
      const double best_logit = values[row * kVocab + static_cast<std::size_t>(found[row].id)];
      EXPECT_NEAR(found[row].logprob, best_logit - std::log(sum), 1e-4);
    }
  }
}

TEST_F(Kernels, NormalValuesHaveTheDeviationAskedForAndFollowTheSeed) {
  constexpr std::int64_t kCount = 1 << 20;
  DeviceArray<float> first(kCount), again(kCount), other(kCount);
  done(fill_normal(nullptr, first.data(), false, kCount, 3, 0.02f));
  done(fill_normal(nullptr, again.data(), false, kCount, 3, 0.02f));
  done(fill_normal(nullptr, other.data(), false, kCount, 4, 0.02f));
  const std::vector<float> values = first.host();
  double sum = 0, squares = 0;
  for (const float value : values) sum += value, squares += double{value} * value;
  EXPECT_NEAR(sum / kCount, 0, 5 * 0.02 / std::sqrt(kCount));
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 0.02 * 5 / std::sqrt(2.0 * kCount));
  EXPECT_EQ(values, again.host());
  EXPECT_NE(values, other.host());
}

}  // namespace
}  // namespace mesh::engine::cuda
