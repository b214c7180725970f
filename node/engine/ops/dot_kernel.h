// Products of inputs that were rounded first, in panels of PanelOrder::kPairs: one instruction multiplies two
// inputs by two weights of each output and adds both to a sum of 32 bits. Integer sums are exact, so any
// order gives the same bits; sums of bfloat16 products go over the inputs of a chain in ascending order for
// any number of rows. What follows an integer sum is multiplied and added without fusing: the same bits on
// every CPU.

constexpr int kVecs = 32 / kLanes;
/// Rows of a full tile; what a full tile takes of a panel's vectors at once; up to here it takes all of them.
constexpr int kDotRows = kLanes == 16 ? 13 : 6;
constexpr int kDotTake = 2;
constexpr int kDotWideRows = kLanes == 16 ? kDotRows : kLanes == 8 ? 2 : 1;
/// Bytes fetched ahead of a stream of weights: hardware alone stops at the end of a page of 4 KiB, and more
/// than about 1 KiB was slower again.
constexpr std::int64_t kStreamAhead = 768;
/// Up to here codes are decoded for each tile; for more rows once into a buffer.
constexpr int kDecodedRows = kLanes == 16 ? 4 : 1;

/// All inputs of one chain, for one panel and a tile of rows.
struct DotTile {
  const std::byte* weights;    // of the first group
  std::int64_t weight_stride;  // bytes between groups
  std::int64_t groups, steps;  // steps of a group
  const std::byte* scales;     // null: none
  std::int64_t scale_stride;   // bytes between groups
  float scale_unit;
  const std::uint32_t* inputs;  // [pairs, rows]
  const float* input_steps;     // of each row; null: none
  float* c;
  std::int64_t c_stride;
  const float* bias;  // null: none
  bool add;
  std::int64_t ahead;  // bytes from here to what will be read next, fetched meanwhile; 0: nothing
};

/// A tile's sums over its chain become rows of c, vectors first … of each.
template <int kRows, int kTake>
MESH_INLINE void store_totals(const DotTile& args, int first, const Vec (&totals)[kRows][kTake]) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int vec = 0; vec < kTake; ++vec) {
      const int column = (first + vec) * kLanes;
      float* c = args.c + row * args.c_stride + column;
      Vec value = totals[row][vec];
      if (args.input_steps != nullptr) value = value * args.input_steps[row];
      if (args.add) value = load(c) + value;
      if (args.bias != nullptr) value = value + load(args.bias + column);
      store(c, value);
    }
  }
}

template <class Weights, int kRows, int kTake>
void dot_tile(const DotTile& args, int first) {
  using Dot = typename Weights::Dot;
  Vec totals[kRows][kTake] = {};
  const std::uint32_t* inputs = args.inputs;
  for (std::int64_t group = 0; group < args.groups; ++group) {
    typename Dot::Sum sums[kRows][kTake] = {};
    const std::byte* step = args.weights + group * args.weight_stride;
    for (std::int64_t i = 0; i < args.steps; ++i) {
      for (std::int64_t line = 0; line < Weights::kBytes; line += 64)
        __builtin_prefetch(step + args.ahead + line, 0, 2);
#pragma GCC unroll 4
      for (int pair = 0; pair < Weights::kPairs; ++pair) {
        VecU words[kTake];
#pragma GCC unroll 8
        for (int vec = 0; vec < kTake; ++vec) words[vec] = Weights::words(step, pair, first + vec);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          const VecU value = inputs[pair * kRows + row] - VecU{};
#pragma GCC unroll 8
          for (int vec = 0; vec < kTake; ++vec) sums[row][vec] = Dot::step(sums[row][vec], value, words[vec]);
        }
      }
      step += Weights::kBytes;
      inputs += Weights::kPairs * kRows;
    }
    if (args.scales == nullptr) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
        for (int vec = 0; vec < kTake; ++vec) totals[row][vec] = Dot::to_float(sums[row][vec]);
      }
      continue;
    }
    const float* scales = reinterpret_cast<const float*>(args.scales + group * args.scale_stride);
#pragma GCC unroll 8
    for (int vec = 0; vec < kTake; ++vec) {
      const Vec scale = load(scales + (first + vec) * kLanes) * args.scale_unit;
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row)
        totals[row][vec] = totals[row][vec] + Dot::to_float(sums[row][vec]) * scale;
    }
  }
  store_totals(args, first, totals);
}

