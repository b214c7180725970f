// How fast caches leave a GPU for host memory and come back, beside plain copies of page-locked memory of the
// same run, and what sessions that take turns lose by it: gpu_spill_bench --config FILE [--context
// 512,2048,8192] [--rounds 5]

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include "node/engine/weights/synthetic_checkpoint.h"
#include "tests/bench/gpu_sessions.h"

namespace mesh::bench {
namespace {

struct Settings {
  std::string config, quantization = "bfloat16", library;
  std::vector<Position> contexts{512, 2048, 8192};
  std::size_t sessions = 4;  // on the device at a time
  Position turn = 64;        // steps
  int rounds = 5;
};

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "{}\n", cudaGetErrorString(error));
  std::exit(1);
}

/// The best of the passes over 1 GiB each way, one cudaMemcpyAsync and a wait. Passes are to be spread over
/// the run that they judge.
class CopyLimit {
 public:
  CopyLimit() {
    check(cudaMalloc(&device_, kBytes));
    check(cudaHostAlloc(&host_, kBytes, cudaHostAllocDefault));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CopyLimit() {
    cudaStreamDestroy(stream_);
    cudaFreeHost(host_);
    cudaFree(device_);
  }
  CopyLimit(const CopyLimit&) = delete;

  void pass() {
    out_ = std::max(out_, rate(host_, device_, cudaMemcpyDeviceToHost));
    in_ = std::max(in_, rate(device_, host_, cudaMemcpyHostToDevice));
  }
  double out() const { return out_; }  ///< bytes a second
  double in() const { return in_; }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 30;

  double rate(void* to, const void* from, cudaMemcpyKind kind) const {
    const double start = now();
    check(cudaMemcpyAsync(to, from, kBytes, kind, stream_));
    check(cudaStreamSynchronize(stream_));
    return kBytes / (now() - start);
  }

  void* device_ = nullptr;
  void* host_ = nullptr;
  cudaStream_t stream_ = nullptr;
  double out_ = 0, in_ = 0;
};

class Bench {
 public:
  Bench(const Settings& settings, Engine& engine, std::shared_ptr<const Shard> shard)
      : settings_(settings), engine_(engine), shard_(std::move(shard)) {
    for (int i = 0; i < 3; ++i) limit_.pass();
  }

  /// One cache of `context` tokens, there and back.
  void copies(Position context) {
    Sessions one(engine_, shard_, 1, context + 1);
    one.prefill(context, 512);
    const CacheId cache = one.caches()[0];
    std::vector<double> out, in;
    double bytes = 0, first = 0;
    for (int round = -1; round < settings_.rounds; ++round) {
      limit_.pass();
      const double start = now();
      bytes = static_cast<double>(must(engine_.spill(cache)));
      const double left = now();
      must(engine_.restore(cache));
      if (round < 0) first = bytes / (left - start);  // host memory is got for it
      if (round < 0) continue;
      out.push_back(bytes / (left - start));
      in.push_back(bytes / (now() - left));
    }
    rows_.push_back({context, bytes, first, median(out), median(in)});
  }

  /// Two groups of sessions, one of them on the device at a time, beside one group that stays.
  void turns(Position context) {
    const Position steps = settings_.turn * static_cast<Position>(settings_.rounds + 1);
    Sessions first(engine_, shard_, settings_.sessions, context + steps),
        second(engine_, shard_, settings_.sessions, context + steps);
    std::vector<double> staying, taking_turns, copying;
    for (Sessions* group : {&first, &second}) {
      group->prefill(context, 512);
      decode(*group);
    }
    for (int round = 0; round < settings_.rounds; ++round) staying.push_back(decode(first, context));
    const auto move = [&](Sessions& group, bool out) {
      for (const CacheId cache : group.caches()) must(out ? engine_.spill(cache) : engine_.restore(cache));
    };
    move(second, true);
    for (int round = 0; round < settings_.rounds; ++round) {
      const double start = now();
      move(first, true);
      move(second, false);
      copying.push_back(now() - start);
      decode(second, context);
      taking_turns.push_back(now() - start);
      move(second, true);
      move(first, false);
    }
    const auto tokens = static_cast<double>(settings_.sessions * settings_.turn);
    fmt::print(
        "{} of {} sessions at {} tokens, turns of {} steps: {:.0f} tokens/s, {:.0f} when they stay ({:.3f}); "
        "{:.1f} ms of copies for {:.1f} ms of steps\n",
        settings_.sessions, 2 * settings_.sessions, context, settings_.turn, tokens / median(taking_turns),
        tokens / median(staying), median(staying) / median(taking_turns), median(copying) * 1e3,
        median(staying) * 1e3);
  }

