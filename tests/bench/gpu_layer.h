#pragma once

#include "tests/bench/gpu_timer.h"

/// A layer of an 8B Llama for one row.
namespace mesh::bench {

inline constexpr int kHidden = 4096, kInner = 14336, kHeads = 32, kKvHeads = 8, kDim = 128,
                     kQkv = (kHeads + 2 * kKvHeads) * kDim, kLayers = 32;

struct Shape {
  const char* name;
  int out, in;
  StreamStore store;
  bool norm;
};
inline constexpr Shape kShapes[] = {{"qkv", kQkv, kHidden, StreamStore::kAssign, true},
                                    {"output", kHidden, kHidden, StreamStore::kAdd, false},
                                    {"gate and up", 2 * kInner, kHidden, StreamStore::kSiluMul, true},
                                    {"down", kHidden, kInner, StreamStore::kAdd, false}};

/// The launches of kLayers layers at a context of 192, in turn; `set_weight(shape, layer, linear)` says where
/// that matrix lies. `bytes`: of a layer's matrices.
inline void measure_layer(Bench& bench, const std::string& what, double bytes,
                          const std::function<void(std::size_t, int, StreamLinear&)>& set_weight) {
  auto* x = static_cast<float*>(random(kHidden, false));
  auto* norm = static_cast<const float*>(random(kHidden, false));
  auto* qkv = static_cast<float*>(take(kQkv * 4));
  void *attended = take(kHidden * 2), *gated = take(kInner * 2);
  constexpr std::size_t kLayer = 2 * std::size_t{kKvBlock} * kKvHeads * kDim;
  auto* cache = static_cast<std::uint16_t*>(random(2 * kLayer * kLayers, true));
  StepTables tables;
  tables.place = on_gpu(std::vector<int>{192}), tables.first_block = on_gpu(std::vector<int>{0});
  tables.blocks = on_gpu(std::vector<std::byte*>{reinterpret_cast<std::byte*>(cache),
                                                 reinterpret_cast<std::byte*>(cache + kLayer * kLayers)});
  const auto* angles = static_cast<const float*>(random(kDim, false));
  const SplitScratch scratch{static_cast<float*>(take(split_floats(1, kHeads, kDim, 4) * 4)),
                             static_cast<unsigned*>(take(1024))};
  const auto product = [&](std::size_t which, int layer, const void* from, void* to) {
    const Shape& shape = kShapes[which];
    StreamLinear linear;
    linear.out = shape.out, linear.in = shape.in, linear.x = from, linear.y = to;
    linear.norm = shape.norm ? norm : nullptr, linear.epsilon = 1e-5f;
    linear.rows = 1, linear.store = shape.store;
    set_weight(which, layer % kLayers, linear);
    return stream_linear(bench.launch(), linear);
  };
  bench.measure(what, bytes, kLayers, [&](int i) {
    must(product(0, i, x, qkv));
    AttentionRows work;
    work.qkv = qkv, work.heads = kHeads, work.scale = 0.088f;
    work.preparation.cos = work.preparation.sin = angles, work.preparation.pairs = kDim / 2;
    work.kv = {kKvHeads, kDim, static_cast<std::int64_t>(kLayer * 2 * std::size_t(i % kLayers))};
    must(row_attention(bench.launch(), tables, work, nullptr, attended, 1, 1, scratch));
    must(product(1, i, attended, x));
    must(product(2, i, x, gated));
    return product(3, i, gated, x);
  });
}

}  // namespace mesh::bench
