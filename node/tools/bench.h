#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "node/engine/engine.h"

namespace mesh::tools {

struct BenchOptions {
  engine::EngineOptions engine;
  std::vector<std::string> shapes;                   ///< by name or path
  std::vector<engine::Quantization> quantizations;   ///< of each shape
  std::size_t read_bytes = std::size_t{512} << 20;   ///< buffer of the read rate: more than the caches hold
  double seconds = 50;                               ///< nothing is begun after that
  std::function<void(const std::string& line)> say;  ///< progress; may be empty
};

/// One decoder layer of a shape, alone.
struct LayerFigure {
  std::string shape, weights;
  double decode_seconds = 0;         ///< a step of one row after 128 tokens
  double prefill_seconds = 0;        ///< 128 rows
  double read_bytes_per_second = 0;  ///< of the decode step: weights and KV
  double flops = 0;                  ///< of the prefill
  std::string problem;               ///< why there are no figures
};

struct BenchFigures {
  std::string device;  ///< "cpu" or "cuda"
  unsigned threads = 0;
  double read_bytes_per_second = 0;  ///< cpu: of memory; cuda: the best of the layers
  double flops = 0;                  ///< cpu: of float32 products; cuda: the best of the layers
  std::vector<LayerFigure> layers;
};

/// What this machine reads and multiplies a second, and what a layer of each shape takes, medians of five
/// with the limits' passes between them. Takes at most about `seconds` and the last layer begun.
StatusOr<BenchFigures> run_bench(const BenchOptions& options);

std::string to_text(const BenchFigures& figures);
std::string to_json(const BenchFigures& figures);

/// The file of a node's data folder that joins take `read_bytes_per_second` from.
std::filesystem::path bench_file(const std::filesystem::path& data_folder);
Status write_bench_file(const std::filesystem::path& data_folder, const BenchFigures& figures);
/// 0 when the file is missing, is of another device, or cannot be read.
double measured_read_rate(const std::filesystem::path& data_folder, std::string_view device);

}  // namespace mesh::tools
