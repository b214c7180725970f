// Time of each product of quantised matrices alone, at the shapes of an 8B Llama layer, as gpu_kernels_bench
// does.

#include "tests/bench/gpu_timer.h"

namespace mesh::bench {
namespace {

constexpr int kHidden = 4096, kInner = 14336, kQkv = 6144, kMany = 32;  // kMany: matrices in turn
constexpr std::size_t kRows = 64;

struct Shape {
  const char* name;
  int out, in;
  StreamStore store;
  bool norm;
};
constexpr Shape kShapes[] = {{"qkv", kQkv, kHidden, StreamStore::kAssign, true},
                             {"output", kHidden, kHidden, StreamStore::kAdd, false},
                             {"gate and up", 2 * kInner, kHidden, StreamStore::kSiluMul, true},
                             {"down", kHidden, kInner, StreamStore::kAdd, false}};

template <class T>
T* on_gpu(const std::vector<T>& values) {
  void* memory = take(values.size() * sizeof(T));
  must(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

/// Few rows, tensor cores, and the codes made values.
void products(Bench& bench, ops::MatrixFormat format, const char* name) {
  const void* wide = random(kRows * kInner, false);
  const void* narrow = random(kRows * kInner, true);
  const auto* norm = static_cast<const float*>(random(kInner, false));
  void* y = take(kRows * 2 * kInner * 4);
  for (const Shape& shape : kShapes) {
    const bool nf4 = format == ops::MatrixFormat::kNf4;
    const int group = nf4 ? 64 : format == ops::MatrixFormat::kFp8 ? 128 : shape.in;
    CodedMatrix first{nullptr, format, shape.out, shape.in, group};
    const std::size_t bytes = std::size_t(first.row_bytes()) * std::size_t(shape.out);
    auto* rows_of_all = static_cast<std::byte*>(take(bytes * kMany));
    const auto matrix = [&](int i) {
      CodedMatrix one = first;
      one.rows = rows_of_all + bytes * std::size_t(i % kMany);
      return one;
    };
    for (int i = 0; i < kMany; ++i) must(fill_codes(nullptr, matrix(i), std::uint64_t(i), 0.02f));
    const auto size = static_cast<double>(bytes);
    const auto title = [&](const std::string& what) {
      return fmt::format("{} {}, {}", name, shape.name, what);
    };
    for (const int rows : {1, 2}) {
      bench.measure(title(fmt::format("{} rows", rows)), size, 64, [&](int i) {
        return stream_linear(bench.launch(),
                             {nullptr, nullptr, shape.out, shape.in, shape.norm ? wide : narrow,
                              shape.norm ? norm : nullptr, 1e-5f, rows, shape.store, y, matrix(i)});
      });
    }
    for (const int rows : {4, 16, 32, 64}) {
      bench.measure(title(fmt::format("{} rows", rows)), size, 64,
                    [&](int i) { return tile_codes(bench.launch(), matrix(i), narrow, rows, y, false); });
    }
    void* values = take(std::size_t(shape.out) * std::size_t(shape.in) * 2);
    bench.measure(title("values"), 0, 64, [&](int i) {
      return dequantise(bench.launch(), matrix(i), nullptr, shape.out, values, true);
    });
    must(cudaFree(values));
    must(cudaFree(rows_of_all));
  }
}

/// The launches of 32 layers for one row at a context of 192, in turn, over as many matrices.
void chain(Bench& bench, ops::MatrixFormat format, const char* name) {
  constexpr int kLayers = 32, kHeads = 32, kKvHeads = 8, kDim = 128;
  const int fixed_group = format == ops::MatrixFormat::kNf4   ? 64
                          : format == ops::MatrixFormat::kFp8 ? 128
                                                              : 0;
  std::vector<CodedMatrix> matrices;
  double bytes = 0;
  for (const Shape& shape : kShapes) {
    for (int layer = 0; layer < kLayers; ++layer) {
      CodedMatrix one{nullptr, format, shape.out, shape.in, fixed_group > 0 ? fixed_group : shape.in};
      one.rows = take(std::size_t(one.row_bytes()) * std::size_t(one.out));
      must(fill_codes(nullptr, one, matrices.size(), 0.02f));
      matrices.push_back(one);
    }
    bytes += double(matrices.back().row_bytes()) * shape.out;
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
  const auto product = [&](std::size_t which, int layer, const void* from, void* to) {
    const Shape& shape = kShapes[which];
    const CodedMatrix& matrix = matrices[which * kLayers + std::size_t(layer % kLayers)];
    return stream_linear(bench.launch(), {nullptr, nullptr, shape.out, shape.in, from,
                                          shape.norm ? norm : nullptr, 1e-5f, 1, shape.store, to, matrix});
  };
  bench.measure(fmt::format("{} layer of one row", name), bytes, kLayers, [&](int i) {
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
  for (const CodedMatrix& matrix : matrices) must(cudaFree(matrix.rows));
}

}  // namespace
}  // namespace mesh::bench

int main() {
  mesh::bench::Bench bench;
  mesh::bench::chain(bench, mesh::ops::MatrixFormat::kNf4, "nf4");
  mesh::bench::chain(bench, mesh::ops::MatrixFormat::kInt8, "int8");
  mesh::bench::chain(bench, mesh::ops::MatrixFormat::kFp8, "fp8");
  mesh::bench::products(bench, mesh::ops::MatrixFormat::kNf4, "nf4");
  mesh::bench::products(bench, mesh::ops::MatrixFormat::kInt8, "int8");
  mesh::bench::products(bench, mesh::ops::MatrixFormat::kFp8, "fp8");
}