template <class Weights, int kRows>
void dot_whole_tile(const DotTile& args) {
  if constexpr (kRows <= kDotWideRows) {
    dot_tile<Weights, kRows, kVecs>(args, 0);
  } else {
    for (int first = 0; first < kVecs; first += kDotTake) dot_tile<Weights, kRows, kDotTake>(args, first);
  }
}

#if defined(__AVX2__) && !defined(__AVX512BW__)
/// One row of NF4, which is bound by decoding: bytes of codes are looked up as they lie, the low and the high
/// bytes of the values apart, and unpacked to words. So pairs 0 and 2 of an output, and 1 and 3, are
/// multiplied side by side, and an output has two sums, which meet at the end of the group.
template <>
void dot_whole_tile<Nf4Pairs, 1>(const DotTile& args) {
  const __m256i low = repeated(kNf4Bytes.low), high = repeated(kNf4Bytes.high);
  const __m256i nibble = _mm256_set1_epi8(15);
  // Inputs a, a', b, b', c, c', d, d' of four pairs as a, c, a', c' and b, d, b', d'.
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  Vec totals[1][kVecs] = {};
  const std::uint32_t* inputs = args.inputs;
  for (std::int64_t group = 0; group < args.groups; ++group) {
    __m256i sums[kVecs][2] = {};
    const std::byte* step = args.weights + group * args.weight_stride;
    for (std::int64_t i = 0; i < args.steps; ++i) {
      for (std::int64_t line = 0; line < Nf4Pairs::kBytes; line += 64)
        __builtin_prefetch(step + args.ahead + line, 0, 2);
      const __m128i ordered =
          _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(inputs)), order);
      const __m256i values[2] = {_mm256_broadcastq_epi64(ordered),
                                 _mm256_broadcastq_epi64(_mm_unpackhi_epi64(ordered, ordered))};
#pragma GCC unroll 4
      for (int vec = 0; vec < kVecs; ++vec) {
        const auto codes = reinterpret_cast<__m256i>(load_words(step + vec * kLanes * 4));
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m256i index = _mm256_and_si256(half == 0 ? codes : _mm256_srli_epi16(codes, 4), nibble);
          const __m256i lows = _mm256_shuffle_epi8(low, index), highs = _mm256_shuffle_epi8(high, index);
          const __m256i front = _mm256_madd_epi16(_mm256_unpacklo_epi8(lows, highs), values[half]);
          const __m256i back = _mm256_madd_epi16(_mm256_unpackhi_epi8(lows, highs), values[half]);
          sums[vec][0] = _mm256_add_epi32(sums[vec][0], front);
          sums[vec][1] = _mm256_add_epi32(sums[vec][1], back);
        }
      }
      step += Nf4Pairs::kBytes;
      inputs += Nf4Pairs::kPairs;
    }
    const float* scales = reinterpret_cast<const float*>(args.scales + group * args.scale_stride);
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      const Vec scale = load(scales + vec * kLanes) * args.scale_unit;
      const __m256i sum = _mm256_hadd_epi32(sums[vec][0], sums[vec][1]);
      totals[0][vec] = totals[0][vec] + IntegerDot::to_float(reinterpret_cast<VecI>(sum)) * scale;
    }
  }
  store_totals(args, 0, totals);
}
#endif

using DotCall = void (*)(const DotTile&);
template <class Weights, int kMost>
struct DotTable {
  DotCall calls[kDotRows + 1] = {};
  constexpr DotTable() { fill<1>(); }
  template <int kRows>
  constexpr void fill() {
    calls[kRows] = dot_whole_tile<Weights, kRows>;
    if constexpr (kRows < kMost) fill<kRows + 1>();
  }
};
template <class Weights, int kMost>
constexpr DotTable<Weights, kMost> kDotTiles{};

/// All rows × one panel × one chain, from weights that `calls` understand.
void dot_rows(const DotArgs& args, DotTile tile, const DotCall* calls, std::int64_t panel, std::int64_t k0,
              std::int64_t pairs) {
  const std::int64_t column = panel * 32;
  const std::int64_t columns = args.n - column < 32 ? args.n - column : 32;
  tile.inputs = args.inputs + k0 / 2 * args.m;
  tile.input_steps = args.input_steps == nullptr ? nullptr : args.input_steps + k0 / kChain * args.m;
  tile.bias = k0 == 0 && args.bias != nullptr ? args.bias + column : nullptr;
  tile.add = args.add || k0 > 0;
  const RowTiles<kDotRows> tiling(args.m);
  float* c = args.c + column;
  for (std::int64_t t = 0; t < tiling.tiles; ++t) {
    const std::int64_t rows = tiling.rows(t);
    on_whole_panels<kDotRows>(c, args.c_stride, rows, columns, 32, [&](float* to, std::int64_t stride) {
      tile.c = to;
      tile.c_stride = stride;
      calls[rows](tile);
    });
    c += rows * args.c_stride;
    tile.inputs += rows * pairs;
    if (tile.input_steps != nullptr) tile.input_steps += rows;
  }
}

