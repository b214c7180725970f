// Decode and prefill of a model on the CPU, as shares of this machine's read bandwidth (KV bytes counted) and
// matrix rate, whose passes lie between the rounds. README.md has examples.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "common/hub/checkpoint.h"
#include "common/hub/open_model.h"
#include "node/engine/engine.h"
#include "node/engine/weights/synthetic_checkpoint.h"
#include "node/tools/measure.h"
#include "node/tools/shapes.h"
#include "tests/bench/machine_limits.h"

namespace mesh::bench {
namespace {
using namespace engine;

struct Settings {
  std::string model, synthetic, compute = "bfloat16", cpu_path = "auto";
  std::vector<std::string> quantizations{"bfloat16"};
  std::vector<std::size_t> sessions{1};
  unsigned threads = std::thread::hardware_concurrency();
  std::uint32_t layers = 0, stages = 3;
  std::uint64_t seed = 1;
  tools::Workload work{.context = 8, .decoded = 64, .prompt = 1024, .rounds = 5};
  bool json = false;
};

template <class T>
T must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "engine_bench: {}\n", message_of(value.status()));
  std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<LayerRange> cut(const LayerRange& range, std::uint32_t stages) {
  std::vector<LayerRange> ranges;
  for (std::uint32_t i = 0; i < stages; ++i) {
    ranges.push_back(
        {range.begin + range.size() * i / stages, range.begin + range.size() * (i + 1) / stages});
  }
  return ranges;
}

struct Row {
  std::string weights;
  std::uint32_t stages = 1;
  tools::Workload work;
  tools::Measured measured;
  tools::Cost cost;
};

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        meter_(settings.threads),
        engine_(must(Engine::create({.device = Device::kCpu,
                                     .compute = must(parse_compute_type(settings.compute)),
                                     .threads = settings.threads,
                                     .memory_bytes = 0,
                                     .cuda_library = {},
                                     .cpu_path = settings.cpu_path}))) {
    checkpoint_ =
        settings.synthetic.empty()
            ? must(hub::Checkpoint::open(must(hub::open_folder(settings.model))))
            : must(synthetic_checkpoint(settings.synthetic, must(tools::shape_config(settings.synthetic)),
                                        settings.seed));
    profile_ = must(read_model_profile(must(checkpoint_->files().read_small("config.json"))));
    whole_ = settings.layers == 0 || settings.layers >= profile_.layer_count();
    range_ = {0, whole_ ? profile_.layer_count() : settings.layers};
    for (int pass = 0; pass < 3; ++pass) meter_.pass();
  }

  void run(const std::string& name) {
    const Quantization quantization = must(profile_.quantization(must(parse_quantization(name))));
    const ShardSpec spec =
        whole_ ? shard_of(profile_, range_, quantization) : ShardSpec{range_, false, false, quantization};
    const auto start = std::chrono::steady_clock::now();
    const auto shard = must(engine_->load(*checkpoint_, {}, spec, {}));
    if (!settings_.json) {
      fmt::print("{}: {:.1f} MB loaded in {:.2f} s\n", to_string(spec),
                 static_cast<double>(shard->bytes()) / 1e6, seconds_since(start));
    }
    const auto cost = tools::cost_of(profile_, range_, spec.head, engine_->compute(), quantization);
    for (const std::size_t sessions : settings_.sessions) {
      tools::Workload work = settings_.work;
      work.sessions = sessions;
      work.prefill = sessions == settings_.sessions.front();
      for (std::uint32_t stages = 1; stages <= std::min(settings_.stages, range_.size()); ++stages) {
        const auto measured =
            must(measure(*engine_, shard, cut(range_, stages), work, [&] { meter_.pass(); }));
        rows_.push_back({std::string(to_string(quantization)), stages, work, measured, cost});
      }
    }
  }

  void print() {
    for (int pass = 0; pass < 3; ++pass) meter_.pass();
    const MachineLimits limits = meter_.best();
    const std::string shape =
        settings_.synthetic.empty() ? settings_.model : "synthetic " + settings_.synthetic;
    if (settings_.json) {
      fmt::print("{{\"device\":\"cpu\",\"threads\":{},\"shape\":\"{}\",\"layers\":{},", settings_.threads,
                 shape, range_.size());
      fmt::print("\"read_bytes_per_s\":{:.4g},\"matrix_flops\":{:.4g},\"sessions\":{},\"stages\":[",
                 limits.read_bytes_per_s, limits.matrix_flops, settings_.sessions.front());
    } else {
      fmt::print("{}, {} of {} layers{}, {} threads\n{}\n", shape, range_.size(), profile_.layer_count(),
                 whole_ ? "" : " alone", settings_.threads, to_string(limits));
      fmt::print("{:9} {:>6} {:>6} {:>8} {:>14} {:>9} {:>13} {:>9} {:>8}\n", "weights", "stages", "batch",
                 "context", "prefill tok/s", "of matrix", "decode tok/s", "ms/step", "of read");
    }
    for (const Row& row : rows_) print(row, limits);
    if (settings_.json) fmt::print("]}}\n");
  }

