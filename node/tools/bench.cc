#include "node/tools/bench.h"

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>

#include "common/hub/checkpoint.h"
#include "common/json/json.h"
#include "common/json/view.h"
#include "node/engine/weights/synthetic_checkpoint.h"
#include "node/tools/measure.h"
#include "node/tools/rates.h"
#include "node/tools/shapes.h"

namespace mesh::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;
constexpr Workload kWork{.context = 128, .decoded = 8, .prompt = 128, .chunk = 128, .rounds = 5};

/// The machine's limits on a CPU; a GPU's are those of its best layer.
struct Limits {
  std::unique_ptr<ReadRate> read;
  std::unique_ptr<ProductRate> products;
  void pass() {
    if (!read) return;
    read->pass();
    products->pass();
  }
};

StatusOr<LayerFigure> run_layer(engine::Engine& engine, const std::string& shape,
                                engine::Quantization quantization, Limits& limits) {
  MESH_ASSIGN_OR_RETURN(const std::string config, shape_config(shape));
  MESH_ASSIGN_OR_RETURN(const engine::ModelProfile profile, engine::read_model_profile(config));
  MESH_ASSIGN_OR_RETURN(const auto checkpoint, engine::synthetic_checkpoint(shape, config, 1));
  const LayerRange range{0, 1};
  MESH_ASSIGN_OR_RETURN(const auto shard,
                        engine.load(*checkpoint, {}, {range, false, false, quantization}, {}));
  MESH_ASSIGN_OR_RETURN(const Measured measured,
                        measure(engine, shard, {range}, kWork, [&] { limits.pass(); }));
  const Cost cost = cost_of(profile, range, false, engine.compute(), quantization);
  LayerFigure figure;
  figure.decode_seconds = measured.decode_seconds;
  figure.prefill_seconds = measured.prefill_seconds;
  figure.read_bytes_per_second = cost.decode_bytes(kWork, measured.mean_context) / measured.decode_seconds;
  figure.flops = cost.prefill_flops(kWork) / measured.prefill_seconds;
  return figure;
}

boost::json::value layer_json(const LayerFigure& layer) {
  boost::json::object object{{"shape", layer.shape}, {"weights", layer.weights}};
  if (!layer.problem.empty()) {
    object["problem"] = layer.problem;
    return object;
  }
  object["decode_seconds"] = layer.decode_seconds;
  object["prefill_seconds"] = layer.prefill_seconds;
  object["read_bytes_per_second"] = layer.read_bytes_per_second;
  object["flops"] = layer.flops;
  return object;
}

}  // namespace

StatusOr<BenchFigures> run_bench(const BenchOptions& options) {
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto say = [&](const std::string& line) {
    if (options.say) options.say(line);
  };
  MESH_ASSIGN_OR_RETURN(const auto engine, engine::Engine::create(options.engine));
  BenchFigures figures;
  const bool cpu = engine->device() == engine::Device::kCpu;
  figures.device = cpu ? "cpu" : "cuda";
  figures.threads = options.engine.threads;
  Limits limits;
  if (cpu) {
    say("reading memory and multiplying");
    MESH_ASSIGN_OR_RETURN(limits.read, ReadRate::create(options.engine.threads, options.read_bytes));
    MESH_ASSIGN_OR_RETURN(limits.products, ProductRate::create(options.engine.threads));
    for (int pass = 0; pass < 3; ++pass) limits.pass();
  }
  for (const std::string& shape : options.shapes) {
    for (const engine::Quantization quantization : options.quantizations) {
      LayerFigure figure;
      if (seconds() > options.seconds) {
        figure.problem = fmt::format("left out: {:.0f} s were over", options.seconds);
      } else {
        say(fmt::format("a layer of {} as {}", shape, to_string(quantization)));
        auto made = run_layer(*engine, shape, quantization, limits);
        if (made.ok()) {
          figure = *std::move(made);
        } else {
          figure.problem = std::string(message_of(made.status()));
        }
      }
      figure.shape = shape;
      figure.weights = std::string(to_string(quantization));
      figures.layers.push_back(std::move(figure));
    }
  }
  if (cpu) {
    figures.read_bytes_per_second = limits.read->bytes_per_second();
    figures.flops = limits.products->flops();
  } else {
    for (const LayerFigure& layer : figures.layers) {
      figures.read_bytes_per_second = std::max(figures.read_bytes_per_second, layer.read_bytes_per_second);
      figures.flops = std::max(figures.flops, layer.flops);
    }
  }
  return figures;
}

std::string to_text(const BenchFigures& figures) {
  std::string text =
      fmt::format("{}, {} threads: reads {:.1f} GB/s, multiplies {:.0f} GFLOP/s\n\n", figures.device,
                  figures.threads, figures.read_bytes_per_second * 1e-9, figures.flops * 1e-9);
  text += fmt::format("{:12} {:9} {:>12} {:>9} {:>17} {:>15}\n", "one layer of", "weights", "a token",
                      "of read", "128 tokens", "of products");
  for (const LayerFigure& layer : figures.layers) {
    text += fmt::format("{:12} {:9} ", layer.shape, layer.weights);
    if (!layer.problem.empty()) {
      text += layer.problem + "\n";
      continue;
    }
    text += fmt::format("{:9.2f} ms {:8.0f}% {:14.1f} ms {:14.0f}%\n", layer.decode_seconds * 1e3,
                        100 * layer.read_bytes_per_second / figures.read_bytes_per_second,
                        layer.prefill_seconds * 1e3, 100 * layer.flops / figures.flops);
  }
  return text;
}

std::string to_json(const BenchFigures& figures) {
  boost::json::array layers;
  for (const LayerFigure& layer : figures.layers) layers.push_back(layer_json(layer));
  return boost::json::serialize(boost::json::object{{"device", figures.device},
                                                    {"threads", figures.threads},
                                                    {"read_bytes_per_second", figures.read_bytes_per_second},
                                                    {"flops", figures.flops},
                                                    {"layers", std::move(layers)}});
}

std::filesystem::path bench_file(const std::filesystem::path& data_folder) {
  return data_folder / "bench.json";
}

Status write_bench_file(const std::filesystem::path& data_folder, const BenchFigures& figures) {
  std::error_code failed;
  std::filesystem::create_directories(data_folder, failed);
  const std::filesystem::path path = bench_file(data_folder);
  const std::filesystem::path part = path.string() + ".part";
  std::ofstream file(part, std::ios::trunc);
  file << to_json(figures) << '\n';
  file.close();
  if (file) std::filesystem::rename(part, path, failed);
  if (!file || failed) return error(StatusCode::kPermissionDenied, "{} cannot be written", path.string());
  return absl::OkStatus();
}

double measured_read_rate(const std::filesystem::path& data_folder, std::string_view device) {
  std::ifstream file(bench_file(data_folder));
  std::string text(kMostFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  const auto value = json::parse(text);
  if (!value.ok()) return 0;
  const json::View view(*value);
  const auto measured_on = view.get<std::string>("device");
  const auto rate = view.get<double>("read_bytes_per_second");
  return measured_on.ok() && *measured_on == device && rate.ok() && *rate > 0 ? *rate : 0;
}

}  // namespace mesh::tools
