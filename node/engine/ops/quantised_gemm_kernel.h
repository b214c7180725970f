// The matrix kernel over quantised panels: like gemm_kernel.h, but the codes of a group of inputs are summed
// first, and the sum is multiplied by the group's scale. See linear.h for the layouts.

/// Codes of a byte each; `Format::widened` gives the values of kLanes of them.
template <class Format>
struct ByteCodes {
  static constexpr std::int64_t kInputs = 1, kBytes = 32;  // of one step

  const std::byte* at;
  int pair;
  MESH_INLINE void fetch(const std::byte* step, int which) {
    at = step;
    pair = which;
  }
  MESH_INLINE void decode(int, Vec& low, Vec& high) const {
    low = Format::widened(at + pair * kLanes);
    high = Format::widened(at + 16 + pair * kLanes);
  }
};

struct Int8Codes : ByteCodes<Int8Codes> {
  static constexpr float kScaleUnit = kInt8Step;
  static constexpr bool kScalesFirst = true;  // the panel begins with its only scales

  MESH_INLINE static Vec widened(const std::byte* from) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    Vec v;
    for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(static_cast<std::int8_t>(from[i]));
    return v;
#endif
  }
};

struct Fp8Codes : ByteCodes<Fp8Codes> {
  static constexpr float kScaleUnit = 1;
  static constexpr bool kScalesFirst = false;

  /// As a float's exponent and mantissa the code is too small by 2^120.
  MESH_INLINE static Vec widened(const std::byte* from) {
#if defined(__AVX512F__)
    const VecU codes =
        reinterpret_cast<VecU>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    const VecU codes =
        reinterpret_cast<VecU>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    VecU codes;
    for (int i = 0; i < kLanes; ++i) codes[i] = static_cast<std::uint32_t>(from[i]);
#endif
    const Vec size = from_bits((codes & 0x7Fu) << 20) * 0x1p120f;
    return from_bits(bits_of(size) | (codes & 0x80u) << 24);
  }
};

struct Nf4Codes {
  static constexpr std::int64_t kInputs = 4, kBytes = 64;
  static constexpr float kScaleUnit = 1;
  static constexpr bool kScalesFirst = false;

  const std::byte* at;
  MESH_INLINE void fetch(const std::byte* step, int pair) { at = step + pair * kLanes * 4; }
  MESH_INLINE void decode(int input, Vec& low, Vec& high) const {
    low = values(shifted(4 * input));
    high = values(shifted(16 + 4 * input));
  }
  /// Words whose bits from `bits` on come lowest; the highest may be the next word's. Whole bytes are skipped
  /// by loading from there: shifts and permutations share the same ports.
  MESH_INLINE VecU shifted(int bits) const {
    VecU words;
    __builtin_memcpy(&words, at + bits / 8, sizeof(words));
    return bits % 8 == 0 ? words : words >> (bits % 8);
  }
  /// The values of the codes in the low four bits.
  MESH_INLINE static Vec values(VecU codes) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(codes), load(kNf4Values));
#elif defined(__AVX2__)
    const __m256i index = reinterpret_cast<__m256i>(codes);
    const Vec below = _mm256_permutevar8x32_ps(load(kNf4Values), index);
    const Vec above = _mm256_permutevar8x32_ps(load(kNf4Values + 8), index);
    return _mm256_blendv_ps(below, above, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
#else
    Vec v;
    for (int i = 0; i < kLanes; ++i) v[i] = kNf4Values[codes[i] & 15];
    return v;
#endif
  }
};

struct QuantisedTile {
  const std::byte* scales;  // of the first group
  const std::byte* codes;
  std::int64_t groups, group_stride;  // bytes from group to group, for both
  std::int64_t steps;                 // of a group
  std::int64_t panel_stride;
  const float* a;
  std::int64_t a_row;
  float* c;
  std::int64_t c_stride;
  const float* bias;
  bool add;
  std::int64_t ahead;  // bytes from here to what will be read next, fetched meanwhile
};

// kRows rows × kPanels panels, of these the pairs [first_pair, first_pair + kTakePairs) of lane groups.
template <class Codes, int kRows, int kTakePairs, int kPanels, bool kPacked>
void quantised_tile(const QuantisedTile& args, int first_pair) {
  const float* a = args.a;
  const std::int64_t a_row = kPacked ? 1 : args.a_row;
  constexpr std::int64_t a_step = kPacked ? kRows : 1;
  for (std::int64_t group = 0; group < args.groups; ++group) {
    Vec sums[kPanels][kRows][2 * kTakePairs] = {};
    const std::byte* codes = args.codes + group * args.group_stride;
    for (std::int64_t step = 0; step < args.steps; ++step) {
#pragma GCC unroll 4
      for (int panel = 0; panel < kPanels; ++panel) {
        const std::byte* at = codes + panel * args.panel_stride;
        if (Codes::kBytes == 64 || step % 2 == 0) __builtin_prefetch(at + args.ahead, 0, 2);
#pragma GCC unroll 4
        for (int pair = 0; pair < kTakePairs; ++pair) {
          Codes fetched;
          fetched.fetch(at, first_pair + pair);
#pragma GCC unroll 4
          for (int input = 0; input < static_cast<int>(Codes::kInputs); ++input) {
            Vec low, high;
            fetched.decode(input, low, high);
#pragma GCC unroll 16
            for (int row = 0; row < kRows; ++row) {
              const Vec value = splat(a[row * a_row + input * a_step]);
              Vec* sum = &sums[panel][row][2 * pair];
              sum[0] = fma(value, low, sum[0]);
              sum[1] = fma(value, high, sum[1]);
            }
          }
        }
      }
      codes += Codes::kBytes;
      a += Codes::kInputs * a_step;
    }
#pragma GCC unroll 4
    for (int panel = 0; panel < kPanels; ++panel) {
      const float* scales =
          reinterpret_cast<const float*>(args.scales + panel * args.panel_stride + group * args.group_stride);
#pragma GCC unroll 8
      for (int vec = 0; vec < 2 * kTakePairs; ++vec) {
        const int column = (vec & 1) * 16 + (first_pair + vec / 2) * kLanes;
        const Vec scale = load(scales + column) * splat(Codes::kScaleUnit);
        float* c = args.c + panel * 32 + column;
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row, c += args.c_stride) {
          Vec base = args.add || group > 0 ? load(c) : Vec{};
          if (args.bias != nullptr && group == 0) base = base + load(args.bias + panel * 32 + column);
          store(c, fma(scale, sums[panel][row][vec], base));
        }
      }
    }
  }
}

