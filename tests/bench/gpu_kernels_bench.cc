// Time of each kernel of the fused path alone, in a graph of many launches over matrices and caches that do
// not fit in L2, at the shapes of an 8B Llama layer.

#include "node/engine/cuda/kernels/tile_linear.h"
#include "tests/bench/gpu_layer.h"

namespace mesh::bench {
namespace {

constexpr int kCopies = 16;  // of every matrix
constexpr int kRows = 512;

void products(Bench& bench) {
  const void* wide = random(kRows * kInner, false);
  const void* narrow = random(kRows * kInner, true);
  const auto* norm = static_cast<const float*>(random(kInner, false));
  void* y = take(std::size_t{kRows} * 2 * kInner * 4);
  for (const Shape& shape : kShapes) {
    const std::size_t values = std::size_t(shape.out) * std::size_t(shape.in);
    void* weights = random(values * kCopies, true, 0.02f);
    for (const int rows : {1, 2}) {
      const auto bytes = static_cast<double>(values * 2);
      bench.measure(fmt::format("{}, {} rows", shape.name, rows), bytes, 64, [&](int i) {
        return stream_linear(bench.launch(),
                             {static_cast<const std::uint16_t*>(weights) + values * std::size_t(i % kCopies),
                              nullptr, shape.out, shape.in, shape.norm ? wide : narrow,
                              shape.norm ? norm : nullptr, 1e-5f, rows, shape.store, y});
      });
    }
    must(cudaFree(weights));
  }
}

void gated_products(Bench& bench) {
  const std::size_t values = std::size_t{2 * kInner} * kHidden;
  const auto* weights = static_cast<const std::uint16_t*>(random(values * kCopies, true, 0.02f));
  const void* x = random(std::size_t{kRows} * kHidden, true);
  void* y = take(std::size_t{kRows} * kInner * 2);
  for (const int rows : {1, 16, 64, 128, 512}) {
    bench.measure(fmt::format("gated, {} rows", rows), static_cast<double>(values * 2), 64, [&](int i) {
      return gated_linear(bench.launch(), {weights + values * std::size_t(i % kCopies), nullptr, kInner,
                                           kHidden, x, rows, y});
    });
  }
  must(cudaFree(const_cast<std::uint16_t*>(weights)));
}

void tiles(Bench& bench) {
  const void* x = random(std::size_t{kRows} * kInner, true);
  auto* y = static_cast<float*>(take(std::size_t{kRows} * kQkv * kMostParts * 4));
  for (const Shape& shape : kShapes) {
    if (shape.store == StreamStore::kSiluMul) continue;
    const std::size_t values = std::size_t(shape.out) * std::size_t(shape.in);
    auto* weights = static_cast<std::uint16_t*>(random(values * kCopies, true, 0.02f));
    for (const int rows : {4, 16, 32, 64, 128, 512}) {
      const int parts = shape.store == StreamStore::kAssign
                            ? 1
                            : tile_parts(bench.launch(), shape.out, shape.in, rows, 2 * kRows);
      bench.measure(fmt::format("{}, {} rows, {} part(s)", shape.name, rows, parts),
                    static_cast<double>(values * 2), 64, [&](int i) {
                      return tile_linear(bench.launch(), {weights + values * std::size_t(i % kCopies),
                                                          shape.out, shape.in, x, rows, y, parts});
                    });
    }
    must(cudaFree(weights));
  }
}

/// `sessions` of `context` tokens in the caches of several layers, and `rows` more of each.
class PagedRows {
 public:
  PagedRows(int sessions, int context, int rows, int splits) : total_(sessions * rows), splits_(splits) {
    const int blocks = (context + rows + kKvBlock - 1) / kKvBlock;
    layers_ = std::clamp(
        static_cast<int>((std::size_t{4} << 30) / (kLayer * 2 * std::size_t(blocks * sessions))), 1, 32);
    cache_ = static_cast<std::uint16_t*>(
        random(kLayer * std::size_t(layers_) * std::size_t(blocks * sessions), true));
    std::vector<std::byte*> table;
    for (int i = 0; i < blocks * sessions; ++i)
      table.push_back(reinterpret_cast<std::byte*>(cache_ + kLayer * std::size_t(layers_) * std::size_t(i)));
    std::vector<int> place, first;
    std::vector<Tile> tiles;
    for (int session = 0; session < sessions; ++session) {
      for (int i = 0; i < rows; i += kTileRows) {
        tiles.push_back(
            {session * rows + i, std::min(kTileRows, rows - i), context + i, session * blocks, context});
      }
      for (int i = 0; i < rows; ++i) place.push_back(context + i), first.push_back(session * blocks);
    }
    tiles_ = static_cast<int>(tiles.size());
    tables_.place = on_gpu(place), tables_.first_block = on_gpu(first), tables_.tiles = on_gpu(tiles),
    tables_.blocks = on_gpu(table);
    const auto* angles = static_cast<const float*>(random(std::size_t(total_) * kDim / 2, false));
    work_.qkv = static_cast<const float*>(random(std::size_t(total_) * kQkv, false));
    work_.heads = kHeads, work_.scale = 0.088f;
    work_.preparation.cos = work_.preparation.sin = angles, work_.preparation.pairs = kDim / 2;
    work_.kv.kv_heads = kKvHeads, work_.kv.head_dim = kDim;
    q_ = take(std::size_t(total_) * kHeads * kDim * 2), out_ = take(std::size_t(total_) * kHeads * kDim * 2);
    scratch_ = {static_cast<float*>(take(split_floats(total_, kHeads, kDim, splits) * 4)),
                static_cast<unsigned*>(take(std::size_t(total_) * kHeads * 4))};
  }
  ~PagedRows() {
    must(cudaDeviceSynchronize());
    must(cudaFree(cache_));
  }
  PagedRows(const PagedRows&) = delete;

