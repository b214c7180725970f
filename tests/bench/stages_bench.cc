// The same layers as one stage and as several in one process, decoded in turns: ms a token of both and their
// ratio. Between stages hidden states stay on the device (a segment names the step before it) or pass through
// the host, as between programs; both must give the same text. stages_bench --config FILE [--device cuda]
// [--stages 4] [--sessions 1] [--prompt 128] [--decoded 128] [--rounds 5] [--json]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

#include "node/engine/engine.h"
#include "node/engine/weights/synthetic_checkpoint.h"

namespace mesh::bench {
namespace {
using namespace engine;

constexpr double kTarget = 1.03;

struct Settings {
  std::string config, device = "auto", quantization = "bfloat16", path = "graphs", library;
  std::uint32_t stages = 4;
  std::size_t sessions = 1;
  Position prompt = 128, decoded = 128;
  unsigned threads = 0;
  int rounds = 5;
  bool json = false;
};

template <class T>
T must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "stages_bench: {}\n", message_of(value.status()));
  std::exit(1);
}
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

enum class Between : std::uint8_t { kDevice, kHost };

/// Sessions that go forward together through all stages.
class Line {
 public:
  Line(Engine& engine, std::shared_ptr<const Shard> shard, std::uint32_t stages, Between between,
       std::size_t sessions, Position limit)
      : engine_(engine), shard_(std::move(shard)), between_(between) {
    const std::uint32_t layers = shard_->profile().layer_count();
    for (std::uint32_t i = 0; i < stages; ++i)
      ranges_.emplace_back(layers * i / stages, layers * (i + 1) / stages);
    for (std::size_t i = 0; i < sessions; ++i) {
      feeds_.push_back(token(i));
      for (const LayerRange& range : ranges_)
        caches_.push_back(must(engine_.open_cache(shard_, range, limit)));
    }
  }
  ~Line() {
    for (const CacheId cache : caches_) engine_.close_cache(cache);
  }
  Line(const Line&) = delete;

  void prefill(Position tokens) {
    for (std::size_t i = 0; i < feeds_.size(); ++i) {
      for (Position at = 0; at < tokens; at += 128) {
        Segment segment;
        segment.start = at, segment.rows = std::min<std::uint32_t>(128, tokens - at);
        for (std::uint32_t k = 0; k < segment.rows; ++k) segment.ids.push_back(token(i * 7919 + at + k));
        const auto results = run(i, {std::move(segment)});
        feeds_[i] = results[0].tokens[0].id;
      }
    }
    position_ = tokens;
  }
  void decode() {
    std::vector<Segment> segments(feeds_.size());
    for (std::size_t i = 0; i < feeds_.size(); ++i)
      segments[i].start = position_, segments[i].rows = 1, segments[i].ids = {feeds_[i]};
    const auto results = run(0, std::move(segments));
    for (std::size_t i = 0; i < feeds_.size(); ++i) feeds_[i] = results[i].tokens[0].id;
    ++position_;
    text_.insert(text_.end(), feeds_.begin(), feeds_.end());
  }
  /// Seconds a token of all sessions.
  double decode_from(Position prompt, Position count) {
    prefill(prompt);
    text_.clear();
    const double start = now();
    for (Position i = 0; i < count; ++i) decode();
    return (now() - start) / count;
  }
  const std::vector<TokenId>& text() const { return text_; }

 private:
  TokenId token(std::size_t seed) const {
    return static_cast<TokenId>((seed * 2654435761u + 12345u) % shard_->profile().vocab);
  }
  /// Segments of the sessions from `first` on.
  std::vector<SegmentResult> run(std::size_t first, std::vector<Segment> segments) {
    std::vector<std::unique_ptr<PendingStep>> steps;
    std::vector<SegmentResult> results;
    for (std::size_t stage = 0; stage < ranges_.size(); ++stage) {
      for (std::size_t i = 0; i < segments.size(); ++i) {
        Segment& segment = segments[i];
        segment.cache = caches_[(first + i) * ranges_.size() + stage];
        segment.want = stage + 1 < ranges_.size() ? Want::kHidden : Want::kTokens;
        if (stage == 0) continue;
        segment.ids.clear();
        if (between_ == Between::kHost) {
          segment.hidden = std::move(results[i].hidden);
        } else {
          segment.from = steps.back().get(), segment.from_segment = i;
        }
      }
      steps.push_back(must(engine_.begin(shard_, ranges_[stage], segments)));
      if (between_ == Between::kHost) results = finish(*steps.back());
    }
    if (between_ == Between::kHost) return results;
    for (auto& step : steps) results = finish(*step);
    return results;
  }
  static std::vector<SegmentResult> finish(PendingStep& step) {
    auto results = must(step.finish());
    for (const SegmentResult& result : results) {
      if (!result.status.ok()) must(StatusOr<int>(result.status));
    }
    return results;
  }

