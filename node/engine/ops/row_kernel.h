// Kernels over one row of values.

// The scores of vector i, scaled and masked; −inf where nothing is to be seen.
MESH_INLINE Vec visible_scores(const SoftmaxRow& row, std::int64_t i) {
  const Vec hidden = splat(-__builtin_inff());
  if (row.begin <= i && i + kLanes <= row.end) {
    const Vec scores = load(row.scores + i) * row.scale;
    return row.mask != nullptr ? scores + load(row.mask + i) : scores;
  }
  Vec scores = hidden;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t at = i + lane;
    if (at < row.begin || at >= row.end) continue;
    scores[lane] = row.scores[at] * row.scale;
    if (row.mask != nullptr) scores[lane] += row.mask[at];
  }
  return scores;
}

float softmax_row(const SoftmaxRow& row, SoftmaxState& state) {
  float* s = row.scores;  // room for whole vectors: a block has 128
  const std::int64_t first = row.begin / kLanes * kLanes;
  Vec best = splat(-__builtin_inff());
  for (std::int64_t i = first; i < row.end; i += kLanes) {
    const Vec scores = visible_scores(row, i);
    best = max(best, scores);
    store(s + i, scores);
  }
  const float block_max = max_of(best);
  const float old_max = state.max;
  const float new_max = block_max <= old_max ? old_max : block_max;  // NaN stays
  const bool nothing = new_max == -__builtin_inff();
  const std::int64_t begin = nothing ? row.count : first;
  for (std::int64_t i = 0; i < begin; ++i) s[i] = 0;
  if (nothing) return 1;
  Vec total{};
  std::int64_t i = first;
  for (; i < row.end; i += kLanes) {
    const Vec weights = exp_nonpositive(load(s + i) - new_max);
    total = total + weights;
    store(s + i, weights);
  }
  for (; i < row.count; ++i) s[i] = 0;
  const float shrink = old_max == new_max ? 1.0f : exp_nonpositive(splat(old_max - new_max))[0];
  state.max = new_max;
  state.sum = state.sum * shrink + sum(total);
  return shrink;
}

void scale(float* x, std::int64_t n, float factor) {
  for_each_vec(
      n, [&](std::int64_t i, std::int64_t count) { store_n(x + i, load_n(x + i, count) * factor, count); });
}

void add(float* x, const float* y, std::int64_t n) {
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    store_n(x + i, load_n(x + i, count) + load_n(y + i, count), count);
  });
}

void exp_row(float* x, std::int64_t n) {
  for_each_vec(n,
               [&](std::int64_t i, std::int64_t count) { store_n(x + i, exp(load_n(x + i, count)), count); });
}

void rms_norm(const float* x, const float* weight, float offset, float eps, std::int64_t n, float* out) {
  Vec squares[2] = {};
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    const Vec v = load_n(x + i, count);
    Vec& total = squares[(i / kLanes) & 1];
    total = fma(v, v, total);
  });
  const float mean = sum(squares[0] + squares[1]) / static_cast<float>(n);
  const float factor = 1.0f / __builtin_sqrtf(mean + eps);
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    store_n(out + i, load_n(x + i, count) * factor * (load_n(weight + i, count) + offset), count);
  });
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t n,
                float* out) {
  Vec total{};
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) { total = total + load_n(x + i, count); });
  const float mean = sum(total) / static_cast<float>(n);
  Vec squares{};
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    Vec v = load_n(x + i, count) - mean;
    if (count != kLanes) v = load_part(reinterpret_cast<const float*>(&v), count);
    squares = fma(v, v, squares);
  });
  const float factor = 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps);
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    Vec v = (load_n(x + i, count) - mean) * factor * load_n(weight + i, count);
    if (bias != nullptr) v = v + load_n(bias + i, count);
    store_n(out + i, v, count);
  });
}

void rotary(float* x, const float* cos, const float* sin, std::int64_t half) {
  for_each_vec(half, [&](std::int64_t i, std::int64_t count) {
    const Vec a = load_n(x + i, count), b = load_n(x + half + i, count);
    const Vec c = load_n(cos + i, count), s = load_n(sin + i, count);
    store_n(x + i, a * c - b * s, count);
    store_n(x + half + i, b * c + a * s, count);
  });
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* out) {
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    const Vec a = load_n(gate + i, count);
    store_n(out + i, a / (exp(-a) + 1.0f) * load_n(up + i, count), count);
  });
}

// ½·x·(1 + tanh u) = x / (1 + e^−2u).
void gelu_tanh(float* x, std::int64_t n) {
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    const Vec v = load_n(x + i, count);
    const Vec u = fma(v * v, v * 0.044715f, v) * 0.7978845608f;
    store_n(x + i, v / (exp(u * -2.0f) + 1.0f), count);
  });
}

void to_bf16(const float* x, std::int64_t n, void* out) {
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    const VecH half = __builtin_convertvector(bf16_words(load_n(x + i, count)), VecH);
    __builtin_memcpy(static_cast<char*>(out) + i * 2, &half, static_cast<std::size_t>(count) * 2);
  });
}

void from_bf16(const void* x, std::int64_t n, float* out) {
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    VecH half{};
    __builtin_memcpy(&half, static_cast<const char*>(x) + i * 2, static_cast<std::size_t>(count) * 2);
    store_n(out + i, from_bits(__builtin_convertvector(half, VecU) << 16), count);
  });
}

float largest(const float* x, std::int64_t n) {
  const Vec least = splat(-__builtin_inff());
  Vec best[2] = {least, least};
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    const Vec v = count == kLanes ? load(x + i) : load_part(x + i, count, -__builtin_inff());
    Vec& most = best[(i / kLanes) & 1];
    most = v > most ? v : most;
  });
  return max_of(max(best[0], best[1]));
}

bool all_finite(const float* x, std::int64_t n) {
  VecI bad{};
  for_each_vec(n, [&](std::int64_t i, std::int64_t count) {
    bad = bad | ((bits_of(load_n(x + i, count)) & 0x7F800000u) == 0x7F800000u);
  });
  for (int lane = 0; lane < kLanes; ++lane) {
    if (bad[lane] != 0) return false;
  }
  return true;
}
