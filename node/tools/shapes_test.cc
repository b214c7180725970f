#include "node/tools/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "node/engine/models/model_profile.h"

namespace mesh::tools {
namespace {

using ::testing::HasSubstr;

// Counted by hand from the published sizes: matrices of the layers, embedding, and lm_head where it is its
// own.
TEST(Shapes, HaveTheParametersOfTheModelsThatTheyAreNamedAfter) {
  struct Expected {
    const char* name;
    std::uint32_t layers;
    std::uint64_t layer_values, table_values;
    bool tied;
  };
  for (const Expected& expected :
       {Expected{"llama-1b", 16, 2048ull * (2048 + 512 + 512 + 2048 + 3 * 8192), 128256ull * 2048, true},
        Expected{"llama-8b", 32, 4096ull * (4096 + 1024 + 1024 + 4096 + 3 * 14336), 128256ull * 4096, false},
        Expected{"qwen3-9b", 32, 4096ull * (4096 + 1024 + 1024 + 4096 + 3 * 12288), 248320ull * 4096, false},
        Expected{"qwen3-27b", 64, 5120ull * (6144 + 1024 + 1024 + 6144 + 3 * 17408), 248320ull * 5120,
                 false}}) {
    const auto config = shape_config(expected.name);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto profile = engine::read_model_profile(*config);
    ASSERT_TRUE(profile.ok()) << expected.name << ": " << profile.status();
    EXPECT_EQ(profile->layer_count(), expected.layers) << expected.name;
    EXPECT_EQ(profile->layers[0].matrix_values, expected.layer_values) << expected.name;
    EXPECT_EQ(profile->embedding.matrix_values, expected.table_values) << expected.name;
    EXPECT_EQ(profile->tied_head, expected.tied) << expected.name;
  }
  EXPECT_EQ(shapes().size(), 4u);
}

TEST(Shapes, AConfigOfOnesOwnIsReadFromItsFile) {
  const std::string path = MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama/config.json";
  const auto config = shape_config(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->size(), std::filesystem::file_size(path));
}

TEST(Shapes, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto refused = shape_config("llama-7b");
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(message_of(refused.status())),
              HasSubstr("llama-1b, llama-8b, qwen3-9b, qwen3-27b"));
}

}  // namespace
}  // namespace mesh::tools