  cudaError_t rows(const Bench& bench, int layer) const {
    return row_attention(bench.launch(), tables_, at(layer), nullptr, out_, total_, splits_, scratch_);
  }
  cudaError_t append(const Bench& bench, int layer) const {
    return append_rows(bench.launch(), tables_, at(layer), q_, total_);
  }
  cudaError_t tiles(const Bench& bench, int layer) const {
    return tile_attention(bench.launch(), tables_, at(layer), q_, out_, tiles_, total_, splits_, scratch_);
  }
  /// With the product before it: `weights` [kQkv, kHidden], x [rows, kHidden].
  cudaError_t heads(const Bench& bench, int layer, const void* weights, const void* x) const {
    return heads_linear(bench.launch(), {weights, kHidden, x, total_, tables_, at(layer), q_});
  }
  cudaError_t warpgroups(const Bench& bench, int layer) const {
    return warpgroup_attention(bench.launch(), tables_, at(layer), q_, out_, tiles_, splits_);
  }
  const void* attended() const { return out_; }

 private:
  static constexpr std::size_t kLayer = 2 * std::size_t{kKvBlock} * kKvHeads * kDim;
  AttentionRows at(int layer) const {
    AttentionRows one = work_;
    one.kv.layer_offset = static_cast<std::int64_t>(kLayer * 2 * std::size_t(layer % layers_));
    return one;
  }

