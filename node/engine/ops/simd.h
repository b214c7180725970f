// Vectors of one instruction set. Only the kernels_*.cc files include this, each with its own compile flags,
// inside an anonymous namespace; so it has no include guard against itself in other namespaces and includes
// nothing but intrinsics, which those files include beforehand. Vec is a GCC vector of kLanes floats: + − · /
// and comparisons are the language's own.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * 4)));
using VecU = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using VecI = std::int32_t __attribute__((vector_size(kLanes * 4)));
using VecH = std::uint16_t __attribute__((vector_size(kLanes * 2)));

#define MESH_INLINE inline __attribute__((always_inline))

MESH_INLINE Vec load(const float* from) {
  Vec v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
MESH_INLINE void store(float* to, Vec v) {
  __builtin_memcpy(to, &v, sizeof(v));
}
MESH_INLINE Vec splat(float value) {
  return value - Vec{};
}
MESH_INLINE Vec select(VecI mask, Vec yes, Vec no) {
  return mask ? yes : no;
}
MESH_INLINE VecU bits_of(Vec v) {
  return reinterpret_cast<VecU>(v);
}
MESH_INLINE Vec from_bits(VecU v) {
  return reinterpret_cast<Vec>(v);
}

/// The bits of v as bfloat16, to nearest even: add half of the last kept bit less one, plus that bit. NaN
/// gets its quiet bit instead.
MESH_INLINE VecU bf16_words(Vec v) {
  const VecU bits = bits_of(v);
  const VecU rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return (v != v) ? ((bits >> 16) | 0x40u) : rounded;
}

/// a · b + c, one rounding where the instruction set has it.
MESH_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
MESH_INLINE Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
MESH_INLINE Vec min(Vec a, Vec b) {
  return a < b ? a : b;
}

/// Every lane i becomes op(v[i], v[i ^ kWidth]), for kWidth = kLanes / 2, …, 1: a fixed tree, its value in
/// every lane.
template <int kWidth = kLanes / 2, class Op>
MESH_INLINE Vec reduce(Vec v, const Op& op) {
  if constexpr (kWidth == 0) {
    return v;
  } else {
    VecI order;
    for (int i = 0; i < kLanes; ++i) order[i] = i ^ kWidth;
    return reduce<kWidth / 2>(op(v, __builtin_shuffle(v, order)), op);
  }
}
MESH_INLINE float sum(Vec v) {
  return reduce(v, [](Vec a, Vec b) { return a + b; })[0];
}
MESH_INLINE float max_of(Vec v) {
  return reduce(v, [](Vec a, Vec b) { return max(a, b); })[0];
}

/// The first `count` < kLanes values, the other lanes `fill`.
MESH_INLINE Vec load_part(const float* from, std::int64_t count, float fill = 0) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < count ? from[i] : fill;
  return load(lanes);
}
MESH_INLINE void store_part(float* to, Vec v, std::int64_t count) {
  float lanes[kLanes];
  store(lanes, v);
  for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

/// out[i] = op(i, vector at i) for n values; `in` gives the vector of kLanes (or the last few) values at an
/// index.
template <class Op>
MESH_INLINE void for_each_vec(std::int64_t n, const Op& op) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) op(i, static_cast<std::int64_t>(kLanes));
  if (i < n) op(i, n - i);
}
MESH_INLINE Vec load_n(const float* from, std::int64_t count) {
  return count == kLanes ? load(from) : load_part(from, count);
}
MESH_INLINE void store_n(float* to, Vec v, std::int64_t count) {
  if (count == kLanes) {
    store(to, v);
  } else {
    store_part(to, v, count);
  }
}

/// e^r · 2^n = e^x: n the nearest integer to x / ln 2 (as float bits around 1.5 · 2^23), e^r = 1 + r +
/// r²·P(r) with Cephes' expf polynomial, |r| ≤ ½ ln 2. For |x| < 2^22.
struct ExpParts {
  Vec power;
  VecI n;
};
MESH_INLINE ExpParts exp_parts(Vec x) {
  const Vec magic = splat(12582912.0f);
  const Vec shifted = fma(x, splat(1.44269504f), magic);
  const Vec n = shifted - magic;
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return {fma(p, r * r, r) + 1.0f, reinterpret_cast<VecI>(bits_of(shifted)) - 0x4B400000};
}
MESH_INLINE Vec power_of_two(VecI n) {
  return from_bits(reinterpret_cast<VecU>((n + 127) << 23));
}

/// e^x within 2 ulp; 0 where it is below 2^−126 (so for −inf), +inf from 88.73 on; exactly 1 at 0; NaN stays.
MESH_INLINE Vec exp(Vec x) {
  const Vec low = splat(-87.33654f);
  const Vec high = splat(88.72283f);
  const ExpParts parts = exp_parts(min(max(x, low), high));
  const VecI half = parts.n >> 1;  // two factors: one alone would overflow at n = 128
  Vec result = parts.power * power_of_two(half) * power_of_two(parts.n - half);
  result = select(x < low, Vec{}, result);
  result = select(x > high, splat(__builtin_inff()), result);
  return select(x != x, x, result);
}

/// The same for x ≤ 0 (softmax), cheaper.
MESH_INLINE Vec exp_nonpositive(Vec x) {
  const Vec low = splat(-88.0f);  // where n = −127, whose bits make a factor of 0
  const ExpParts parts = exp_parts(select(x < low, low, x));
  return parts.power * power_of_two(parts.n);
}
