// A model of random weights on one GPU: decode for several numbers of sessions and contexts, prefill for
// several chunks, as shares of the GPU's read rate, KV bytes counted, measured in the same run. gpu_bench
// --config FILE [--path graphs] [--quantization bfloat16] [--only decode,long,prefill] [--rounds 5] [--json]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>

#include "node/engine/weights/synthetic_checkpoint.h"
#include "tests/bench/gpu_limits.h"
#include "tests/bench/gpu_sessions.h"

namespace mesh::bench {
namespace {
using namespace engine;

struct Settings {
  std::string config, quantization = "bfloat16", path = "graphs", library;
  std::vector<std::string> only{"decode", "long", "prefill"};
  std::vector<std::size_t> sessions{1, 16, 64};
  int rounds = 5;
  bool json = false;
};

struct Row {
  std::string what;
  double seconds = 0, tokens = 0, bytes = 0;  // of one step; bytes 0: no share of the read rate
};

class Bench {
 public:
  Bench(const Settings& settings, Engine& engine, std::shared_ptr<const Shard> shard, GpuReadLimit& limit)
      : settings_(settings), engine_(engine), shard_(std::move(shard)), limit_(limit) {
    const ModelProfile& profile = shard_->profile();
    const WeightFormat format =
        profile.matrix_format(WeightFormat::kBfloat16, must(parse_quantization(settings.quantization)));
    for (const PartSize& layer : profile.layers) weight_bytes_ += static_cast<double>(layer.bytes(format));
    weight_bytes_ += static_cast<double>(profile.head.bytes(format));
    kv_bytes_ =
        static_cast<double>(profile.kv_bytes_per_token({0, profile.layer_count()}, WeightFormat::kBfloat16));
  }

  /// Prompt of `prompt`, then `count` tokens, `rounds` times.
  void decode(std::size_t sessions, Position prompt, Position count) {
    Sessions group(engine_, shard_, sessions, prompt + count + 1);
    group.prefill(prompt, prompt > 1024 ? 512 : 128);
    for (int i = 0; i < 4; ++i) group.decode();  // the first run of a shape is no graph yet
    std::vector<double> times;
    for (int round = 0; round < settings_.rounds; ++round) {
      limit_.pass();
      group.back_to(prompt);
      const double start = now();
      for (Position i = 0; i < count; ++i) group.decode();
      times.push_back((now() - start) / count);
    }
    const double context = prompt + 0.5 * count;
    const auto many = static_cast<double>(sessions);
    rows_.push_back({fmt::format("decode, {} session(s), mean context {:.0f}", sessions, context),
                     median(times), many, weight_bytes_ + many * context * kv_bytes_});
  }

  /// Two sessions in turns, a step of one begun before that of the other ends: beside one session's step,
  /// what the device waits for the host between two.
  void in_turns(Position prompt, Position count) {
    Sessions one(engine_, shard_, 1, prompt + count + 1), other(engine_, shard_, 1, prompt + count + 1);
    for (Sessions* group : {&one, &other}) {
      group->prefill(prompt, 128);
      for (int i = 0; i < 4; ++i) group->decode();
    }
    std::vector<double> times;
    for (int round = 0; round < settings_.rounds; ++round) {
      limit_.pass();
      one.back_to(prompt), other.back_to(prompt);
      const double start = now();
      one.begin_decode();
      for (Position i = 0; i < count; ++i) {
        other.begin_decode();
        one.end_decode();
        if (i + 1 < count) one.begin_decode();
        other.end_decode();
      }
      times.push_back((now() - start) / (2 * count));
    }
    const double context = prompt + 0.5 * count;
    rows_.push_back({fmt::format("decode, 2 sessions in turns, mean context {:.0f}", context), median(times),
                     1, weight_bytes_ + context * kv_bytes_});
  }

  void prefill(Position tokens, std::uint32_t chunk) {
    Sessions one(engine_, shard_, 1, tokens);
    std::vector<double> times;
    for (int round = -2; round < settings_.rounds; ++round) {
      limit_.pass();
      const double start = now();
      one.prefill(tokens, chunk);
      if (round >= 0) times.push_back(now() - start);
    }
    rows_.push_back({fmt::format("prefill of {} in chunks of {}", tokens, chunk), median(times),
                     static_cast<double>(tokens), 0});
  }

