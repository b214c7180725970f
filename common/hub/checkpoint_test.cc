#include "common/hub/checkpoint.h"

#include <gmock/gmock.h>

#include <cstring>

#include "common/hub/open_model.h"
#include "common/hub/test_folder.h"
#include "common/safetensors/writer.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class CheckpointTest : public TestFolder {
 protected:
  static float first_float(std::string_view bytes) {
    float value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

TEST_F(CheckpointTest, FindsTensorsInTheirShards) {
  const auto checkpoint = Checkpoint::open(*open_folder(golden("sharded")));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT((*checkpoint)->tensor_files(),
              ElementsAre(Pair("model.layers.0.weight", "model-00001-of-00002.safetensors"),
                          Pair("model.layers.1.weight", "model-00001-of-00002.safetensors"),
                          Pair("model.layers.2.weight", "model-00002-of-00002.safetensors"),
                          Pair("model.layers.3.weight", "model-00002-of-00002.safetensors")));
  for (int i = 0; i < 4; ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".weight";
    const auto info = (*checkpoint)->info(name);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->dtype, Dtype::kF32);
    EXPECT_THAT(info->shape, ElementsAre(16, 16));
    const auto bytes = (*checkpoint)->tensor(name);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(bytes->size(), 16u * 16 * 4);
    EXPECT_EQ(first_float(*bytes), static_cast<float>(i));
    EXPECT_EQ(first_float(*(*checkpoint)->slice(name, 64, 64)), static_cast<float>(i));
  }
  EXPECT_EQ((*checkpoint)->tensor("model.layers.4.weight").status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*checkpoint)->slice("model.layers.0.weight", 1000, 25).status().code(), StatusCode::kOutOfRange);
}

TEST_F(CheckpointTest, ReadsOnlyTheShardsAskedFor) {
  fs::copy(golden("sharded"), folder_ / "m");
  fs::resize_file(folder_ / "m/model-00002-of-00002.safetensors", 20);
  const auto checkpoint = Checkpoint::open(*open_folder(folder_ / "m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->tensor("model.layers.1.weight").ok());
  const auto broken = (*checkpoint)->tensor("model.layers.2.weight");
  EXPECT_EQ(broken.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(broken.status())), HasSubstr("model-00002-of-00002.safetensors"));
}

TEST_F(CheckpointTest, RefusesShardsThatContradictTheIndex) {
  fs::copy(golden("sharded"), folder_ / "m");
  fs::copy_file(folder_ / "m/model-00001-of-00002.safetensors",
                folder_ / "m/model-00002-of-00002.safetensors", fs::copy_options::overwrite_existing);
  const auto checkpoint = Checkpoint::open(*open_folder(folder_ / "m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto tensor = (*checkpoint)->tensor("model.layers.2.weight");
  EXPECT_EQ(tensor.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(tensor.status())), HasSubstr("does not place there"));
}

TEST_F(CheckpointTest, MissingTensorsOfAShardAreNamed) {
  write("m/config.json", "{}");
  ASSERT_TRUE(
      safetensors::write_safetensors(folder_ / "m/a.safetensors", {{"x", Dtype::kU8, {1}, "1"}}).ok());
  write("m/model.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors"}})");
  const auto checkpoint = Checkpoint::open(*open_folder(folder_ / "m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(std::string(message_of((*checkpoint)->tensor("x").status())), HasSubstr("lacks tensor y"));
}

TEST_F(CheckpointTest, ReleasedTensorsAreNotResident) {
  write("m/config.json", "{}");
  const std::string data(3 << 20, 'd');
  ASSERT_TRUE(
      safetensors::write_safetensors(folder_ / "m/model.safetensors",
                                     {{"x", Dtype::kU8, {data.size()}, data}, {"y", Dtype::kU8, {1}, "y"}})
          .ok());
  const auto checkpoint = Checkpoint::open(*open_folder(folder_ / "m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto span = (*checkpoint)->tensor("x");
  ASSERT_TRUE(span.ok());
  EXPECT_EQ(*span, data);
  EXPECT_GE(*(*checkpoint)->resident_bytes(), data.size());
  (*checkpoint)->release(*span);
  EXPECT_EQ(*(*checkpoint)->resident_bytes(), 0u);
}

TEST_F(CheckpointTest, ReadingOnceGivesTheSameBytesAndLeavesNothingMappedIn) {
  write("m/config.json", "{}");
  std::string data(3 << 20, 'd');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i % 251);
  ASSERT_TRUE(safetensors::write_safetensors(folder_ / "m/model.safetensors",
                                             {{"x", Dtype::kU8, {data.size()}, data}})
                  .ok());
  const auto checkpoint = Checkpoint::open(*open_folder(folder_ / "m"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  safetensors::ReadBuffer buffer;
  for (const std::uint64_t begin : {0u, 1u, 4095u, 1u << 20, (3u << 20) - 5}) {
    const std::uint64_t length = std::min<std::uint64_t>(1 << 20, data.size() - begin);
    const auto bytes = (*checkpoint)->read("x", begin, length, buffer);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, data.substr(begin, length)) << begin;
    (*checkpoint)->release(*bytes);
  }
  EXPECT_EQ(*(*checkpoint)->resident_bytes(), 0u);
  EXPECT_EQ((*checkpoint)->read("x", 2 << 20, 2 << 20, buffer).status().code(), StatusCode::kOutOfRange);
  EXPECT_EQ((*checkpoint)->read("absent", 0, 1, buffer).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace mesh::hub