  Engine& engine_;
  std::shared_ptr<const Shard> shard_;
  const Between between_;
  std::vector<LayerRange> ranges_;
  std::vector<CacheId> caches_;  // of each session, of each stage
  std::vector<TokenId> feeds_, text_;
  Position position_ = 0;
};

int run(const Settings& settings) {
  std::ifstream file(settings.config);
  const std::string config((std::istreambuf_iterator<char>(file)), {});
  const auto engine = must(Engine::create({.device = must(parse_device(settings.device)),
                                           .compute = ComputeType::kBfloat16,
                                           .threads = settings.threads,
                                           .cuda_library = settings.library,
                                           .cuda_path = must(parse_cuda_path(settings.path))}));
  const ModelProfile profile = must(read_model_profile(config));
  const auto weights = must(synthetic_checkpoint(settings.config, config, 1));
  const auto shard = must(engine->load(
      *weights, {},
      shard_of(profile, {0, profile.layer_count()}, must(parse_quantization(settings.quantization))), {}));
  const Position limit = settings.prompt + settings.decoded;
  Line whole(*engine, shard, 1, Between::kHost, settings.sessions, limit);
  Line on_device(*engine, shard, settings.stages, Between::kDevice, settings.sessions, limit);
  Line over_host(*engine, shard, settings.stages, Between::kHost, settings.sessions, limit);
  std::vector<double> times[3], device_ratios, host_ratios;
  bool same = true;
  for (int round = -1; round < settings.rounds; ++round) {  // the first is for graphs to be made
    Line* const lines[] = {&whole, &on_device, &over_host};
    double took[3];
    for (int i = 0; i < 3; ++i) took[i] = lines[i]->decode_from(settings.prompt, settings.decoded);
    same &= on_device.text() == over_host.text();
    if (round < 0) continue;
    for (int i = 0; i < 3; ++i) times[i].push_back(took[i]);
    device_ratios.push_back(took[1] / took[0]), host_ratios.push_back(took[2] / took[0]);
  }
  const double ratio = median(device_ratios);
  if (settings.json) {
    fmt::print(
        "{{\"stages\":{},\"sessions\":{},\"whole_ms\":{:.4f},\"device_ms\":{:.4f},\"host_ms\":{:.4f},"
        "\"device_"
        "ratio\":{:.4f},\"host_ratio\":{:.4f},\"same_text\":{}}}\n",
        settings.stages, settings.sessions, median(times[0]) * 1e3, median(times[1]) * 1e3,
        median(times[2]) * 1e3, ratio, median(host_ratios), same);
  } else {
    fmt::print("one stage                                     {:8.3f} ms a token\n", median(times[0]) * 1e3);
    fmt::print(
        "{} stages, hidden states on the device         {:8.3f} ms a token, {:.3f} times (target {}): {}\n",
        settings.stages, median(times[1]) * 1e3, ratio, kTarget, ratio <= kTarget ? "met" : "MISSED");
    fmt::print("{} stages, hidden states through the host      {:8.3f} ms a token, {:.3f} times\n",
               settings.stages, median(times[2]) * 1e3, median(host_ratios));
    fmt::print("the texts of both are {}\n", same ? "the same" : "DIFFERENT");
  }
  return same ? 0 : 1;
}

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("The same layers as one stage and as several in one process");
  app.add_option("--config", settings.config, "config.json of the model")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--device", settings.device, "auto, cpu or cuda");
  app.add_option("--quantization", settings.quantization, "bfloat16, int8, nf4 or fp8");
  app.add_option("--path", settings.path, "graphs, launches, ampere, portable or eager");
  app.add_option("--cuda-library", settings.library, "libmeshnet_cuda.so, if not beside the program");
  app.add_option("--threads", settings.threads, "CPU threads; 0: all cores");
  app.add_option("--stages", settings.stages, "Stages of equal length")->check(CLI::Range(1, 64));
  app.add_option("--sessions", settings.sessions, "Sessions that decode together")->check(CLI::Range(1, 64));
  app.add_option("--prompt", settings.prompt, "Tokens of a prompt")->check(CLI::Range(1, 1 << 20));
  app.add_option("--decoded", settings.decoded, "Tokens after it")->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", settings.rounds, "Times that each figure is measured")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  CLI11_PARSE(app, argc, argv);
  return mesh::bench::run(settings);
}