 private:
  void print(const Row& row, const MachineLimits& limits) const {
    const tools::Measured& measured = row.measured;
    const double step = measured.decode_seconds;
    const double decode = static_cast<double>(row.work.sessions) / step;
    const double decode_share =
        row.cost.decode_bytes(row.work, measured.mean_context) / step / limits.read_bytes_per_s;
    const bool prefilled = measured.prefill_seconds > 0;
    const double prefill = prefilled ? row.work.prompt / measured.prefill_seconds : 0;
    const double prefill_share =
        prefilled ? row.cost.prefill_flops(row.work) / measured.prefill_seconds / limits.matrix_flops : 0;
    if (settings_.json) {
      fmt::print("{}{{\"weights\":\"{}\",\"stages\":{},\"sessions\":{},\"mean_context\":{:.1f},",
                 &row == rows_.data() ? "" : ",", row.weights, row.stages, row.work.sessions,
                 measured.mean_context);
      fmt::print("\"prefill_tokens_per_s\":{:.4g},\"prefill_share\":{:.3f},\"decode_tokens_per_s\":{:.4g},",
                 prefill, prefill_share, decode);
      fmt::print("\"decode_step_s\":{:.4g},\"decode_share\":{:.3f}}}", step, decode_share);
      return;
    }
    fmt::print("{:9} {:6} {:6} {:8.0f} {:>14} {:>9} {:13.1f} {:9.2f} {:7.0f}%\n", row.weights, row.stages,
               row.work.sessions, measured.mean_context, prefilled ? fmt::format("{:.1f}", prefill) : "-",
               prefilled ? fmt::format("{:.0f}%", 100 * prefill_share) : "-", decode, step * 1e3,
               100 * decode_share);
  }

  const Settings& settings_;
  LimitMeter meter_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<hub::Checkpoint> checkpoint_;
  ModelProfile profile_;
  bool whole_ = true;
  LayerRange range_;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("Decode and prefill of one model in one process on the CPU");
  auto* const model = app.add_option("--model", settings.model, "Folder of the model");
  auto* const synthetic = app.add_option("--synthetic", settings.synthetic,
                                         "Instead: llama-1b, llama-8b, qwen3-9b, qwen3-27b or a config.json, "
                                         "with made-up weights");
  model->excludes(synthetic);
  app.add_option("--seed", settings.seed, "Of the made-up weights");
  app.add_option("--layers", settings.layers,
                 "The first so many layers alone, without embedding and lm_head");
  app.add_option("--threads", settings.threads, "Threads");
  app.add_option("--cpu-path", settings.cpu_path,
                 "portable, avx2, avx512 or avx512_bf16; auto: the best that this CPU has");
  app.add_option("--compute", settings.compute, "bfloat16 or float32");
  app.add_option("--quantization", settings.quantizations,
                 "bfloat16, int8, nf4, fp8; a list: one after another")
      ->delimiter(',');
  app.add_option("--sessions", settings.sessions, "Sessions that decode together; a list")->delimiter(',');
  app.add_option("--stages", settings.stages, "Measure over 1 … this many stages");
  app.add_option("--context", settings.work.context, "Tokens of a session before it decodes")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--decoded", settings.work.decoded, "Tokens that are decoded after it")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--prompt", settings.work.prompt, "Tokens of a prefill")->check(CLI::Range(1, 1 << 24));
  app.add_option("--chunk", settings.work.chunk, "Rows of a prefill step")->check(CLI::Range(1, 1024));
  app.add_option("--rounds", settings.work.rounds, "Times that each figure is measured")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  CLI11_PARSE(app, argc, argv);
  if (settings.model.empty() == settings.synthetic.empty()) {
    fmt::print(stderr, "engine_bench: give --model FOLDER or --synthetic SHAPE\n");
    return 2;
  }
  mesh::bench::Bench bench(settings);
  for (const std::string& name : settings.quantizations) bench.run(name);
  bench.print();
}
