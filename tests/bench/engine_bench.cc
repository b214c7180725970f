// Decode and prefill of one model in one process, over 1, 2 and 3 stages that hand bfloat16 on to each other,
// as shares of this machine's read bandwidth and matrix rate, measured in the same run. engine_bench --model
// FOLDER [--threads N] [--compute bfloat16|float32] [--quantization bfloat16|int8|nf4] [--sessions N]
// [--stages N] [--json]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <thread>

#include "common/hub/checkpoint.h"
#include "common/hub/open_model.h"
#include "node/engine/engine.h"
#include "tests/bench/machine_limits.h"

namespace mesh::bench {
namespace {
using namespace engine;

constexpr std::size_t kPrompt = 1024, kChunk = 128, kDecode = 64;

struct Settings {
  std::string model, compute = "bfloat16", quantization = "bfloat16";
  unsigned threads = std::thread::hardware_concurrency();
  std::size_t sessions = 1;
  std::uint32_t stages = 3;
  bool json = false;
};

template <class T>
T must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "engine_bench: {}\n", message_of(value.status()));
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// One session's caches along the stages.
struct Session {
  std::vector<CacheId> caches;
  std::vector<TokenId> feed;
  Position position = 0;
};

class Stages {
 public:
  Stages(Engine& engine, std::shared_ptr<const Shard> shard, std::uint32_t count)
      : engine_(engine), shard_(shard) {
    const std::uint32_t layers = shard->profile().layer_count();
    for (std::uint32_t i = 0; i < count; ++i)
      ranges_.push_back({layers * i / count, layers * (i + 1) / count});
  }
  Session open() {
    Session session;
    for (const LayerRange& range : ranges_) {
      session.caches.push_back(must(engine_.open_cache(shard_, range, kPrompt + kDecode + 1)));
    }
    return session;
  }
  void close(const Session& session) {
    for (const CacheId cache : session.caches) engine_.close_cache(cache);
  }
  /// Feeds each session's `feed` in one step a stage; afterwards it is the sampled token when `sample`.
  void step(std::vector<Session>& sessions, bool sample) {
    std::vector<std::string> hidden(sessions.size());
    for (std::size_t stage = 0; stage < ranges_.size(); ++stage) {
      const bool tail = stage + 1 == ranges_.size();
      std::vector<Segment> segments(sessions.size());
      for (std::size_t i = 0; i < sessions.size(); ++i) {
        Segment& segment = segments[i];
        segment.cache = sessions[i].caches[stage];
        segment.start = sessions[i].position;
        segment.rows = static_cast<std::uint32_t>(sessions[i].feed.size());
        if (stage == 0) segment.ids = sessions[i].feed;
        segment.hidden = std::move(hidden[i]);
        segment.want = !tail ? Want::kHidden : sample ? Want::kTokens : Want::kNothing;
      }
      auto results = must(engine_.step(shard_, ranges_[stage], segments));
      for (std::size_t i = 0; i < sessions.size(); ++i) {
        if (!results[i].status.ok()) must(StatusOr<int>(results[i].status));
        hidden[i] = std::move(results[i].hidden);
        if (!tail) continue;
        sessions[i].position += segments[i].rows;
        if (sample) sessions[i].feed = {results[i].tokens[0].id};
      }
    }
  }

