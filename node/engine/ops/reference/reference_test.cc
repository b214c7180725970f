// The CPU kernels against the same ops through ATen, at the shapes of real models.
#include "node/engine/ops/reference/reference.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "node/engine/ops/activation.h"
#include "node/engine/ops/attention.h"
#include "node/engine/ops/layer_norm.h"
#include "node/engine/ops/linear.h"
#include "node/engine/ops/ops_test_util.h"
#include "node/engine/ops/rms_norm.h"
#include "node/engine/ops/rotary.h"

namespace mesh::ops {
namespace {

class Reference : public testing::TestWithParam<CpuPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, Reference, testing::ValuesIn(available_cpu_paths()), path_name);

at::Tensor tensor(std::vector<float>& values, at::IntArrayRef shape) {
  return at::from_blob(values.data(), shape);
}

void expect_close(std::vector<float>& ours, const at::Tensor& theirs, double tolerance) {
  EXPECT_TRUE(at::allclose(tensor(ours, theirs.sizes()), theirs, tolerance, tolerance));
}

TEST_P(Reference, LinearOfSmolLm2) {
  const auto backend = backend_for(GetParam());
  const std::int64_t m = 17, n = 960, k = 576;
  auto x = random_values(m * k, 1), w = random_values(n * k, 2, 0.02f), b = random_values(n, 3);
  auto packer = LinearPacker::create(n, k, Element::kF32);
  ASSERT_TRUE(packer->append_rows(w.data(), Element::kF32, n, k).ok());
  ASSERT_TRUE(packer->set_bias(0, b).ok());
  std::vector<float> y(static_cast<std::size_t>(m * n));
  linear(*backend, *packer->finish(), as_const(x, m), as_matrix(y, m));
  expect_close(y, reference::linear(tensor(x, {m, k}), tensor(w, {n, k}), tensor(b, {n})), 1e-5);
}

TEST_P(Reference, NormsAndActivations) {
  const auto backend = backend_for(GetParam());
  const std::int64_t rows = 5, n = 576;
  auto x = random_values(rows * n, 1), w = random_values(n, 2), b = random_values(n, 3);
  const at::Tensor in = tensor(x, {rows, n}), weight = tensor(w, {n}), bias = tensor(b, {n});
  std::vector<float> y(x.size());
  rms_norm(*backend, as_const(x, rows), w.data(), 1e-5f, as_matrix(y, rows));
  expect_close(y, reference::rms_norm(in, weight, 1e-5), 1e-5);
  layer_norm(*backend, as_const(x, rows), w.data(), b.data(), 1e-5f, as_matrix(y, rows));
  expect_close(y, reference::layer_norm(in, weight, bias, 1e-5), 1e-5);
  y = x;
  gelu_tanh(*backend, as_matrix(y, rows));
  expect_close(y, reference::gelu_tanh(in), 1e-5);
  y = x;
  gelu_exact(*backend, as_matrix(y, rows));
  expect_close(y, reference::gelu_exact(in), 1e-5);
  y.resize(y.size() / 2);
  silu_mul(*backend, as_const(x, rows), as_matrix(y, rows));
  expect_close(y, reference::silu_mul(in), 1e-5);
}

TEST_P(Reference, RotaryOfPartOfTheHead) {
  const auto backend = backend_for(GetParam());
  auto x = random_values(6 * 3 * 64, 1), cos = random_values(6 * 16, 2), sin = random_values(6 * 16, 3);
  const at::Tensor expected =
      reference::rotary(tensor(x, {6, 3, 64}), tensor(cos, {6, 16}), tensor(sin, {6, 16}));
  auto y = x;
  rotary(*backend, as_matrix(y, 6), 3, as_const(cos, 6), as_const(sin, 6));
  expect_close(y, expected, 1e-5);
}

TEST_P(Reference, AttentionWithWindowAndMask) {
  const auto backend = backend_for(GetParam());
  const std::int64_t heads = 9, kv = 3, d = 64, start = 130, rows = 20, all = start + rows;
  const KvLayout layout{kv, d, Element::kF32};
  auto q = random_values(rows * heads * d, 1), k = random_values(all * kv * d, 2),
       v = random_values(all * kv * d, 3);
  auto added = random_values(rows * all, 4);
  const auto memory = *AlignedBytes::allocate(static_cast<std::size_t>(2 * layout.block_bytes()));
  std::byte* const blocks[] = {memory.data(), memory.data() + layout.block_bytes()};
  const AttentionSegment whole{0, all, 0, blocks};
  append_kv(*backend, layout, {&whole, 1}, as_const(k, all), as_const(v, all));
  for (const bool masked : {false, true}) {
    for (const std::int64_t window : {0, 40}) {
      const AttentionSegment segment{0, rows, start, blocks, masked ? added.data() : nullptr, all};
      std::vector<float> out(q.size());
      attention(*backend, layout, {heads, window, 0.125f}, {&segment, 1}, as_const(q, rows),
                as_matrix(out, rows));
      const at::Tensor mask = masked ? tensor(added, {rows, all}) : at::Tensor();
      expect_close(out,
                   reference::attention(tensor(q, {rows, heads, d}), tensor(k, {all, kv, d}),
                                        tensor(v, {all, kv, d}), mask, {start, window, 0.125}),
                   1e-5);
    }
  }
}

}  // namespace
}  // namespace mesh::ops