// Panels that are read side by side, so that enough independent sums hide the latency of a multiply-add.
constexpr int panels_at_once(int rows) {
  if (kLanes == 16) return rows <= 2 ? 4 : rows <= 5 ? 2 : 1;
  return kLanes == 8 && rows == 1 ? 2 : 1;
}

template <class Codes, int kRows, int kPanels, bool kPacked>
void quantised_tile_all_pairs(const QuantisedTile& args) {
  if constexpr (kRows <= kWideRows) {
    quantised_tile<Codes, kRows, kPairs, kPanels, kPacked>(args, 0);
  } else {
    for (int pair = 0; pair < kPairs; pair += kTilePairs)
      quantised_tile<Codes, kRows, kTilePairs, kPanels, kPacked>(args, pair);
  }
}

using QuantisedCall = void (*)(const QuantisedTile&);
template <class Codes, bool kPacked>
struct QuantisedTable {
  QuantisedCall calls[kTileRows + 1][5] = {};  // by rows and panels
  constexpr QuantisedTable() { fill<1, 1>(); }
  template <int kRows, int kPanels>
  constexpr void fill() {
    calls[kRows][kPanels] = quantised_tile_all_pairs<Codes, kRows, kPanels, kPacked>;
    if constexpr (2 * kPanels <= panels_at_once(kRows)) {
      fill<kRows, 2 * kPanels>();
    } else if constexpr (kRows < kTileRows) {
      fill<kRows + 1, 1>();
    }
  }
};
template <class Codes, bool kPacked>
constexpr QuantisedTable<Codes, kPacked> kQuantisedTiles{};

// All rows × `panels` panels × one chain.
template <class Codes>
void quantised_block(const GemmArgs& args, std::int64_t panel, std::int64_t panels, std::int64_t k0) {
  const bool packed = args.a_stride == 0;
  const auto& calls = packed ? kQuantisedTiles<Codes, true>.calls : kQuantisedTiles<Codes, false>.calls;
  const std::int64_t column = panel * 32;
  const std::int64_t columns = args.n - column < panels * 32 ? args.n - column : panels * 32;
  const std::int64_t k_count = args.k - k0 < kChain ? args.k - k0 : kChain;
  const std::byte* first = args.panels + panel * args.panel_stride;
  QuantisedTile tile;
  tile.panel_stride = args.panel_stride;
  if constexpr (Codes::kScalesFirst) {
    tile.groups = 1;
    tile.group_stride = 0;
    tile.steps = k_count;
    tile.scales = first;
    tile.codes = first + kPanelScales + k0 * Codes::kBytes;
  } else {
    tile.groups = k_count / args.group;
    tile.steps = args.group / Codes::kInputs;
    tile.group_stride = kPanelScales + tile.steps * Codes::kBytes;
    tile.scales = first + k0 / args.group * tile.group_stride;
    tile.codes = tile.scales + kPanelScales;
  }
  tile.ahead = panels * args.panel_stride;  // the next panels' same inputs
  tile.a_row = args.a_stride;
  tile.a = packed ? args.a + k0 * args.m : args.a + k0;
  tile.bias = k0 == 0 && args.bias != nullptr ? args.bias + column : nullptr;
  tile.add = args.add || k0 > 0;
  const RowTiles<kTileRows> tiling(args.m);
  float* c = args.c + column;
  for (std::int64_t t = 0; t < tiling.tiles; ++t) {
    const std::int64_t rows = tiling.rows(t);
    on_whole_panels<kTileRows>(c, args.c_stride, rows, columns, panels * 32,
                               [&](float* to, std::int64_t stride) {
                                 tile.c = to;
                                 tile.c_stride = stride;
                                 calls[rows][panels](tile);
                               });
    c += rows * args.c_stride;
    tile.a += packed ? rows * k_count : rows * args.a_stride;
  }
}

template <class Codes>
void quantised_gemm(const GemmArgs& args, std::int64_t first_panel, std::int64_t last_panel) {
  if (args.m <= 0) return;
  if (args.m > kTileRows) {
    for_each_block(args.k, false, first_panel, last_panel,
                   [&](std::int64_t panel, std::int64_t k0) { quantised_block<Codes>(args, panel, 1, k0); });
    return;
  }
  for (std::int64_t panel = first_panel; panel < last_panel;) {
    const std::int64_t end = args.n < last_panel * 32 ? args.n / 32 : last_panel;  // of the full panels
    std::int64_t panels = panels_at_once(static_cast<int>(args.m));
    while (panels > 1 && panel + panels > end) panels /= 2;
    for (std::int64_t k0 = 0; k0 < args.k; k0 += kChain) quantised_block<Codes>(args, panel, panels, k0);
    panel += panels;
  }
}
