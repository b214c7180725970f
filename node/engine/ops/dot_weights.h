// Weights of products of rounded inputs, as words of two for each output, and what multiplies and adds them.
// See linear.h for the layouts (PanelOrder::kPairs) and rounded_inputs.h for the arithmetic.

/// 32 words of two weights: a row of a panel.
constexpr std::int64_t kPairBytes = 128;

struct IntegerDot {
  using Sum = VecI;
  MESH_INLINE static VecI step(VecI sum, VecU inputs, VecU weights) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<VecI>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum),
                                                      reinterpret_cast<__m512i>(inputs),
                                                      reinterpret_cast<__m512i>(weights)));
#elif defined(__AVX512BW__)
    return sum + reinterpret_cast<VecI>(_mm512_madd_epi16(reinterpret_cast<__m512i>(inputs),
                                                          reinterpret_cast<__m512i>(weights)));
#elif defined(__AVX2__)
    return sum + reinterpret_cast<VecI>(_mm256_madd_epi16(reinterpret_cast<__m256i>(inputs),
                                                          reinterpret_cast<__m256i>(weights)));
#elif defined(__SSE2__)
    using Shorts = short __attribute__((vector_size(16)));
    return sum + reinterpret_cast<VecI>(__builtin_ia32_pmaddwd128(reinterpret_cast<Shorts>(inputs),
                                                                  reinterpret_cast<Shorts>(weights)));
#else
    const VecI x = reinterpret_cast<VecI>(inputs), w = reinterpret_cast<VecI>(weights);
    return sum + ((x << 16) >> 16) * ((w << 16) >> 16) + (x >> 16) * (w >> 16);
#endif
  }
  MESH_INLINE static Vec to_float(VecI sum) { return __builtin_convertvector(sum, Vec); }
};

#if defined(__AVX512BF16__)
struct BfloatDot {
  using Sum = Vec;
  MESH_INLINE static Vec step(Vec sum, VecU inputs, VecU weights) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(inputs), reinterpret_cast<__m512bh>(weights));
  }
  MESH_INLINE static Vec to_float(Vec sum) { return sum; }
};
#endif

MESH_INLINE VecU load_words(const std::byte* from) {
  VecU words;
  __builtin_memcpy(&words, from, sizeof(words));
  return words;
}

/// Weights that need no decoding: bfloat16, or what unpack() made of codes. Like all weights: a step is
/// kPairs pairs of inputs in kBytes bytes; words() gives the weights of pair `pair` of outputs vec · kLanes
/// ….
template <class Sums>
struct PlainPairs {
  using Dot = Sums;
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = kPairBytes;
  MESH_INLINE static VecU words(const std::byte* step, int, int vec) {
    return load_words(step + vec * kLanes * 4);
  }
};

struct Int8Pairs {
  using Dot = IntegerDot;
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 64;
  static constexpr float kScaleUnit = kInt8Step;
  static constexpr bool kScalesFirst = true;  // the panel begins with its only scales
  MESH_INLINE static VecU words(const std::byte* step, int, int vec) {
    using Bytes = signed char __attribute__((vector_size(kLanes * 2)));
    using Shorts = short __attribute__((vector_size(kLanes * 4)));
    Bytes codes;
    __builtin_memcpy(&codes, step + vec * kLanes * 2, sizeof(codes));
    return reinterpret_cast<VecU>(__builtin_convertvector(codes, Shorts));
  }
};

#if defined(__AVX512BW__)
struct Nf4Words {  // twice: a permutation of 32 words looks at five bits
  std::int16_t values[32] = {};
  constexpr Nf4Words() {
    for (int i = 0; i < 32; ++i) values[i] = kNf4Integers[i % 16];
  }
};
constexpr Nf4Words kNf4Words;
#elif defined(__AVX2__)
struct Nf4Bytes {
  std::uint8_t low[16] = {}, high[16] = {};
  constexpr Nf4Bytes() {
    for (int i = 0; i < 16; ++i) {
      low[i] = static_cast<std::uint8_t>(kNf4Integers[i]);
      high[i] = static_cast<std::uint8_t>(static_cast<std::uint16_t>(kNf4Integers[i]) >> 8);
    }
  }
};
constexpr Nf4Bytes kNf4Bytes;
MESH_INLINE __m256i repeated(const std::uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
#endif

struct Nf4Pairs {
  using Dot = IntegerDot;
  static constexpr int kPairs = 4;
  static constexpr std::int64_t kBytes = 128;
  static constexpr float kScaleUnit = 1.0f / kNf4One;
  static constexpr bool kScalesFirst = false;
  MESH_INLINE static VecU words(const std::byte* step, int pair, int vec) {
    const VecU codes = load_words(step + vec * kLanes * 4);
#if defined(__AVX512BW__)
    const __m512i table = _mm512_loadu_si512(kNf4Words.values);
    const __m512i index =
        _mm512_srli_epi16(reinterpret_cast<__m512i>(codes), static_cast<unsigned>(4 * pair));
    return reinterpret_cast<VecU>(_mm512_permutexvar_epi16(index, table));
#elif defined(__AVX2__)
    const __m256i low = repeated(kNf4Bytes.low), high = repeated(kNf4Bytes.high);
    const __m256i index = _mm256_and_si256(_mm256_srli_epi16(reinterpret_cast<__m256i>(codes), 4 * pair),
                                           _mm256_set1_epi16(15));
    // A byte with its highest bit set gives 0.
    const __m256i lows = _mm256_shuffle_epi8(low, _mm256_or_si256(index, _mm256_set1_epi16(-0x8000)));
    const __m256i highs =
        _mm256_shuffle_epi8(high, _mm256_or_si256(_mm256_slli_epi16(index, 8), _mm256_set1_epi16(0x80)));
    return reinterpret_cast<VecU>(_mm256_or_si256(lows, highs));
#else
    VecU values;
    for (int i = 0; i < kLanes; ++i) {
      const std::uint32_t first = codes[i] >> (4 * pair) & 15, second = codes[i] >> (16 + 4 * pair) & 15;
      values[i] = static_cast<std::uint16_t>(kNf4Integers[first]) |
                  static_cast<std::uint32_t>(kNf4Integers[second]) << 16;
    }
    return values;
#endif
  }
};

#if defined(__AVX512BF16__)
struct Fp8Pairs {
  using Dot = BfloatDot;
  static constexpr int kPairs = 1;
  static constexpr std::int64_t kBytes = 64;
  static constexpr float kScaleUnit = 1;
  static constexpr bool kScalesFirst = false;
  /// E4M3 has four bits of exponent with bias 7, bfloat16 eight with bias 127; the subnormals, multiples of
  /// 2^-9, come from a table.
  MESH_INLINE static VecU words(const std::byte* step, int, int vec) {
    static constexpr std::uint16_t kSubnormals[32] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                      0x3C00, 0x3C20, 0x3C40, 0x3C60};
    const __m512i codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(step + vec * 32)));
    const __m512i size = _mm512_and_si512(_mm512_slli_epi16(codes, 4), _mm512_set1_epi16(0x7F0));
    const __m512i normal = _mm512_add_epi16(size, _mm512_set1_epi16(120 << 7));
    const __m512i table = _mm512_loadu_si512(kSubnormals);
    const __mmask32 small = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x78));
    const __m512i value = _mm512_mask_permutexvar_epi16(normal, small, codes, table);
    const __m512i sign = _mm512_slli_epi16(codes, 8);
    // value | (sign & 0x8000)
    return reinterpret_cast<VecU>(_mm512_ternarylogic_epi32(value, sign, _mm512_set1_epi16(-0x8000), 0xF8));
  }
};
#endif
