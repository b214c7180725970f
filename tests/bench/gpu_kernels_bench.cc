// Time of each kernel of the fused path alone, in a graph of many launches over matrices and caches that do
// not fit in L2, at the shapes of an 8B Llama layer.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "node/engine/cuda/kernels/gated_linear.h"
#include "node/engine/cuda/kernels/kernels.h"

namespace mesh::bench {
namespace {
using namespace engine::cuda;

constexpr int kHidden = 4096, kInner = 14336, kHeads = 32, kKvHeads = 8, kDim = 128,
              kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr int kCopies = 16;  // of every matrix
constexpr int kRows = 512;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "gpu_kernels_bench: {}\n", cudaGetErrorString(error));
  std::exit(1);
}

void* take(std::size_t bytes) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, bytes));
  must(cudaMemset(memory, 0, bytes));
  return memory;
}

void* random(std::size_t values, bool bfloat16, float deviation = 1) {
  void* memory = take(values * (bfloat16 ? 2 : 4));
  must(fill_normal(nullptr, memory, bfloat16, static_cast<std::int64_t>(values), values, deviation));
  return memory;
}

template <class T>
T* on_gpu(const std::vector<T>& values) {
  void* memory = take(values.size() * sizeof(T));
  must(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

class Bench {
 public:
  Bench() {
    must(cudaStreamCreate(&stream_));
    must(cudaEventCreate(&begin_));
    must(cudaEventCreate(&end_));
    int major = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    must(cudaDeviceGetAttribute(&launch_.processors, cudaDevAttrMultiProcessorCount, 0));
    launch_.stream = stream_;
    launch_.overlap = major >= 9;
    launch_.tensor_cores = major >= 8;
  }
  const Launch& launch() const { return launch_; }
  void use_tensor_cores(bool use) { launch_.tensor_cores = use; }

  /// `enqueue(i)` for i = 0 … count − 1 as one graph; the best of five replays, for one i.
  void measure(const std::string& what, double bytes, int count,
               const std::function<cudaError_t(int)>& enqueue) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    must(enqueue(0));
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < count; ++i) must(enqueue(i));
    must(cudaStreamEndCapture(stream_, &graph));
    must(cudaGraphInstantiate(&executable, graph, 0));
    float best = 1e9f;
    for (int round = 0; round < 6; ++round) {
      must(cudaEventRecord(begin_, stream_));
      must(cudaGraphLaunch(executable, stream_));
      must(cudaEventRecord(end_, stream_));
      must(cudaEventSynchronize(end_));
      float milliseconds = 0;
      must(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (round > 0) best = std::min(best, milliseconds);
    }
    must(cudaGraphExecDestroy(executable));
    must(cudaGraphDestroy(graph));
    const double microseconds = best * 1e3 / count;
    fmt::print("{:48} {:8.2f} us{}\n", what, microseconds,
               bytes > 0 ? fmt::format("  {:.2f} TB/s", bytes / microseconds * 1e-6) : "");
  }

 private:
  Launch launch_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Shape {
  const char* name;
  int out, in;
  StreamStore store;
  bool norm;
};

void products(Bench& bench) {
  const Shape shapes[] = {{"qkv", kQkv, kHidden, StreamStore::kAssign, true},
                          {"output", kHidden, kHidden, StreamStore::kAdd, false},
                          {"gate and up", 2 * kInner, kHidden, StreamStore::kSiluMul, true},
                          {"down", kHidden, kInner, StreamStore::kAdd, false}};
  const void* wide = random(kRows * kInner, false);
  const void* narrow = random(kRows * kInner, true);
  const auto* norm = static_cast<const float*>(random(kInner, false));
  void* y = take(std::size_t{kRows} * 2 * kInner * 4);
  for (const Shape& shape : shapes) {
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
  const void* x = random(std::size_t{kGatedRows} * kHidden, true);
  void* y = take(std::size_t{kGatedRows} * kInner * 2);
  for (const int rows : {1, 16, 64, 128}) {
    bench.measure(fmt::format("gated, {} rows", rows), static_cast<double>(values * 2), 64, [&](int i) {
      return gated_linear(bench.launch(), {weights + values * std::size_t(i % kCopies), nullptr, kInner,
                                           kHidden, x, rows, y});
    });
  }
  must(cudaFree(const_cast<std::uint16_t*>(weights)));
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
  cudaError_t warpgroups(const Bench& bench, int layer) const {
    return warpgroup_attention(bench.launch(), tables_, at(layer), q_, out_, tiles_, splits_);
  }

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

/// The launches of 32 layers for one row at a context of 192, in turn, over as many matrices.
void chain(Bench& bench) {
  constexpr int kLayers = 32;
  const Shape shapes[] = {{"", kQkv, kHidden, StreamStore::kAssign, true},
                          {"", kHidden, kHidden, StreamStore::kAdd, false},
                          {"", 2 * kInner, kHidden, StreamStore::kSiluMul, true},
                          {"", kHidden, kInner, StreamStore::kAdd, false}};
  std::vector<std::uint16_t*> weights;
  for (const Shape& shape : shapes) {
    weights.push_back(static_cast<std::uint16_t*>(
        random(kLayers * std::size_t(shape.out) * std::size_t(shape.in), true, 0.02f)));
  }
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
  const auto weight = [&](int which, int layer) {
    const Shape& shape = shapes[which];
    return weights[std::size_t(which)] +
           std::size_t(layer % kLayers) * std::size_t(shape.out) * std::size_t(shape.in);
  };
  const auto product = [&](int which, int layer, const void* from, void* to) {
    const Shape& shape = shapes[which];
    return stream_linear(bench.launch(), {weight(which, layer), nullptr, shape.out, shape.in, from,
                                          shape.norm ? norm : nullptr, 1e-5f, 1, shape.store, to});
  };
  bench.measure("a layer of one row", 436.2e6, kLayers, [&](int i) {
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
  bench.measure(fmt::format("gate of {} rows", count), 0, 64,
                [&](int) { return silu_mul_rows(bench.launch(), wide, nullptr, out, count, kInner); });
}

}  // namespace
}  // namespace mesh::bench

/// Sections to run: products, gated, chain, attention, rows; none: all.
int main(int argc, char** argv) {
  const std::vector<std::string> sections(argv + 1, argv + argc);
  const auto wanted = [&](const char* section) {
    return sections.empty() || std::ranges::find(sections, section) != sections.end();
  };
  mesh::bench::Bench bench;
  if (wanted("products")) mesh::bench::products(bench);
  if (wanted("gated")) mesh::bench::gated_products(bench);
  if (wanted("chain")) mesh::bench::chain(bench);
  if (wanted("attention")) {
    for (const int splits : {1, 2, 4}) mesh::bench::attention(bench, 1, 192, 1, splits);
    for (const int splits : {8, 16, 32}) mesh::bench::attention(bench, 1, 8192, 1, splits);
    for (const int splits : {1, 2, 4}) mesh::bench::attention(bench, 16, 192, 1, splits);
    for (const int splits : {1, 2, 4, 8}) mesh::bench::attention(bench, 16, 8192, 1, splits);
    for (const int splits : {1, 2}) mesh::bench::attention(bench, 64, 192, 1, splits);
    for (const int splits : {1, 2, 4, 8}) mesh::bench::attention(bench, 1, 1024, 128, splits);
    for (const int context : {0, 1024}) {
      for (const int splits : {1, 2}) mesh::bench::attention(bench, 1, context, 512, splits);
    }
  }
  if (wanted("rows")) {
    for (const int count : {16, 64, 128, 512}) mesh::bench::rows(bench, count);
  }
}
