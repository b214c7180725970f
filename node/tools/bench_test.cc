#include "node/tools/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace mesh::tools {
namespace {

using ::testing::HasSubstr;

class BenchFile : public ::testing::Test {
 protected:
  ~BenchFile() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("mesh-bench-{}", ::getpid());
};

BenchOptions tiny() {
  BenchOptions options;
  options.engine = {
      .device = engine::Device::kCpu, .threads = 1, .memory_bytes = 1u << 28, .cuda_library = {}};
  options.shapes = {MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama/config.json", "llama-none"};
  options.read_bytes = std::size_t{1} << 22;
  options.quantizations = {engine::Quantization::kNone, engine::Quantization::kNf4};
  return options;
}

TEST(Bench, MeasuresALayerOfEachShapeAndSaysWhyNotOfOthers) {
  std::vector<std::string> said;
  BenchOptions options = tiny();
  options.say = [&](const std::string& line) { said.push_back(line); };
  const auto figures = run_bench(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->device, "cpu");
  EXPECT_GT(figures->read_bytes_per_second, 0);
  EXPECT_GT(figures->flops, 0);
  ASSERT_EQ(figures->layers.size(), 4u);
  for (int i = 0; i < 2; ++i) {
    const LayerFigure& layer = figures->layers[static_cast<std::size_t>(i)];
    EXPECT_EQ(layer.weights, i == 0 ? "bfloat16" : "nf4");
    EXPECT_EQ(layer.problem, "");
    EXPECT_GT(layer.decode_seconds, 0);
    EXPECT_GT(layer.prefill_seconds, 0);
  }
  EXPECT_THAT(figures->layers[2].problem, HasSubstr("\"llama-none\" is no shape"));
  EXPECT_THAT(to_text(*figures), HasSubstr("llama-none"));
  EXPECT_EQ(said.size(), 5u);
}

TEST(Bench, BeginsNothingAfterItsTime) {
  BenchOptions options = tiny();
  options.seconds = 0;
  const auto figures = run_bench(options);
  ASSERT_TRUE(figures.ok()) << figures.status();
  for (const LayerFigure& layer : figures->layers) EXPECT_THAT(layer.problem, HasSubstr("left out"));
}

TEST_F(BenchFile, IsReadBackForTheSameDevice) {
  EXPECT_EQ(measured_read_rate(folder_, "cpu"), 0);
  BenchFigures figures{
      .device = "cpu", .threads = 2, .read_bytes_per_second = 4e10, .flops = 1e11, .layers = {}};
  ASSERT_TRUE(write_bench_file(folder_, figures).ok());
  EXPECT_EQ(measured_read_rate(folder_, "cpu"), 4e10);
  EXPECT_EQ(measured_read_rate(folder_, "cuda"), 0);
}

TEST_F(BenchFile, WhatIsNotOneCountsAsNotMeasured) {
  std::filesystem::create_directories(folder_);
  for (const char* text :
       {"", "{", "[]", R"({"device":"cpu"})", R"({"device":"cpu","read_bytes_per_second":-1})"}) {
    std::ofstream(bench_file(folder_), std::ios::trunc) << text;
    EXPECT_EQ(measured_read_rate(folder_, "cpu"), 0) << text;
  }
}

}  // namespace
}  // namespace mesh::tools
