#include "node/engine/ops/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "node/engine/ops/ops_test_util.h"

namespace mesh::ops {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

class Attention : public testing::TestWithParam<CpuPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, Attention, testing::ValuesIn(float32_paths()), path_name);

struct Shape {
  std::int64_t heads, kv_heads, dim;
  Element element = Element::kF32;
  std::int64_t window = 0;
};

// One session: its blocks, filled with a recognisable bad value, and its queries, keys and values [length,
// …].
struct Session {
  Shape shape;
  KvLayout layout;
  std::int64_t length;
  std::vector<AlignedBytes> memory;
  std::vector<std::byte*> blocks;
  std::vector<float> q, k, v;

  Session(const Shape& s, std::int64_t tokens, std::uint64_t seed)
      : shape(s),
        layout{s.kv_heads, s.dim, s.element},
        length(tokens),
        q(random_values(tokens * s.heads * s.dim, seed)),
        k(random_values(tokens * s.kv_heads * s.dim, seed + 1)),
        v(random_values(tokens * s.kv_heads * s.dim, seed + 2)) {
    if (s.element == Element::kBf16) {
      k = rounded_to_bf16(k);
      v = rounded_to_bf16(v);
    }
    for (std::int64_t i = 0; i * KvLayout::kBlock < tokens; ++i) {
      memory.push_back(*AlignedBytes::allocate(static_cast<std::size_t>(layout.block_bytes())));
      std::memset(memory.back().data(), 0xFF, memory.back().size());  // NaN wherever nothing was appended
      blocks.push_back(memory.back().data());
    }
  }
  AttentionOptions options() const {
    return {shape.heads, shape.window, 1.0f / std::sqrt(static_cast<float>(shape.dim))};
  }
  // Rows [begin, end) as one step.
  std::vector<float> run(CpuBackend& backend, std::int64_t begin, std::int64_t end,
                         const float* mask = nullptr) {
    const std::int64_t rows = end - begin;
    const AttentionSegment segment{0, rows, begin, blocks, mask, end};
    const std::int64_t kv = shape.kv_heads * shape.dim, width = shape.heads * shape.dim;
    append_kv(backend, layout, {&segment, 1}, {k.data() + begin * kv, rows, kv},
              {v.data() + begin * kv, rows, kv});
    std::vector<float> out(static_cast<std::size_t>(rows * width));
    attention(backend, layout, options(), {&segment, 1}, {q.data() + begin * width, rows, width},
              {out.data(), rows, width});
    return out;
  }
  // Row `i`, head `h` by the formula in double; visible(j) gives what is added to the score.
  template <class Visible>
  std::vector<double> exact(std::int64_t i, std::int64_t h, const Visible& visible) const {
    const std::int64_t kv = shape.kv_heads * shape.dim, head = h / (shape.heads / shape.kv_heads);
    std::vector<double> result(static_cast<std::size_t>(shape.dim));
    double total = 0;
    for (std::int64_t j = 0; j < length; ++j) {
      const double added = visible(j);
      if (std::isinf(added)) continue;
      double score = 0;
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        score += static_cast<double>(q[static_cast<std::size_t>((i * shape.heads + h) * shape.dim + d)]) *
                 k[static_cast<std::size_t>(j * kv + head * shape.dim + d)];
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(shape.dim)) + added);
      total += weight;
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        result[static_cast<std::size_t>(d)] +=
            weight * v[static_cast<std::size_t>(j * kv + head * shape.dim + d)];
      }
    }
    for (double& value : result) value = total > 0 ? value / total : 0;
    return result;
  }
};

template <class Visible>
void expect_exact(const Session& session, const std::vector<float>& out, std::int64_t begin, std::int64_t end,
                  const Visible& visible) {
  const Shape& shape = session.shape;
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const auto exact = session.exact(i, h, [&](std::int64_t j) { return visible(i, j); });
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        ASSERT_NEAR(out[static_cast<std::size_t>(((i - begin) * shape.heads + h) * shape.dim + d)],
                    exact[static_cast<std::size_t>(d)], 3e-6)
            << "row " << i << " head " << h << " dim " << d;
      }
    }
  }
}

double causal(std::int64_t i, std::int64_t j) {
  return j <= i ? 0.0 : static_cast<double>(kHidden);
}

