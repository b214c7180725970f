// Time of each product of quantised matrices alone, at the shapes of an 8B Llama layer, as gpu_kernels_bench
// does.

#include "tests/bench/gpu_layer.h"

namespace mesh::bench {
namespace {

constexpr int kMany = 32;  // matrices in turn
constexpr std::size_t kRows = 64;

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

void chain(Bench& bench, ops::MatrixFormat format, const char* name) {
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
  measure_layer(bench, fmt::format("{} layer of one row", name), bytes,
                [&](std::size_t which, int layer, StreamLinear& linear) {
                  linear.coded = matrices[which * kLayers + std::size_t(layer)];
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
