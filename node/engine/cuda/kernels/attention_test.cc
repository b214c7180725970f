#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "node/engine/cuda/kernels/device_array.h"
#include "node/engine/cuda/kernels/tile_linear.h"

namespace mesh::engine::cuda {
namespace {

using Values = std::vector<double>;

struct Part {
  int rows, start;
};
struct AttentionCase {
  int heads, kv_heads, head_dim, pairs, window, splits;
  bool norms, bias;
  std::vector<Part> parts;
};

/// A step's rows over paged caches whose blocks lie in any order, and what must come out, in float64.
class PagedAttention : public ::testing::TestWithParam<AttentionCase> {
 protected:
  static constexpr float kEpsilon = 1e-6f;
  const AttentionCase& c() const { return GetParam(); }
  std::size_t dim() const { return static_cast<std::size_t>(c().head_dim); }
  std::size_t all_heads() const { return static_cast<std::size_t>(c().heads + 2 * c().kv_heads); }

  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&launch_.processors, cudaDevAttrMultiProcessorCount, 0);
    tensor_cores_ = major >= 8, warpgroups_ = major == 9;
    std::vector<int> place, first_block, rotary;
    std::vector<Tile> tiles;
    int blocks = 0;
    for (const Part& part : c().parts) {
      for (int i = 0; i < part.rows; i += kTileRows) {
        tiles.push_back({static_cast<int>(place.size()) + i, std::min(kTileRows, part.rows - i),
                         part.start + i, blocks, part.start});
      }
      for (int i = 0; i < part.rows; ++i) {
        place.push_back(part.start + i), first_block.push_back(blocks), rotary.push_back(part.start + i);
      }
      blocks += (part.start + part.rows + kKvBlock - 1) / kKvBlock;
    }
    rows_ = place.size(), tile_count_ = tiles.size();
    place.push_back(-1), first_block.push_back(0), rotary.push_back(0);  // a padding row
    place_ = place, first_block_ = first_block;
    // Two layers a block; the second one is ours. Its neighbour is NaN.
    block_values_ = 2 * static_cast<std::size_t>(kKvBlock) * static_cast<std::size_t>(c().kv_heads) * dim();
    order_.resize(static_cast<std::size_t>(blocks));
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::shuffle(order_.begin(), order_.end(), random_);
    cache_ = std::vector<std::uint16_t>(2 * block_values_ * order_.size(), 0xffff);
    for (std::size_t block = 0; block < order_.size(); ++block) {
      for (std::size_t i = 0; i < block_values_; ++i)
        cache_[(2 * block + 1) * block_values_ + i] = bf16(normal());
    }
    memory_ = std::make_unique<DeviceArray<std::uint16_t>>(cache_);
    std::vector<std::byte*> addresses;
    for (const std::size_t index : order_) {
      addresses.push_back(reinterpret_cast<std::byte*>(memory_->data() + 2 * block_values_ * index));
    }
    qkv_.resize((rows_ + 1) * all_heads() * dim());
    for (double& value : qkv_) value = widened(bf16(normal()));
    bias_.resize(all_heads() * dim()), query_norm_.resize(dim()), key_norm_.resize(dim());
    for (auto* values : {&bias_, &query_norm_, &key_norm_}) {
      for (double& value : *values) value = static_cast<float>(normal());
    }
    const auto pairs = static_cast<std::size_t>(c().pairs);
    for (const int position : rotary) {
      for (std::size_t i = 0; i < pairs; ++i) {
        const double angle =
            position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
        cos_.push_back(static_cast<float>(std::cos(angle))),
            sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    places_ = std::make_unique<DeviceArray<int>>(place),
    firsts_ = std::make_unique<DeviceArray<int>>(first_block);
    tiles_ = std::make_unique<DeviceArray<Tile>>(tiles);
    addresses_ = std::make_unique<DeviceArray<std::byte*>>(addresses);
    qkvs_ = std::make_unique<DeviceArray<float>>(to_float(qkv_)),
    biases_ = std::make_unique<DeviceArray<float>>(to_float(bias_));
    query_norms_ = std::make_unique<DeviceArray<float>>(to_float(query_norm_));
    key_norms_ = std::make_unique<DeviceArray<float>>(to_float(key_norm_));
    coss_ = std::make_unique<DeviceArray<float>>(to_float(cos_)),
    sins_ = std::make_unique<DeviceArray<float>>(to_float(sin_));
    tables_.place = places_->data(), tables_.first_block = firsts_->data(), tables_.tiles = tiles_->data();
    tables_.blocks = addresses_->data();
    rows_of_ = {
        .qkv = qkvs_->data(),
        .bias = c().bias ? biases_->data() : nullptr,
        .heads = c().heads,
        .window = c().window,
        .scale = 1 / std::sqrt(static_cast<float>(c().head_dim)),
        .preparation = {c().norms ? query_norms_->data() : nullptr, c().norms ? key_norms_->data() : nullptr,
                        kEpsilon, coss_->data(), sins_->data(), c().pairs},
        .kv = {c().kv_heads, c().head_dim, static_cast<std::int64_t>(block_values_ * 2)}};
    const int most = std::max(c().splits, 4);
    scratch_ = std::make_unique<DeviceArray<float>>(
        split_floats(static_cast<int>(rows_) + 1, c().heads, c().head_dim, most));
    counters_ = std::make_unique<DeviceArray<unsigned>>(
        std::vector<unsigned>((rows_ + 1) * static_cast<std::size_t>(c().heads), 0));
    split_ = {scratch_->data(), counters_->data()};
  }

  double normal() { return distribution_(random_); }

  /// A head of a row after bias, norm and rotation.
  Values prepared(std::size_t row, std::size_t head) const {
    Values x(dim());
    for (std::size_t d = 0; d < dim(); ++d) {
      x[d] = qkv_[(row * all_heads() + head) * dim() + d] + (c().bias ? bias_[head * dim() + d] : 0);
    }
    const auto heads = static_cast<std::size_t>(c().heads), kv_heads = static_cast<std::size_t>(c().kv_heads);
    if (head >= heads + kv_heads) return x;
    if (c().norms) {
      double squares = 0;
      for (const double value : x) squares += value * value;
      const Values& weight = head < heads ? query_norm_ : key_norm_;
      const double factor = 1 / std::sqrt(squares / static_cast<double>(dim()) + kEpsilon);
      for (std::size_t d = 0; d < dim(); ++d) x[d] *= factor * weight[d];
    }
    const auto pairs = static_cast<std::size_t>(c().pairs);
    const Values old = x;
    for (std::size_t d = 0; d < pairs; ++d) {
      const double cosine = cos_[row * pairs + d], sine = sin_[row * pairs + d];
      x[d] = old[d] * cosine - old[d + pairs] * sine;
      x[d + pairs] = old[d + pairs] * cosine + old[d] * sine;
    }
    return x;
  }

  std::size_t cache_index(std::size_t row, int position, std::size_t kv_head, bool values) const {
    const std::size_t block = order_[static_cast<std::size_t>(first_block_[row] + position / kKvBlock)];
    const std::size_t head = kv_head + (values ? static_cast<std::size_t>(c().kv_heads) : 0);
    return (2 * block + 1) * block_values_ +
           (head * kKvBlock + static_cast<std::size_t>(position % kKvBlock)) * dim();
  }

  /// Appends every row in the host's copy.
  void append() {
    const auto heads = static_cast<std::size_t>(c().heads), kv_heads = static_cast<std::size_t>(c().kv_heads);
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t head = 0; head < 2 * kv_heads; ++head) {
        const Values x = prepared(row, heads + head);
        const std::size_t at = cache_index(row, place_[row], head % kv_heads, head >= kv_heads);
        for (std::size_t d = 0; d < dim(); ++d) cache_[at + d] = bf16(x[d]);
      }
    }
  }