 private:
  Engine& engine_;
  std::shared_ptr<const Shard> shard_;
  std::vector<LayerRange> ranges_;
};

/// Medians over all rounds: a mesh's figures are medians, too.
struct Times {
  double prefill = 0;  // seconds of kPrompt tokens
  double token = 0;    // seconds of one decode step of all sessions, right after a short prompt
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Times measure(Engine& engine, const std::shared_ptr<const Shard>& shard, std::uint32_t stages,
              std::size_t count) {
  std::vector<double> prefills, tokens;
  Stages chain(engine, shard, stages);
  for (int round = 0; round < 5; ++round) {
    std::vector<Session> one{chain.open()};
    const double start = now();
    for (std::size_t at = 0; at < kPrompt; at += kChunk) {
      one[0].feed.assign(kChunk, static_cast<TokenId>(at % 1000 + 5));
      chain.step(one, at + kChunk == kPrompt);
    }
    prefills.push_back(now() - start);
    chain.close(one[0]);

    std::vector<Session> sessions(count);
    for (Session& session : sessions) {
      session = chain.open();
      session.feed.assign(8, 17);
    }
    chain.step(sessions, true);
    for (std::size_t token = 0; token < kDecode; ++token) {
      const double begin = now();
      chain.step(sessions, true);
      tokens.push_back(now() - begin);
    }
    for (const Session& session : sessions) chain.close(session);
  }
  return {median(prefills), median(tokens)};
}

void run(const Settings& settings) {
  const auto engine = must(Engine::create({.device = Device::kCpu,
                                           .compute = must(parse_compute_type(settings.compute)),
                                           .threads = settings.threads,
                                           .memory_bytes = 0,
                                           .cuda_library = {}}));
  const auto checkpoint = must(hub::Checkpoint::open(must(hub::open_folder(settings.model))));
  const auto profile = must(read_model_profile(must(checkpoint->files().read_small("config.json"))));
  const double start = now();
  const Quantization quantization =
      must(profile.quantization(must(parse_quantization(settings.quantization))));
  const ShardSpec all = shard_of(profile, {0, profile.layer_count()}, quantization);
  const auto shard = must(engine->load(*checkpoint, {}, all, {}));
  if (!settings.json)
    fmt::print("loaded {:.1f} MB in {:.2f} s\n", static_cast<double>(shard->bytes()) / 1e6, now() - start);

  const MachineLimits limits = measure_limits(static_cast<int>(settings.threads));
  if (settings.json) {
    fmt::print("{{\"read_bytes_per_s\":{:.4g},\"matrix_flops\":{:.4g},\"sessions\":{},\"stages\":[",
               limits.read_bytes_per_s, limits.matrix_flops, settings.sessions);
  } else {
    fmt::print("{}\n", to_string(limits));
  }
  const WeightFormat format =
      profile.matrix_format(must(parse_weight_format(settings.compute)), quantization);
  double layer_values = 0, bytes = static_cast<double>(profile.head.matrix_bytes(format));
  for (const PartSize& layer : profile.layers) {
    layer_values += static_cast<double>(layer.matrix_values);
    bytes += static_cast<double>(layer.matrix_bytes(format));
  }
  for (std::uint32_t stages = 1; stages <= settings.stages; ++stages) {
    const Times times = measure(*engine, shard, stages, settings.sessions);
    const double prefill = kPrompt / times.prefill;
    const double prefill_share = 2 * layer_values * prefill / limits.matrix_flops;
    const double decode = static_cast<double>(settings.sessions) / times.token;
    const double decode_share = bytes / times.token / limits.read_bytes_per_s;
    if (settings.json) {
      fmt::print(
          "{}{{\"stages\":{},\"prefill_tokens_per_s\":{:.4g},\"prefill_share\":{:.3f},"
          "\"decode_tokens_per_s\":{:.4g},\"decode_step_s\":{:.4g},\"decode_share\":{:.3f}}}",
          stages == 1 ? "" : ",", stages, prefill, prefill_share, decode, times.token, decode_share);
    } else {
      fmt::print(
          "{} stages: prefill {:.1f} tok/s ({:.0f} % of the matrix rate), decode of {} sessions {:.1f} tok/s "
          "({:.2f} ms a step, {:.0f} % of the bandwidth)\n",
          stages, prefill, 100 * prefill_share, settings.sessions, decode, times.token * 1e3,
          100 * decode_share);
    }
  }
  if (settings.json) fmt::print("]}}\n");
}

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("Decode and prefill of one model in one process");
  app.add_option("--model", settings.model, "Folder of the model")->required();
  app.add_option("--threads", settings.threads, "Threads");
  app.add_option("--compute", settings.compute, "bfloat16 or float32");
  app.add_option("--quantization", settings.quantization, "bfloat16, int8 or nf4");
  app.add_option("--sessions", settings.sessions, "Sessions that decode together");
  app.add_option("--stages", settings.stages, "Measure over 1 … this many stages");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  CLI11_PARSE(app, argc, argv);
  mesh::bench::run(settings);
}