  void print() const {
    const double read = limit_.bytes_per_second();
    const ForwardCounts counts = engine_.forward_counts();
    if (settings_.json) {
      fmt::print("{{\"read_bytes_per_s\":{:.4g},\"path\":\"{}\",\"rows\":[", read, settings_.path);
    } else {
      fmt::print("read rate {:.3f} TB/s{}; forwards: {} graphs, {} launches, {} op by op\n", read * 1e-12,
                 read < 4.2e12 ? " (an H200 with less than 4.2 is disturbed)" : "", counts.graphs,
                 counts.launches, counts.ops);
    }
    for (const Row& row : rows_) {
      const double share = row.bytes / row.seconds / read;
      if (settings_.json) {
        fmt::print("{}{{\"what\":\"{}\",\"seconds\":{:.5g},\"tokens_per_s\":{:.5g},\"read_share\":{:.3f}}}",
                   &row == rows_.data() ? "" : ",", row.what, row.seconds, row.tokens / row.seconds, share);
      } else {
        fmt::print("{:44} {:9.3f} ms {:10.1f} tok/s{}\n", row.what, row.seconds * 1e3,
                   row.tokens / row.seconds,
                   row.bytes > 0 ? fmt::format("  {:.3f} of the read rate", share) : "");
      }
    }
    if (settings_.json) fmt::print("]}}\n");
  }

 private:
  const Settings& settings_;
  Engine& engine_;
  std::shared_ptr<const Shard> shard_;
  GpuReadLimit& limit_;
  double weight_bytes_ = 0, kv_bytes_ = 0;
  std::vector<Row> rows_;
};

void run(const Settings& settings) {
  std::ifstream file(settings.config);
  const std::string config((std::istreambuf_iterator<char>(file)), {});
  const auto limit = GpuReadLimit::create();
  if (limit == nullptr) {
    fmt::print(stderr, "gpu_bench: no GPU with 8 GiB free\n");
    std::exit(1);
  }
  const auto engine = must(Engine::create({.device = Device::kCuda,
                                           .compute = ComputeType::kBfloat16,
                                           .cuda_library = settings.library,
                                           .cuda_path = must(parse_cuda_path(settings.path))}));
  const ModelProfile profile = must(read_model_profile(config));
  const auto weights = must(synthetic_checkpoint(settings.config, config, 1));
  const Quantization quantization = must(parse_quantization(settings.quantization));
  const auto shard =
      must(engine->load(*weights, {}, shard_of(profile, {0, profile.layer_count()}, quantization), {}));
  Bench bench(settings, *engine, shard, *limit);
  for (int i = 0; i < 5; ++i) limit->pass();
  const auto wanted = [&](const char* what) {
    return std::ranges::find(settings.only, what) != settings.only.end();
  };
  if (wanted("decode")) {
    for (const std::size_t sessions : settings.sessions) bench.decode(sessions, 128, 128);
    bench.in_turns(128, 128);
  }
  if (wanted("long")) {
    bench.decode(1, 8192, 64);
    bench.decode(16, 8192, 32);
  }
  if (wanted("prefill")) {
    for (const std::uint32_t chunk : {128u, 512u}) bench.prefill(2048, chunk);
  }
  for (int i = 0; i < 5; ++i) limit->pass();
  bench.print();
}

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("Decode and prefill of a model of random weights on one GPU");
  app.add_option("--config", settings.config, "config.json of the model")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--quantization", settings.quantization, "bfloat16, int8, nf4 or fp8");
  app.add_option("--path", settings.path, "graphs, launches, ampere, portable or eager");
  app.add_option("--cuda-library", settings.library, "libmeshnet_cuda.so, if not beside the program");
  app.add_option("--only", settings.only, "decode, long, prefill")->delimiter(',');
  app.add_option("--sessions", settings.sessions, "Sessions that decode together")->delimiter(',');
  app.add_option("--rounds", settings.rounds, "Times that each figure is measured");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  CLI11_PARSE(app, argc, argv);
  mesh::bench::run(settings);
}