  /// Attention over the host's cache against `out`; the squared error stays below that of a few bfloat16
  /// roundings.
  void expect_attention(const std::vector<std::uint16_t>& out, bool narrow_queries) const {
    const auto heads = static_cast<std::size_t>(c().heads),
               group = heads / static_cast<std::size_t>(c().kv_heads);
    double off = 0, size = 0;
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t head = 0; head < heads; ++head) {
        const Values q = narrow_queries ? rounded(prepared(row, head)) : prepared(row, head);
        const int own = place_[row], low = c().window > 0 ? std::max(0, own + 1 - c().window) : 0;
        Values scores;
        for (int position = low; position <= own; ++position) {
          double score = 0;
          for (std::size_t d = 0; d < dim(); ++d)
            score += q[d] * widened(cache_[cache_index(row, position, head / group, false) + d]);
          scores.push_back(score / std::sqrt(static_cast<double>(dim())));
        }
        const double best = *std::ranges::max_element(scores);
        double mass = 0;
        Values expected(dim(), 0.0);
        for (int position = low; position <= own; ++position) {
          const double weight = std::exp(scores[static_cast<std::size_t>(position - low)] - best);
          mass += weight;
          for (std::size_t d = 0; d < dim(); ++d)
            expected[d] += weight * widened(cache_[cache_index(row, position, head / group, true) + d]);
        }
        for (std::size_t d = 0; d < dim(); ++d) {
          const double actual = widened(out[(row * heads + head) * dim() + d]);
          ASSERT_TRUE(std::isfinite(actual)) << "row " << row << " head " << head;
          off += std::pow(actual - expected[d] / mass, 2), size += std::pow(expected[d] / mass, 2);
        }
      }
    }
    EXPECT_LE(off / size, 4 * 0x1p-16);
  }
  void expect_cache() const {
    const std::vector<std::uint16_t> device = memory_->host();
    std::size_t off = 0;
    for (std::size_t i = 0; i < device.size(); ++i) {
      // A rounding may fall the other way: the neighbouring bfloat16.
      off += std::abs(int{device[i]} - int{cache_[i]}) > 1 ? 1 : 0;
    }
    EXPECT_EQ(off, 0u);
  }

  /// A product whose rows are qkv: x the identity, the matrix qkv.
  struct HeadsProduct {
    int in;
    std::vector<std::uint16_t> weight, x;
  };
  HeadsProduct heads_product() const {
    const std::size_t in = (rows_ + 8) / 8 * 8, all = all_heads() * dim();
    HeadsProduct product{static_cast<int>(in), std::vector<std::uint16_t>(all * in),
                         std::vector<std::uint16_t>((rows_ + 1) * in)};
    for (std::size_t row = 0; row <= rows_; ++row) {
      product.x[row * in + row] = bf16(1);
      for (std::size_t i = 0; i < all; ++i) product.weight[i * in + row] = bf16(qkv_[row * all + i]);
    }
    return product;
  }

  void append_and_attend() {
    for (const Part& part : c().parts) {
      if (part.rows != 1) GTEST_SKIP() << "rows of one session";
    }
    DeviceArray<std::uint16_t> out((rows_ + 1) * static_cast<std::size_t>(c().heads) * dim());
    append();
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(row_attention(launch_, tables_, rows_of_, nullptr, out.data(), static_cast<int>(rows_) + 1,
                              c().splits, split_),
                cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      expect_cache();
      expect_attention(out.host(), launch_.tensor_cores);
    }
  }
  void attend_after_appending() {
    const std::size_t width = static_cast<std::size_t>(c().heads) * dim();
    DeviceArray<std::uint16_t> q((rows_ + 1) * width), out((rows_ + 1) * width);
    append();
    ASSERT_EQ(append_rows(launch_, tables_, rows_of_, q.data(), static_cast<int>(rows_) + 1), cudaSuccess);
    ASSERT_EQ(row_attention(launch_, tables_, rows_of_, q.data(), out.data(), static_cast<int>(rows_) + 1,
                            c().splits, split_),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_cache();
    expect_attention(out.host(), true);
  }

  Launch launch_;
  bool tensor_cores_ = false, warpgroups_ = false;
  std::mt19937 random_{11};
  std::normal_distribution<double> distribution_;
  std::size_t rows_ = 0, tile_count_ = 0, block_values_ = 0;
  std::vector<int> place_, first_block_;
  std::vector<std::size_t> order_;
  std::vector<std::uint16_t> cache_;
  Values qkv_, bias_, query_norm_, key_norm_, cos_, sin_;
  std::unique_ptr<DeviceArray<std::uint16_t>> memory_;
  std::unique_ptr<DeviceArray<int>> places_, firsts_;
  std::unique_ptr<DeviceArray<Tile>> tiles_;
  std::unique_ptr<DeviceArray<std::byte*>> addresses_;
  std::unique_ptr<DeviceArray<float>> qkvs_, biases_, query_norms_, key_norms_, coss_, sins_, scratch_;
  std::unique_ptr<DeviceArray<unsigned>> counters_;
  StepTables tables_;
  AttentionRows rows_of_;
  SplitScratch split_;
};

