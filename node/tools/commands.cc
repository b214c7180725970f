#include "node/tools/commands.h"

#include <cstdio>

#include "common/base/version.h"
#include "common/config/settings.h"
#include "common/host/host_share.h"
#include "common/hub/checkpoint.h"
#include "common/hub/open_model.h"
#include "node/settings.h"
#include "node/tools/bench.h"
#include "node/tools/compare.h"
#include "node/tools/shapes.h"
#include "node/versions.h"

namespace mesh::tools {
namespace {

using config::Settings;

/// Flags of one command: no environment, no file.
std::optional<int> read_flags(Settings& settings, int argc, const char* const* argv) {
  config::Sources sources;
  sources.arguments.assign(argv + 2, argv + argc);
  const auto outcome = settings.load(sources);
  if (outcome.exit_code)
    std::fputs(outcome.output.c_str(), *outcome.exit_code == config::kExitDone ? stdout : stderr);
  return outcome.exit_code;
}

std::string versions() {
  return version_text("meshnet-node", wire_versions_text(), cuda_part_text());
}

int failed(const Status& status) {
  std::fprintf(stderr, "meshnet-node: %s\n", std::string(message_of(status)).c_str());
  return config::kExitFailed;
}

/// What both commands say of the engine.
struct EngineSettings {
  std::string device = "auto";
  std::string cuda_path = "graphs";
  std::string cpu_path = "auto";
  std::string dtype = "auto";
  std::int64_t threads = 0;
  std::optional<std::uint64_t> memory;

  void declare(Settings& settings) {
    settings.choice("device", device, {"auto", "cpu", "cuda"}, "where layers run")
        .choice("cuda-path", cuda_path, {"graphs", "launches", "ampere", "portable", "eager"},
                "what a GPU may use, for comparisons; graphs: everything")
        .choice("cpu-path", cpu_path, {"auto", "portable", "avx2", "avx512", "avx512_bf16"},
                "what a CPU may use, for comparisons; auto: everything that it has")
        .choice("dtype", dtype, {"auto", "bfloat16", "float32"}, "compute type")
        .integer("threads", threads, 0, 1024, "CPU threads; 0: one per core")
        .optional_size("memory", memory, "most memory for weights and caches; auto: what is free less 1 GiB");
  }
  StatusOr<engine::EngineOptions> options() const {
    engine::EngineOptions options;
    MESH_ASSIGN_OR_RETURN(options.device, engine::parse_device(device));
    MESH_ASSIGN_OR_RETURN(options.compute, engine::parse_compute_type(dtype));
    MESH_ASSIGN_OR_RETURN(options.cuda_path, engine::parse_cuda_path(cuda_path));
    options.cpu_path = cpu_path;
    options.threads = threads > 0 ? static_cast<unsigned>(threads) : usable_cores();
    options.memory_bytes = memory.value_or(0);
    return options;
  }
};

StatusOr<BenchOptions> bench_options(const EngineSettings& engine, std::vector<std::string> shapes_wanted,
                                     const std::vector<std::string>& quantizations, double seconds) {
  BenchOptions options;
  MESH_ASSIGN_OR_RETURN(options.engine, engine.options());
  options.shapes = std::move(shapes_wanted);
  options.seconds = seconds;
  for (const std::string& name : quantizations) {
    MESH_ASSIGN_OR_RETURN(const engine::Quantization quantization, engine::parse_quantization(name));
    options.quantizations.push_back(quantization);
  }
  options.say = [](const std::string& line) { std::fprintf(stderr, "%s …\n", line.c_str()); };
  return options;
}

int bench(int argc, const char* const* argv) {
  EngineSettings engine;
  std::vector<std::string> wanted, quantizations{"bfloat16"};
  for (const Shape& shape : shapes()) wanted.emplace_back(shape.name);
  double seconds = 50;
  bool json = false;
  std::string data_dir = default_data_dir();
  Settings settings("node", "Measures this machine: what it reads and multiplies, what a layer takes.",
                    versions());
  engine.declare(settings);
  settings.list("shape", wanted, "models whose layers are measured, by name or config.json")
      .list("quantization", quantizations, "of the weights: bfloat16, int8, nf4, fp8")
      .number("seconds", seconds, 1, 3600, "nothing is begun after this time")
      .flag("json", json, "one JSON object instead of text")
      .text("data-dir", data_dir, "where the node that joins from here finds the figures");
  if (const auto code = read_flags(settings, argc, argv)) return *code;
  const auto options = bench_options(engine, wanted, quantizations, seconds);
  if (!options.ok()) return failed(options.status());
  const auto figures = run_bench(*options);
  if (!figures.ok()) return failed(figures.status());
  std::fputs(json ? (to_json(*figures) + "\n").c_str() : to_text(*figures).c_str(), stdout);
  if (const Status kept = write_bench_file(data_dir, *figures); !kept.ok()) return failed(kept);
  if (!json) std::printf("\nkept in %s: a node that joins tells its tracker\n", bench_file(data_dir).c_str());
  return config::kExitDone;
}

StatusOr<Comparison> compare_files(const EngineSettings& engine, const std::string& model,
                                   const std::string& golden, const std::string& quantization,
                                   std::optional<double> tolerance) {
  CompareOptions options;
  MESH_ASSIGN_OR_RETURN(options.engine, engine.options());
  MESH_ASSIGN_OR_RETURN(options.quantization, engine::parse_quantization(quantization));
  options.tolerance = tolerance;
  MESH_ASSIGN_OR_RETURN(auto files, hub::open_model(model, hub::hf_cache_folder()));
  MESH_ASSIGN_OR_RETURN(const auto checkpoint, hub::Checkpoint::open(std::move(files)));
  return compare(*checkpoint, golden, options);
}

int compare_command(int argc, const char* const* argv) {
  EngineSettings engine;
  engine.device = "cpu";
  engine.dtype = "float32";
  std::string model, golden, quantization = "bfloat16";
  double tolerance = 0;
  Settings settings("node", "Runs a model beside a reference's values and names the first that differ.",
                    versions());
  engine.declare(settings);
  settings.text("model", model, "PATH_OR_ID[@REVISION] of the model")
      .text("golden", golden,
            "SafeTensors file of the reference's values (tests/golden/README.md, operations)")
      .text("quantization", quantization, "of the weights: bfloat16, int8, nf4, fp8")
      .number("tolerance", tolerance, 0, 1e9,
              "most normalised mean square error of a row; 0: 1e-8 in float32, 1e-3 else");
  if (const auto code = read_flags(settings, argc, argv)) return *code;
  if (model.empty() || golden.empty()) {
    std::fputs("meshnet-node compare: give --model and --golden\n", stderr);
    return config::kExitUsage;
  }
  const auto found = compare_files(engine, model, golden, quantization,
                                   tolerance > 0 ? std::optional(tolerance) : std::nullopt);
  if (!found.ok()) return failed(found.status());
  std::fputs(to_text(*found).c_str(), stdout);
  return found->first_wrong() == nullptr ? config::kExitDone : config::kExitFailed;
}

}  // namespace

std::optional<int> run_command(int argc, const char* const* argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view name = argv[1];
  if (name == "bench") return bench(argc, argv);
  if (name == "compare") return compare_command(argc, argv);
  return std::nullopt;
}

}  // namespace mesh::tools
