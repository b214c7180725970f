// Rounds the inputs of products (rounded_inputs.h) and lays them as dot_kernel.h reads them.

/// The inputs of one chain of a tile's rows as words of pairs, [pairs, rows]; round(values, count) gives
/// halves for each vector of values.
template <class Round>
MESH_INLINE void pack_row(const float* from, std::int64_t count, std::int64_t rows, std::uint32_t* to,
                          const Round& round) {
  alignas(64) std::uint16_t halves[kChain + kLanes];
  for_each_vec(count, [&](std::int64_t i, std::int64_t values) {
    const VecH half = __builtin_convertvector(round(load_n(from + i, values)), VecH);
    __builtin_memcpy(halves + i, &half, sizeof(half));
  });
  for (std::int64_t pair = 0; pair < count / 2; ++pair)
    __builtin_memcpy(to + pair * rows, halves + 2 * pair, sizeof(*to));
}

/// Where the inputs of a chain of a tile's rows come from and go to.
struct PackPlace {
  std::int64_t first_row, rows, k0, count;
  const float* from;
  std::uint32_t* to;
  PackPlace(const DotInputs& in, std::int64_t chain, std::int64_t tile) {
    const RowTiles<kDotRows> tiling(in.m);
    first_row = tiling.first(tile);
    rows = tiling.rows(tile);
    k0 = chain * kChain;
    count = in.k - k0 < kChain ? in.k - k0 : kChain;
    from = in.x + first_row * in.stride + k0;
    to = in.words + k0 / 2 * in.m + first_row * (count / 2);
  }
};

#if defined(__AVX512BF16__)
void pack_bf16_pairs(const DotInputs& in, std::int64_t chain, std::int64_t tile) {
  const PackPlace place(in, chain, tile);
  for (std::int64_t row = 0; row < place.rows; ++row) {
    pack_row(place.from + row * in.stride, place.count, place.rows, place.to + row,
             [](Vec values) { return bf16_words(values); });
  }
}
#endif

void pack_integer_pairs(const DotInputs& in, std::int64_t chain, std::int64_t tile) {
  const PackPlace place(in, chain, tile);
  for (std::int64_t row = 0; row < place.rows; ++row) {
    const float* from = place.from + row * in.stride;
    VecI sizes{};
    for_each_vec(place.count, [&](std::int64_t i, std::int64_t values) {
      const VecI size = reinterpret_cast<VecI>(bits_of(load_n(from + i, values)) & 0x7FFFFFFFu);
      sizes = size > sizes ? size : sizes;
    });
    std::int32_t largest_bits = 0;
    for (int lane = 0; lane < kLanes; ++lane)
      largest_bits = sizes[lane] > largest_bits ? sizes[lane] : largest_bits;
    const bool finite = largest_bits < 0x7F800000;
    float largest;
    __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
    const bool zero = !finite || largest <= kSmallestInput;
    const float factor = zero ? 0.0f : kInputSteps / largest;
    in.steps[chain * in.m + place.first_row + row] = !finite ? __builtin_nanf("")
                                                     : zero  ? 0.0f
                                                             : largest / kInputSteps;
    pack_row(from, place.count, place.rows, place.to + row, [factor, zero](Vec values) {
      // The float's low bits are the nearest integer, to even.
      const Vec shifted = values * factor + splat(12582912.0f);
      return zero ? VecU{} : bits_of(shifted);
    });
  }
}