TEST_P(PagedAttention, RowsAppendAndAttendInOneLaunch) {
  append_and_attend();
}

TEST_P(PagedAttention, RowsAppendAndAttendOnTensorCores) {
  if (!tensor_cores_) GTEST_SKIP() << "needs compute capability 8.0";
  launch_.tensor_cores = true;
  append_and_attend();
}

TEST_P(PagedAttention, RowsAppendAndAttendBesideBlocksThatKeepAPlace) {
  if (!tensor_cores_) GTEST_SKIP() << "needs compute capability 8.0";
  launch_.tensor_cores = launch_.halves = true;
  append_and_attend();
}

TEST_P(PagedAttention, RowsAttendAfterAppending) {
  attend_after_appending();
}

TEST_P(PagedAttention, RowsAttendAfterAppendingOnTensorCores) {
  if (!tensor_cores_) GTEST_SKIP() << "needs compute capability 8.0";
  launch_.tensor_cores = true;
  attend_after_appending();
}

TEST_P(PagedAttention, TilesAttendOnTensorCores) {
  if (!tensor_cores_) GTEST_SKIP() << "needs compute capability 8.0";
  const std::size_t width = static_cast<std::size_t>(c().heads) * dim();
  append();
  for (const int splits : {1, 3}) {
    DeviceArray<std::uint16_t> q((rows_ + 1) * width), out((rows_ + 1) * width);
    ASSERT_EQ(append_rows(launch_, tables_, rows_of_, q.data(), static_cast<int>(rows_) + 1), cudaSuccess);
    ASSERT_EQ(tile_attention(launch_, tables_, rows_of_, q.data(), out.data(), static_cast<int>(tile_count_),
                             static_cast<int>(rows_) + 1, splits, split_),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_attention(out.host(), true);
  }
}

TEST_P(PagedAttention, TilesAttendOnWarpgroups) {
  if (!warpgroups_) GTEST_SKIP() << "needs compute capability 9.0";
  if (c().head_dim < 64) GTEST_SKIP() << "heads of 64 and 128";
  const std::size_t width = static_cast<std::size_t>(c().heads) * dim();
  append();
  for (const int splits : {1, 2, 3, 8}) {
    DeviceArray<std::uint16_t> q((rows_ + 1) * width), out((rows_ + 1) * width);
    ASSERT_EQ(append_rows(launch_, tables_, rows_of_, q.data(), static_cast<int>(rows_) + 1), cudaSuccess);
    ASSERT_EQ(warpgroup_attention(launch_, tables_, rows_of_, q.data(), out.data(),
                                  static_cast<int>(tile_count_), splits),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_attention(out.host(), true);
  }
}

TEST_P(PagedAttention, ProductsLeaveHeadsAsAppendedRowsAre) {
  if (!warpgroups_) GTEST_SKIP() << "needs compute capability 9.0";
  if (!takes_heads(rows_of_)) GTEST_SKIP() << "heads without a norm that are rotated whole";
  const std::size_t query = static_cast<std::size_t>(c().heads) * dim();
  const HeadsProduct product = heads_product();
  DeviceArray<std::uint16_t> weights(product.weight), x(product.x), q((rows_ + 1) * query);
  append();
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(heads_linear(launch_, {weights.data(), product.in, x.data(), static_cast<int>(rows_) + 1,
                                     tables_, rows_of_, q.data()}),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_cache();
    const std::vector<std::uint16_t> queries = q.host();
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t head = 0; head < static_cast<std::size_t>(c().heads); ++head) {
        const Values expected = prepared(row, head);
        for (std::size_t d = 0; d < dim(); ++d) {
          ASSERT_NEAR(widened(queries[row * query + head * dim() + d]), expected[d],
                      std::abs(expected[d]) * 0x1p-8 + 1e-5)
              << "row " << row << " head " << head << " value " << d;
        }
      }
    }
  }
}

