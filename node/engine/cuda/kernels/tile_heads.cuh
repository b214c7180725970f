#pragma once

#include "node/engine/cuda/kernels/tile_products.cuh"

/// What tiles of heads leave for attention (compute capability 9.0a).
namespace mesh::engine::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Two rows of a tile, as a thread of tile_products has them. Reads the step's tables and angles, which no
/// launch of a layer writes, ahead of the products: their latencies would follow one another behind them.
template <class Shape>
class TileHeads {
 public:
  __device__ TileHeads(const TileProduct& product, int lane) : product_(product), column_(lane % 4 * 2) {}

  __device__ void begin(const TileTurn<Shape>& work, int first_row) {
    row_ = first_row, pair_ = work.output / 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + r * 8, place = row < product_.rows ? product_.tables.place[row] : -1;
      kept_[r] = nullptr;
      if (place < 0) continue;
      const int first_block = product_.tables.first_block[row];
      kept_[r] = KvPlace{product_.tables, product_.attention.kv, first_block, 0}.row(place);
    }
    if constexpr (kEarly) read_angles(0);
  }

  __device__ void store(const float (&sums)[Shape::kColumns / 2]) {
#pragma unroll
    for (int first = 0; first < kEights; first += kHeld) {
      if constexpr (!kEarly) read_angles(first);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        // Columns of the low values, eight by eight; the high ones follow kPairs further.
        const int eight = first + i, at = eight / kRun * 2 * kRun + eight % kRun;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float* lows = sums + 4 * at + 2 * r;
          put(eight, r, {lows[0], lows[1]}, {lows[4 * kRun], lows[4 * kRun + 1]}, cos_[i][r], sin_[i][r]);
        }
      }
    }
  }

 private:
  static constexpr int kEights = Shape::kColumns / 16;  ///< eight pairs each
  static constexpr int kRun = Shape::kPairs / 8;
  static constexpr bool kEarly = Shape::kColumns <= 128;
  static constexpr int kHeld = kEarly ? kEights : Shape::kColumns == 192 ? 4 : 2;  ///< angles
  static_assert(kEights % kHeld == 0);

  __device__ int half() const { return 1 << product_.half_bits; }
  __device__ int head(int eight) const { return (pair_ + eight * 8) >> product_.half_bits; }
  __device__ int place(int eight) const { return ((pair_ + eight * 8) & (half() - 1)) + column_; }

  __device__ void read_angles(int first) {
    const HeadPreparation& preparation = product_.attention.preparation;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int64_t at =
            std::int64_t{min(row_ + r * 8, product_.rows - 1)} * half() + place(first + i);
        cos_[i][r] = __ldcg(reinterpret_cast<const float2*>(preparation.cos + at));
        sin_[i][r] = __ldcg(reinterpret_cast<const float2*>(preparation.sin + at));
      }
    }
  }
  __device__ void put(int eight, int r, float2 low, float2 high, float2 c, float2 s) const {
    const AttentionRows& attention = product_.attention;
    const int dim = attention.kv.head_dim, heads = attention.heads, kv_heads = attention.kv.kv_heads,
              head = this->head(eight), at = place(eight);
    if (head >= heads + 2 * kv_heads || kept_[r] == nullptr) return;
    if (attention.bias != nullptr) {
      const float* bias = attention.bias + head * dim + at;
      const float2 low_bias = *reinterpret_cast<const float2*>(bias),
                   high_bias = *reinterpret_cast<const float2*>(bias + half());
      low.x += low_bias.x, low.y += low_bias.y, high.x += high_bias.x, high.y += high_bias.y;
    }
    if (head < heads + kv_heads) {
      const float2 old = low;
      low = {old.x * c.x - high.x * s.x, old.y * c.y - high.y * s.y};
      high = {high.x * c.x + old.x * s.x, high.y * c.y + old.y * s.y};
    }
    Bf* const to =
        head < heads
            ? static_cast<Bf*>(product_.y) + (std::int64_t{row_ + r * 8} * heads + head) * dim + at
            : kept_[r] + std::int64_t{head - heads} * kKvBlock * dim + at;  // values' heads follow the keys'
    *reinterpret_cast<std::uint32_t*>(to) = narrow(low.x, low.y);
    *reinterpret_cast<std::uint32_t*>(to + half()) = narrow(high.x, high.y);
  }

  const TileProduct& product_;
  int column_, row_ = 0, pair_ = 0;
  Bf* kept_[2];  ///< where a row's keys and values of KV head 0 go; null: the row has no place
  float2 cos_[kHeld][2], sin_[kHeld][2];
};
#endif

}  // namespace mesh::engine::cuda