/// Calls block(panel, k0, inputs of the chain).
template <class Block>
MESH_INLINE void for_each_chain(const DotArgs& args, std::int64_t first_panel, std::int64_t last_panel,
                                const Block& block) {
  for_each_block(args.k, args.m <= kDotRows, first_panel, last_panel,
                 [&](std::int64_t panel, std::int64_t k0) {
                   block(panel, k0, args.k - k0 < kChain ? args.k - k0 : kChain);
                 });
}

#if defined(__AVX512BF16__)
void dot_bf16(const DotArgs& args, std::int64_t first_panel, std::int64_t last_panel) {
  if (args.m <= 0) return;
  for_each_chain(
      args, first_panel, last_panel, [&](std::int64_t panel, std::int64_t k0, std::int64_t inputs) {
        DotTile tile{};
        tile.weights = args.panels + panel * args.panel_stride + k0 / 2 * kPairBytes;
        tile.groups = 1;
        tile.steps = inputs / 2;
        tile.ahead = args.m <= kDotRows ? kStreamAhead : args.panel_stride;
        dot_rows(args, tile, kDotTiles<PlainPairs<BfloatDot>, kDotRows>.calls, panel, k0, inputs / 2);
      });
}
#endif

/// The words of a chain's codes, as PlainPairs reads them.
template <class Weights>
void unpack(const DotTile& tile, std::byte* out) {
  for (std::int64_t group = 0; group < tile.groups; ++group) {
    const std::byte* step = tile.weights + group * tile.weight_stride;
    for (std::int64_t i = 0; i < tile.steps; ++i, step += Weights::kBytes) {
      __builtin_prefetch(step + tile.ahead, 0, 2);
#pragma GCC unroll 4
      for (int pair = 0; pair < Weights::kPairs; ++pair, out += kPairBytes) {
#pragma GCC unroll 8
        for (int vec = 0; vec < kVecs; ++vec) {
          const VecU words = Weights::words(step, pair, vec);
          __builtin_memcpy(out + vec * kLanes * 4, &words, sizeof(words));
        }
      }
    }
  }
}

template <class Weights>
void dot_codes(const DotArgs& args, std::int64_t first_panel, std::int64_t last_panel) {
  if (args.m <= 0) return;
  alignas(64) std::byte buffer[kChain / 2 * kPairBytes];
  for_each_chain(args, first_panel, last_panel,
                 [&](std::int64_t panel, std::int64_t k0, std::int64_t inputs) {
                   const std::byte* first = args.panels + panel * args.panel_stride;
                   const std::int64_t group = Weights::kScalesFirst ? inputs : args.group;
                   DotTile tile{};
                   tile.groups = inputs / group;
                   tile.steps = group / 2 / Weights::kPairs;
                   tile.scale_unit = Weights::kScaleUnit;
                   if constexpr (Weights::kScalesFirst) {
                     tile.scales = first;
                     tile.weights = first + kPanelScales + k0 / 2 / Weights::kPairs * Weights::kBytes;
                   } else {
                     tile.weight_stride = tile.scale_stride = kPanelScales + tile.steps * Weights::kBytes;
                     tile.scales = first + k0 / group * tile.scale_stride;
                     tile.weights = tile.scales + kPanelScales;
                   }
                   tile.ahead = args.m <= kDecodedRows ? kStreamAhead : args.panel_stride;
                   if (args.m <= kDecodedRows) {
                     dot_rows(args, tile, kDotTiles<Weights, kDecodedRows>.calls, panel, k0, inputs / 2);
                     return;
                   }
                   unpack<Weights>(tile, buffer);
                   tile.weights = buffer;
                   tile.steps = group / 2;
                   tile.weight_stride = tile.steps * kPairBytes;
                   tile.ahead = 0;
                   dot_rows(args, tile, kDotTiles<PlainPairs<typename Weights::Dot>, kDotRows>.calls, panel,
                            k0, inputs / 2);
                 });
}