TEST_P(Attention, MatchesTheFormulaForHeadShapesAndElements) {
  const auto backend = backend_for(GetParam());
  for (const Shape& shape : {Shape{4, 4, 64}, Shape{9, 3, 64, Element::kBf16}, Shape{8, 1, 80},
                             Shape{2, 2, 40, Element::kBf16}, Shape{6, 2, 128}, Shape{40, 1, 32}}) {
    SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of " << shape.dim);
    Session session(shape, 150, 11);
    expect_exact(session, session.run(*backend, 0, 150), 0, 150, causal);
  }
}

TEST_P(Attention, ContinuesInMidBlock) {
  const auto backend = backend_for(GetParam());
  Session session({3, 1, 64, Element::kBf16}, 300, 5);
  session.run(*backend, 0, 70);
  session.run(*backend, 70, 201);
  expect_exact(session, session.run(*backend, 201, 300), 201, 300, causal);
}

TEST_P(Attention, WindowHidesOldPositions) {
  const auto backend = backend_for(GetParam());
  for (const std::int64_t window : {1, 5, 128, 140, 1000}) {
    SCOPED_TRACE(window);
    Session session({2, 1, 32, Element::kF32, window}, 290, 7);
    session.run(*backend, 0, 129);
    const auto out = session.run(*backend, 129, 290);
    expect_exact(session, out, 129, 290, [&](std::int64_t i, std::int64_t j) {
      return j <= i && j > i - window ? 0.0 : static_cast<double>(kHidden);
    });
  }
}

TEST_P(Attention, MaskReplacesTheCausalRule) {
  const auto backend = backend_for(GetParam());
  const std::int64_t start = 100, rows = 60, length = start + rows;
  Session session({4, 2, 64}, length, 9);
  session.run(*backend, 0, start);
  auto mask = random_values(rows * length, 3);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 ? kHidden : mask[i];
  for (std::int64_t j = 0; j < length; ++j)
    mask[static_cast<std::size_t>(5 * length + j)] = kHidden;  // sees nothing
  const auto out = session.run(*backend, start, length, mask.data());
  expect_exact(session, out, start, length, [&](std::int64_t i, std::int64_t j) {
    return static_cast<double>(mask[static_cast<std::size_t>((i - start) * length + j)]);
  });
}

TEST_P(Attention, RowsDoNotDependOnChunksBatchOrThreads) {
  const std::int64_t length = 300;
  for (const Shape& shape : {Shape{9, 3, 64, Element::kBf16}, Shape{4, 2, 80, Element::kF32, 100}}) {
    const std::int64_t width = shape.heads * shape.dim, kv = shape.kv_heads * shape.dim;
    Session whole(shape, length, 21);
    const auto expected = whole.run(*backend_for(GetParam(), 1), 0, length);
    for (const std::int64_t chunk : {1, 63, 64, 65, 127, 128, 129}) {
      const auto backend = backend_for(GetParam(), 2);
      Session session(shape, length, 21), other(shape, length, 99);
      for (std::int64_t begin = 0; begin < length; begin += chunk) {
        const std::int64_t rows = std::min(chunk, length - begin);
        // A second session's row comes first in the same step.
        const AttentionSegment segments[2] = {{0, 1, begin / chunk, other.blocks},
                                              {1, rows, begin, session.blocks}};
        std::vector<float> q(other.q.begin(), other.q.begin() + width),
            k(other.k.begin(), other.k.begin() + kv), v(other.v.begin(), other.v.begin() + kv);
        q.insert(q.end(), session.q.begin() + begin * width, session.q.begin() + (begin + rows) * width);
        k.insert(k.end(), session.k.begin() + begin * kv, session.k.begin() + (begin + rows) * kv);
        v.insert(v.end(), session.v.begin() + begin * kv, session.v.begin() + (begin + rows) * kv);
        append_kv(*backend, session.layout, segments, as_const(k, rows + 1), as_const(v, rows + 1));
        attention(*backend, session.layout, session.options(), segments, as_const(q, rows + 1),
                  as_matrix(q, rows + 1));
        ASSERT_TRUE(same_bits(q.data() + width, expected.data() + begin * width, rows * width))
            << "chunk " << chunk << " at " << begin;
      }
    }
  }
}

}  // namespace
}  // namespace mesh::ops