  /// One group decodes while a thread moves the caches of another there and back.
  void beside(Position context) {
    Sessions staying(engine_, shard_, settings_.sessions, context + settings_.turn),
        moving(engine_, shard_, settings_.sessions, context + 1);
    staying.prefill(context, 512);
    moving.prefill(context, 512);
    std::vector<double> alone, together;
    for (int round = 0; round < settings_.rounds; ++round) alone.push_back(decode(staying, context));
    std::atomic<bool> done = false;
    double bytes = 0, seconds = 0;
    std::thread mover([&] {
      const double start = now();
      while (!done) {
        for (const CacheId cache : moving.caches()) bytes += static_cast<double>(must(engine_.spill(cache)));
        for (const CacheId cache : moving.caches())
          bytes += static_cast<double>(must(engine_.restore(cache)));
      }
      seconds = now() - start;
    });
    for (int round = 0; round < settings_.rounds; ++round) together.push_back(decode(staying, context));
    done = true;
    mover.join();
    fmt::print("{} sessions at {} tokens beside copies: {:.3f} of their speed alone; copies {:.1f} GB/s\n",
               settings_.sessions, context, median(alone) / median(together), bytes / seconds * 1e-9);
  }

  void print() {
    for (int i = 0; i < 3; ++i) limit_.pass();
    fmt::print("page-locked copies: {:.1f} GB/s out, {:.1f} in\n", limit_.out() * 1e-9, limit_.in() * 1e-9);
    for (const Row& row : rows_) {
      fmt::print(
          "cache of {:5} tokens, {:7.1f} MB: out {:.1f} GB/s ({:.3f}), the first time {:.1f}; in {:.1f} "
          "({:.3f})\n",
          row.context, row.bytes * 1e-6, row.out * 1e-9, row.out / limit_.out(), row.first * 1e-9,
          row.in * 1e-9, row.in / limit_.in());
    }
  }

 private:
  struct Row {
    Position context;
    double bytes, first, out, in;  // a second, but `bytes`
  };
  /// Seconds of a turn.
  double decode(Sessions& group, Position context = 0) const {
    if (context > 0) group.back_to(context);
    const double start = now();
    for (Position i = 0; i < settings_.turn; ++i) group.decode();
    return now() - start;
  }

  const Settings& settings_;
  Engine& engine_;
  std::shared_ptr<const Shard> shard_;
  CopyLimit limit_;
  std::vector<Row> rows_;
};

void run(const Settings& settings) {
  std::ifstream file(settings.config);
  const std::string config((std::istreambuf_iterator<char>(file)), {});
  const auto engine = must(Engine::create({.device = Device::kCuda,
                                           .compute = ComputeType::kBfloat16,
                                           .spill_bytes = std::uint64_t{24} << 30,
                                           .cuda_library = settings.library}));
  const ModelProfile profile = must(read_model_profile(config));
  const auto weights = must(synthetic_checkpoint(settings.config, config, 1));
  const Quantization quantization = must(parse_quantization(settings.quantization));
  const auto shard =
      must(engine->load(*weights, {}, shard_of(profile, {0, profile.layer_count()}, quantization), {}));
  Bench bench(settings, *engine, shard);
  for (const Position context : settings.contexts) bench.copies(context);
  bench.print();
  for (const Position context : settings.contexts) bench.turns(context);
  for (const Position context : settings.contexts) bench.beside(context);
}

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("Caches that leave a GPU and come back, beside plain copies");
  app.add_option("--config", settings.config, "config.json of the model")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--quantization", settings.quantization, "bfloat16, int8, nf4 or fp8");
  app.add_option("--cuda-library", settings.library, "libmeshnet_cuda.so, if not beside the program");
  app.add_option("--context", settings.contexts, "Tokens of a cache")->delimiter(',');
  app.add_option("--sessions", settings.sessions, "Sessions on the device at a time");
  app.add_option("--turn", settings.turn, "Steps of a turn")->check(CLI::Range(1, 4096));
  app.add_option("--rounds", settings.rounds, "Times that each figure is measured")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  mesh::bench::run(settings);
}