  int total_, splits_, tiles_ = 0, layers_ = 1;
  std::uint16_t* cache_;
  StepTables tables_;
  AttentionRows work_;
  void *q_, *out_;
  SplitScratch scratch_;
};

void attention(Bench& bench, int sessions, int context, int rows, int splits) {
  const PagedRows work(sessions, context, rows, splits);
  const std::string what = fmt::format("{} x {} rows after {}, {} splits", sessions, rows, context, splits);
  if (rows == 1) {
    const double bytes = double(sessions) * (context + rows) * kKvHeads * kDim * 4;
    bench.measure(what + ", rows", bytes, 64, [&](int i) { return work.rows(bench, i); });
    bench.use_tensor_cores(false);
    bench.measure(what + ", rows without tensor cores", bytes, 64,
                  [&](int i) { return work.rows(bench, i); });
    bench.use_tensor_cores(true);
  } else {
    bench.measure(what + ", append", 0, 64, [&](int i) { return work.append(bench, i); });
    bench.measure(what + ", tiles", 0, 64, [&](int i) { return work.tiles(bench, i); });
    if (splits <= 8)
      bench.measure(what + ", warpgroups", 0, 64, [&](int i) { return work.warpgroups(bench, i); });
  }
}

/// A layer's launches in turn, for `rows` rows after `context`; matrices of several layers.
void layer_of_rows(Bench& bench, int context, int rows, int splits) {
  constexpr int kLayersHeld = 8;
  std::vector<const std::uint16_t*> weights;
  for (const Shape& shape : kShapes) {
    weights.push_back(static_cast<std::uint16_t*>(
        random(std::size_t{kLayersHeld} * std::size_t(shape.out) * std::size_t(shape.in), true, 0.02f)));
  }
  const auto matrix = [&](std::size_t which, int layer) {
    const Shape& shape = kShapes[which];
    return weights[which] + std::size_t(layer % kLayersHeld) * std::size_t(shape.out) * std::size_t(shape.in);
  };
  const PagedRows work(1, context, rows, splits);
  auto* x = static_cast<float*>(random(std::size_t(rows) * kHidden, false));
  auto* delta = static_cast<float*>(take(std::size_t{2} * kRows * kHidden * 4));
  const auto* norm = static_cast<const float*>(random(kHidden, false));
  void *normed = take(std::size_t(rows) * kHidden * 2), *gated = take(std::size_t(rows) * kInner * 2);
  const auto add = [&](std::size_t which, int layer, const void* from) {
    const int parts = tile_parts(bench.launch(), kHidden, kShapes[which].in, rows, 2 * kRows);
    must(tile_linear(bench.launch(),
                     {matrix(which, layer), kHidden, kShapes[which].in, from, rows, delta, parts}));
    return norm_parts(bench.launch(), x, delta, parts, nullptr, norm, 1e-5f, normed, rows, kHidden);
  };
  bench.measure(fmt::format("a layer of {} rows after {}", rows, context), 436.2e6, kLayers, [&](int i) {
    must(work.heads(bench, i, matrix(0, i), normed));
    must(work.warpgroups(bench, i));
    must(add(1, i, work.attended()));
    must(gated_linear(bench.launch(), {matrix(2, i), nullptr, kInner, kHidden, normed, rows, gated}));
    return add(3, i, gated);
  });
  for (const auto* memory : weights) must(cudaFree(const_cast<std::uint16_t*>(memory)));
}

void heads(Bench& bench) {
  const std::size_t values = std::size_t{kQkv} * kHidden;
  const auto* weights = static_cast<const std::uint16_t*>(random(values * kCopies, true, 0.02f));
  const void* x = random(std::size_t{kRows} * kHidden, true);
  for (const int rows : {16, 64, 128, 512}) {
    const PagedRows work(1, 1024, rows, 1);
    bench.measure(fmt::format("heads, {} rows", rows), static_cast<double>(values * 2), 64, [&](int i) {
      return work.heads(bench, i, weights + values * std::size_t(i % kCopies), x);
    });
  }
  must(cudaFree(const_cast<std::uint16_t*>(weights)));
}

void chain(Bench& bench) {
  std::vector<std::uint16_t*> weights;
  for (const Shape& shape : kShapes) {
    weights.push_back(static_cast<std::uint16_t*>(
        random(kLayers * std::size_t(shape.out) * std::size_t(shape.in), true, 0.02f)));
  }
  measure_layer(
      bench, "a layer of one row", 436.2e6, [&](std::size_t which, int layer, StreamLinear& linear) {
        const Shape& shape = kShapes[which];
        linear.weight = weights[which] + std::size_t(layer) * std::size_t(shape.out) * std::size_t(shape.in);
      });
  for (auto* memory : weights) must(cudaFree(memory));
}

void rows(Bench& bench, int count) {
  auto* x = static_cast<float*>(random(std::size_t(count) * kHidden, false));
  auto* delta = static_cast<float*>(random(std::size_t(count) * kHidden, false, 1e-6f));
  const auto* weight = static_cast<const float*>(random(kHidden, false));
  void* wide = random(std::size_t(count) * 2 * kInner, true);
  void* out = take(std::size_t(count) * kInner * 2);
  bench.measure(fmt::format("norm of {} rows", count), 0, 64, [&](int) {
    return norm_rows(bench.launch(), x, delta, nullptr, weight, 1e-5f, nullptr, out, count, kHidden);
  });
  const int parts = std::min(kMostParts, 2 * kRows / count);
  auto* sums = static_cast<float*>(random(std::size_t(count * parts) * kHidden, false, 1e-6f));
  bench.measure(fmt::format("norm of {} rows and {} parts", count, parts), 0, 64, [&](int) {
    return norm_parts(bench.launch(), x, sums, parts, nullptr, weight, 1e-5f, out, count, kHidden);
  });
  bench.measure(fmt::format("gate of {} rows", count), 0, 64,
                [&](int) { return silu_mul_rows(bench.launch(), wide, nullptr, out, count, kInner); });
}

}  // namespace
}  // namespace mesh::bench

/// Sections to run: products, gated, tiles, heads, layer, chain, attention, rows; none: all.
int main(int argc, char** argv) {
  const std::vector<std::string> sections(argv + 1, argv + argc);
  const auto wanted = [&](const char* section) {
    return sections.empty() || std::ranges::find(sections, section) != sections.end();
  };
  mesh::bench::Bench bench;
  if (wanted("products")) mesh::bench::products(bench);
  if (wanted("gated")) mesh::bench::gated_products(bench);
  if (wanted("tiles")) mesh::bench::tiles(bench);
  if (wanted("chain")) mesh::bench::chain(bench);
  if (wanted("heads")) mesh::bench::heads(bench);
  if (wanted("layer")) {
    mesh::bench::layer_of_rows(bench, 1024, 128, 3);
    mesh::bench::layer_of_rows(bench, 768, 512, 1);
  }
  if (wanted("attention")) {
    for (const int splits : {1, 2, 4}) mesh::bench::attention(bench, 1, 192, 1, splits);
    for (const int splits : {8, 16, 32}) mesh::bench::attention(bench, 1, 8192, 1, splits);
    for (const int splits : {1, 2, 4}) mesh::bench::attention(bench, 16, 192, 1, splits);
    for (const int splits : {1, 2, 4, 8}) mesh::bench::attention(bench, 16, 8192, 1, splits);
    for (const int splits : {1, 2}) mesh::bench::attention(bench, 64, 192, 1, splits);
    for (const int context : {128, 256, 384, 512, 1024}) {
      for (const int splits : {1, 2, 3}) mesh::bench::attention(bench, 1, context, 128, splits);
    }
    for (const int context : {0, 1024}) {
      for (const int splits : {1, 2}) mesh::bench::attention(bench, 1, context, 512, splits);
    }
  }
  if (wanted("rows")) {
    for (const int count : {16, 64, 128, 512}) mesh::bench::rows(bench, count);
  }
}
