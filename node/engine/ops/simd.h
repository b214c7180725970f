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

/// Sums lanes in a fixed tree.
MESH_INLINE float sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
MESH_INLINE float max_of(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
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

/// e^x to within 2 ulp for x in [−87.3, 88.7]; 0 below −87.4 (so −inf gives 0), +inf above 88.8; exactly 1 at
/// 0. x = n·ln 2 + r with |r| ≤ ½ ln 2 (two-part ln 2), e^r by its Taylor polynomial of degree 7, times 2^n.
MESH_INLINE Vec exp(Vec x) {
  const Vec low = splat(-87.33654f);
  const Vec high = splat(88.72283f);
  const Vec clamped = min(max(x, low), high);
  const Vec magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = fma(clamped, splat(1.44269504f), magic);
  const Vec n = shifted - magic;
  Vec r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r * r, r) + 1.0f;
  // 2^n as two factors, so that neither overflows at n = 128 nor vanishes at n = −126.
  const VecI ni = reinterpret_cast<VecI>(bits_of(shifted)) - 0x4B400000;
  const VecI half = ni >> 1;
  const Vec first = from_bits(reinterpret_cast<VecU>((half + 127) << 23));
  const Vec second = from_bits(reinterpret_cast<VecU>((ni - half + 127) << 23));
  Vec result = p * first * second;
  result = select(x < low, Vec{}, result);
  result = select(x > high, splat(__builtin_inff()), result);
  return select(x != x, x, result);
}
