// Wire codecs on hidden states of a real model: ratio and speed of one core after every few layers, and the
// link speed below which each pays. codec_bench --model FOLDER [--rows N]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "common/hub/checkpoint.h"
#include "common/hub/open_model.h"
#include "common/wire/codec.h"
#include "node/engine/engine.h"

namespace mesh::bench {
namespace {
using namespace engine;

template <class T>
T must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "codec_bench: {}\n", message_of(value.status()));
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Least seconds of `call` in a quarter of a second.
template <class Call>
double best_time(const Call& call) {
  double best = 1e9;
  for (const double end = now() + 0.25; now() < end;) {
    const double start = now();
    call();
    best = std::min(best, now() - start);
  }
  return best;
}

void bench_codec(wire::Codec codec, const std::string& raw, std::uint32_t layer) {
  wire::HiddenCodec coder;
  std::string coded;
  const double encode = best_time([&] {
    coded.clear();
    coder.encode(codec, raw, coded);
  });
  const double decode = best_time([&] {
    if (must(coder.decode(codec, coded, raw.size())) != raw) std::abort();
  });
  const auto bytes = static_cast<double>(raw.size());
  const double ratio = static_cast<double>(coded.size()) / bytes;
  const double break_even = (1 - ratio) / ((encode + decode) / bytes);
  fmt::print(
      "layer {:3}  {:8}  {:5.1f} %  encode {:6.0f} MB/s  decode {:6.0f} MB/s  pays below {:5.2f} Gbit/s\n",
      layer, wire::name_of(codec), 100 * ratio, bytes / encode * 1e-6, bytes / decode * 1e-6,
      break_even * 8e-9);
}

void run(const std::string& model, std::uint32_t rows) {
  const auto engine = must(Engine::create({}));
  const auto checkpoint = must(hub::Checkpoint::open(must(hub::open_folder(model))));
  const auto profile = must(read_model_profile(must(checkpoint->files().read_small("config.json"))));
  const std::uint32_t layers = profile.layer_count();
  const auto shard = must(engine->load(*checkpoint, {}, shard_of(profile, {0, layers}), {}));
  const std::uint32_t step = std::max(1U, layers / 5);
  for (std::uint32_t end = step; end < layers; end += step) {
    Segment segment;
    segment.cache = must(engine->open_cache(shard, {0, end}, rows));
    segment.rows = rows;
    for (std::uint32_t i = 0; i < rows; ++i)
      segment.ids.push_back(static_cast<TokenId>((i * 7919 + 13) % 2000));
    const auto results = must(engine->step(shard, {0, end}, {&segment, 1}));
    engine->close_cache(segment.cache);
    if (!results[0].status.ok()) must(StatusOr<int>(results[0].status));
    for (const auto codec : {wire::Codec::kZstd, wire::Codec::kSplit, wire::Codec::kIdentity}) {
      bench_codec(codec, results[0].hidden, end);
    }
  }
}

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  std::string model;
  std::uint32_t rows = 128;
  CLI::App app("Wire codecs on hidden states of a real model");
  app.add_option("--model", model, "Folder of the model")->required();
  app.add_option("--rows", rows, "Tokens in the chunk")->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  mesh::bench::run(model, rows);
}