/// A launch that begins early must still see what the one ahead of it wrote: rows of two kinds in turn.
TEST_P(PagedAttention, OverlappingProductsAndTilesGiveTheSameBits) {
  if (!warpgroups_) GTEST_SKIP() << "needs compute capability 9.0";
  if (c().head_dim < 64 || !takes_heads(rows_of_)) GTEST_SKIP() << "heads of 64 and 128, rotated whole";
  const std::size_t query = static_cast<std::size_t>(c().heads) * dim(), values = (rows_ + 1) * query;
  const HeadsProduct product = heads_product();
  std::vector<std::uint16_t> other = product.x;
  std::ranges::rotate(other, other.begin() + product.in);
  DeviceArray<std::uint16_t> weights(product.weight), x(product.x), y(other), q(values);
  ASSERT_EQ(cudaStreamCreate(&launch_.stream), cudaSuccess);
  const auto run = [&](bool overlap) {
    launch_.overlap = overlap;
    std::vector<std::unique_ptr<DeviceArray<std::uint16_t>>> out;
    for (int i = 0; i < 8; ++i) out.push_back(std::make_unique<DeviceArray<std::uint16_t>>(values));
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(heads_linear(launch_, {weights.data(), product.in, i % 2 == 0 ? x.data() : y.data(),
                                       static_cast<int>(rows_) + 1, tables_, rows_of_, q.data()}),
                cudaSuccess);
      EXPECT_EQ(
          warpgroup_attention(launch_, tables_, rows_of_, q.data(), out[static_cast<std::size_t>(i)]->data(),
                              static_cast<int>(tile_count_), std::min(c().splits, kMostCluster)),
          cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(launch_.stream), cudaSuccess);
    std::vector<std::vector<std::uint16_t>> bits;
    for (const auto& one : out) bits.push_back(one->host());
    return bits;
  };
  const auto expected = run(false);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(run(true), expected);
  cudaStreamDestroy(launch_.stream);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PagedAttention,
    ::testing::Values(AttentionCase{4, 2, 32, 16, 0, 1, false, true, {{1, 0}, {1, 5}, {1, 300}}},
                      AttentionCase{9, 3, 64, 32, 0, 4, false, false, {{1, 127}, {1, 128}, {1, 700}}},
                      AttentionCase{32, 8, 128, 64, 0, 8, false, false, {{1, 192}, {1, 31}, {1, 1000}}},
                      AttentionCase{32, 8, 128, 64, 0, 32, false, false, {{1, 2047}}},
                      AttentionCase{32, 8, 128, 64, 0, 1, false, false, {{1, 0}, {1, 15}, {1, 16}, {1, 640}}},
                      AttentionCase{12, 1, 64, 32, 0, 3, false, true, {{1, 130}, {1, 400}}},
                      AttentionCase{8, 1, 128, 64, 50, 2, false, false, {{1, 130}, {1, 400}}},
                      AttentionCase{28, 4, 128, 64, 100, 4, false, true, {{1, 40}, {1, 555}}},
                      AttentionCase{16, 8, 128, 64, 0, 2, true, false, {{1, 77}, {1, 128}}},
                      AttentionCase{4, 4, 64, 16, 0, 2, true, true, {{1, 77}, {1, 250}}},
                      AttentionCase{4, 4, 128, 0, 33, 8, false, false, {{1, 77}, {1, 250}}},
                      AttentionCase{4, 2, 32, 16, 20, 2, false, false, {{70, 0}, {1, 33}, {128, 130}}},
                      AttentionCase{9, 3, 64, 32, 0, 1, false, false, {{128, 200}, {3, 0}}},
                      AttentionCase{8, 2, 128, 64, 0, 2, true, true, {{100, 0}, {64, 448}, {5, 127}}},
                      AttentionCase{8, 2, 128, 64, 150, 1, false, false, {{130, 300}}},
                      AttentionCase{32, 8, 128, 64, 0, 1, false, true, {{120, 60}, {7, 1000}}},
                      AttentionCase{28, 4, 128, 64, 0, 1, false, false, {{40, 3}, {23, 120}}},
                      AttentionCase{60, 6, 128, 64, 0, 1, false, true, {{60, 70}}},
                      AttentionCase{64, 8, 128, 64, 0, 1, false, false, {{100, 100}}},
                      AttentionCase{9, 3, 64, 32, 0, 1, false, true, {{300, 0}, {211, 130}}}));

}  // namespace
}  // namespace mesh::engine::cuda
