// How fast a shard is loaded, beside how fast the disk gives the same file, in one run.
// load_bench --folder FOLDER [--shape llama-8b] [--layers 6] [--quantization bfloat16,int8,nf4,fp8]
// [--device cpu,cuda] [--rounds 3]
// Makes FOLDER/model.safetensors of made-up weights when it is not there. Before each reading the file leaves
// the page cache; --cached leaves it there.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/hub/checkpoint.h"
#include "common/hub/open_model.h"
#include "common/json/json.h"
#include "node/engine/engine.h"
#include "node/engine/weights/synthetic_checkpoint.h"
#include "node/tools/shapes.h"

namespace mesh::bench {
namespace {
using namespace engine;
namespace fs = std::filesystem;

constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;

struct Settings {
  std::string folder, shape = "llama-8b", library;
  std::vector<std::string> devices{"cpu"};
  std::vector<std::string> quantizations{"bfloat16"};
  unsigned layers = 6, threads = 0;
  int rounds = 3;
  bool cached = false;
};

template <class T>
T must(StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fmt::print(stderr, "load_bench: {}\n", message_of(value.status()));
  std::exit(1);
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// The shape's config.json with so many layers, and its made-up weights in one file.
void write_model(const Settings& settings, const fs::path& weights) {
  json::Value config = must(json::parse(must(tools::shape_config(settings.shape))));
  config.as_object()["num_hidden_layers"] = settings.layers;
  fs::create_directories(settings.folder);
  const std::string text = json::serialize(config);
  std::ofstream(fs::path(settings.folder) / "config.json") << text;
  const auto made = must(synthetic_checkpoint(settings.shape, text, 1));
  json::Object header;
  std::uint64_t at = 0;
  for (const auto& [name, file] : made->tensor_files()) {
    const safetensors::TensorInfo info = must(made->info(name));
    header[name] = {{"dtype", safetensors::dtype_name(info.dtype)},
                    {"shape", json::Array(info.shape.begin(), info.shape.end())},
                    {"data_offsets", {at, at + info.bytes}}};
    at += info.bytes;
  }
  std::string lines = json::serialize(header);
  lines.resize((lines.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = lines.size();
  const fs::path part = weights.string() + ".part";
  std::ofstream out(part, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length)) << lines;
  for (const auto& [name, file] : made->tensor_files()) {
    const std::uint64_t bytes = must(made->info(name)).bytes;
    for (std::uint64_t begin = 0; begin < bytes; begin += kPiece) {
      const std::string_view span = must(made->slice(name, begin, std::min(kPiece, bytes - begin)));
      out.write(span.data(), static_cast<std::streamsize>(span.size()));
      made->release(span);
    }
  }
  out.close();
  if (!out) {
    fmt::print(stderr, "load_bench: cannot write {}\n", part.string());
    std::exit(1);
  }
  fs::rename(part, weights);
}

void leave_page_cache(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

/// The whole file past the page cache, `threads` pieces at a time.
void read_directly(const fs::path& path, unsigned threads) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  std::atomic<std::uint64_t> next = 0;
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < threads; ++i) {
    readers.emplace_back([&] {
      void* const buffer = std::aligned_alloc(4096, kPiece);
      while (::pread(fd, buffer, kPiece, static_cast<off_t>(next.fetch_add(kPiece))) > 0) continue;
      std::free(buffer);
    });
  }
  for (std::thread& reader : readers) reader.join();
  ::close(fd);
}

double load(const Settings& settings, const std::string& device, Quantization quantization) {
  const auto engine = must(Engine::create({.device = must(parse_device(device)),
                                           .compute = ComputeType::kBfloat16,
                                           .threads = settings.threads,
                                           .memory_bytes = 0,
                                           .cuda_library = settings.library}));
  const auto checkpoint = must(hub::Checkpoint::open(must(hub::open_folder(settings.folder))));
  const ModelProfile profile = must(read_model_profile(must(checkpoint->files().read_small("config.json"))));
  return seconds_of([&] {
    must(engine->load(*checkpoint, {}, shard_of(profile, {0, profile.layer_count()}, quantization), {}));
  });
}

void run(const Settings& settings) {
  const fs::path weights = fs::path(settings.folder) / "model.safetensors";
  if (!fs::exists(weights)) {
    const double seconds = seconds_of([&] { write_model(settings, weights); });
    fmt::print("{}: made in {:.1f} s\n", weights.string(), seconds);
  }
  const double bytes = static_cast<double>(fs::file_size(weights));
  fmt::print("{:.2f} GB; GB/s, medians of {}\n", bytes / 1e9, settings.rounds);
  std::vector<double> disk;
  std::map<std::string, std::vector<double>> loads;
  for (int round = 0; round < settings.rounds; ++round) {
    for (const unsigned threads : {1u, 4u, 8u}) {
      leave_page_cache(weights);
      disk.push_back(bytes / 1e9 / seconds_of([&] { read_directly(weights, threads); }));
    }
    for (const std::string& device : settings.devices) {
      for (const std::string& name : settings.quantizations) {
        if (!settings.cached) leave_page_cache(weights);
        const double seconds = load(settings, device, must(parse_quantization(name)));
        loads[device + " " + name].push_back(bytes / 1e9 / seconds);
      }
    }
  }
  const double rate = *std::ranges::max_element(disk);
  fmt::print("disk: best {:.2f}, median {:.2f}\n", rate, median(disk));
  for (const auto& [name, rates] : loads) {
    fmt::print("{:14} {:.2f}, {:.2f} of the disk's best, {:.2f} of its median\n", name, median(rates),
               median(rates) / rate, median(rates) / median(disk));
  }
}

}  // namespace
}  // namespace mesh::bench

int main(int argc, char** argv) {
  mesh::bench::Settings settings;
  CLI::App app("How fast a shard is loaded, beside how fast the disk gives its file");
  app.add_option("--folder", settings.folder, "where the model is, or is made")->required();
  app.add_option("--shape", settings.shape, "a name of node/tools/shapes, or a config.json");
  app.add_option("--layers", settings.layers, "of the model that is made");
  app.add_option("--quantization", settings.quantizations, "bfloat16, int8, nf4, fp8")->delimiter(',');
  app.add_option("--device", settings.devices, "cpu, cuda")->delimiter(',');
  app.add_option("--cuda-library", settings.library, "libmeshnet_cuda.so, if not beside the program");
  app.add_option("--threads", settings.threads, "of a step; loading has its own");
  app.add_flag("--cached", settings.cached, "loads find the file in the page cache");
  app.add_option("--rounds", settings.rounds, "times that each figure is measured");
  CLI11_PARSE(app, argc, argv);
  mesh::bench::run(settings);
}
