// The matrix kernel: a tile of rows × one panel, sums in registers. See kernels.h for the layouts.

// Lane groups of a panel row: 32 columns are kGroups vectors; group g < kGroups / 2 holds columns g · kLanes
// …, group g + kGroups / 2 holds 16 + g · kLanes …: the two that one load of bfloat16 pairs gives.
constexpr int kGroups = 32 / kLanes;
constexpr int kPairs = kGroups / 2;
// Pairs of groups that a full tile takes at once, and its rows: as many sums as the registers hold.
#if defined(__AVX512F__)
constexpr int kTilePairs = 1, kTileRows = 13;
#elif defined(__AVX2__)
constexpr int kTilePairs = 1, kTileRows = 6;
#else
constexpr int kTilePairs = 1, kTileRows = 6;
#endif
constexpr int kWideRows = kLanes == 16 ? 0 : kLanes == 8 ? 2 : 1;  // up to here a tile takes all pairs

template <Element kElement>
MESH_INLINE void load_pair(const std::byte* row, int pair, Vec& low, Vec& high) {
  if constexpr (kElement == Element::kBf16) {
    VecU words;
    __builtin_memcpy(&words, row + pair * kLanes * 4, sizeof(words));
    low = from_bits(words << 16);
    high = from_bits(words & 0xFFFF0000u);
  } else {
    const float* values = reinterpret_cast<const float*>(row);
    low = load(values + pair * kLanes);
    high = load(values + 16 + pair * kLanes);
  }
}

struct TileArgs {
  const std::byte* panel;  // at the chain's first input
  const float* a;
  std::int64_t a_row;  // floats between rows and between inputs of a
  std::int64_t k;
  float* c;
  std::int64_t c_stride;
  const float* bias;  // null: none
  bool add;
  std::int64_t ahead;  // bytes from here to what will be read next, fetched meanwhile
};

template <Element kElement, int kRows, int kTakePairs, bool kPacked>
void tile(const TileArgs& args, int first_pair) {
  constexpr std::int64_t kRowBytes = 32 * (kElement == Element::kBf16 ? 2 : 4);
  Vec sums[kRows][2 * kTakePairs] = {};
  const std::byte* panel = args.panel;
  const float* a = args.a;
  const std::int64_t a_row = kPacked ? 1 : args.a_row;
  constexpr std::int64_t a_step = kPacked ? kRows : 1;
  [[maybe_unused]] const std::int64_t ahead = args.ahead;
  for (std::int64_t k = 0; k < args.k; ++k) {
    if constexpr (kRows >
                  2) {  // with fewer, reading is all there is, and the hardware fetches ahead by itself
      for (std::int64_t line = 0; line < kRowBytes; line += 64)
        __builtin_prefetch(panel + ahead + line, 0, 2);
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < kTakePairs; ++pair) {
      Vec low, high;
      load_pair<kElement>(panel, first_pair + pair, low, high);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const Vec value = splat(a[row * a_row]);
        sums[row][2 * pair] = fma(value, low, sums[row][2 * pair]);
        sums[row][2 * pair + 1] = fma(value, high, sums[row][2 * pair + 1]);
      }
    }
    panel += kRowBytes;
    a += a_step;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
    for (int group = 0; group < 2 * kTakePairs; ++group) {
      const int column = (group & 1) * 16 + (first_pair + group / 2) * kLanes;
      float* c = args.c + row * args.c_stride + column;
      Vec value = sums[row][group];
      if (args.add) value = load(c) + value;
      if (args.bias != nullptr) value = value + load(args.bias + column);
      store(c, value);
    }
  }
}

template <Element kElement, int kRows, bool kPacked>
void tile_all_pairs(const TileArgs& args) {
  if constexpr (kRows <= kWideRows) {
    tile<kElement, kRows, kPairs, kPacked>(args, 0);
  } else {
    for (int pair = 0; pair < kPairs; pair += kTilePairs)
      tile<kElement, kRows, kTilePairs, kPacked>(args, pair);
  }
}

using TileCall = void (*)(const TileArgs&);
template <Element kElement, bool kPacked>
struct TileTable {
  TileCall calls[kTileRows + 1] = {};
  constexpr TileTable() { fill<1>(); }
  template <int kRows>
  constexpr void fill() {
    calls[kRows] = tile_all_pairs<kElement, kRows, kPacked>;
    if constexpr (kRows < kTileRows) fill<kRows + 1>();
  }
};
template <Element kElement, bool kPacked>
constexpr TileTable<kElement, kPacked> kTiles{};

void pack_rows(const float* a, std::int64_t stride, std::int64_t m, std::int64_t k_begin, std::int64_t k_end,
               float* out) {
  const RowTiles<kTileRows> tiling(m);
  for (std::int64_t k0 = k_begin; k0 < k_end; k0 += kChain) {
    const std::int64_t k_count = k_end - k0 < kChain ? k_end - k0 : kChain;
    float* to = out + k0 * m;
    const float* from = a + k0;
    for (std::int64_t t = 0; t < tiling.tiles; ++t) {
      const std::int64_t rows = tiling.rows(t);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t k = 0; k < k_count; ++k) to[k * rows + row] = from[row * stride + k];
      }
      from += rows * stride;
      to += rows * k_count;
    }
  }
}

// All rows × one panel × one chain.
template <Element kElement>
void gemm_block(const GemmArgs& args, std::int64_t panel, std::int64_t k0, bool stream) {
  constexpr std::int64_t kRowBytes = 32 * (kElement == Element::kBf16 ? 2 : 4);
  const bool packed = args.a_stride == 0;
  const TileCall* calls = packed ? kTiles<kElement, true>.calls : kTiles<kElement, false>.calls;
  const std::int64_t column = panel * 32;
  const std::int64_t columns = args.n - column < 32 ? args.n - column : 32;
  TileArgs tile_args;
  tile_args.panel = args.panels + panel * args.panel_stride + k0 * kRowBytes;
  tile_args.k = args.k - k0 < kChain ? args.k - k0 : kChain;
  tile_args.a_row = args.a_stride;
  tile_args.a = packed ? args.a + k0 * args.m : args.a + k0;
  tile_args.bias = k0 == 0 && args.bias != nullptr ? args.bias + column : nullptr;
  tile_args.add = args.add || k0 > 0;
  tile_args.ahead = stream ? tile_args.k * kRowBytes : args.panel_stride;
  const RowTiles<kTileRows> tiling(args.m);
  float* c = args.c + column;
  for (std::int64_t t = 0; t < tiling.tiles; ++t) {
    const std::int64_t rows = tiling.rows(t);
    on_whole_panels<kTileRows>(c, args.c_stride, rows, columns, 32, [&](float* to, std::int64_t stride) {
      tile_args.c = to;
      tile_args.c_stride = stride;
      calls[rows](tile_args);
    });
    c += rows * args.c_stride;
    tile_args.a += packed ? rows * tile_args.k : rows * args.a_stride;
  }
}

template <Element kElement>
void gemm_panels(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel) {
  const bool stream = args.m <= kTileRows;
  for_each_block(args.k, stream, first_panel, last_panel,
                 [&](std::int64_t panel, std::int64_t k0) { gemm_block<kElement>(args, panel, k0, stream); });
}

void gemm(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel) {
  if (args.m <= 0) return;
  if (args.element == Element::kBf16) {
    gemm_panels<Element::kBf16>(args, first_panel, last_panel);
  } else {
    gemm_panels<Element::kF32>(args, first_panel, last_panel);
  }
}
