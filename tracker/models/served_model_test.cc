#include "tracker/models/served_model.h"

#include <gmock/gmock.h>

#include "common/hub/test_folder.h"

namespace mesh::tracker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ServedModelTest : public hub::TestFolder {
 protected:
  ServedModelTest() {
    const auto model = std::filesystem::path(MESH_SOURCE_DIR) / "tests/golden/checkpoints/tiny-llama";
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
      std::filesystem::copy(model / name, folder_);
    options_.say = [this](std::string_view line) { lines_.emplace_back(line); };
  }
  std::vector<std::string> lines_;
  ServeOptions options_;
};

TEST_F(ServedModelTest, HashingIsSaidSoonAndEndsWhenAsked) {
  constexpr std::uintmax_t kSecondsToHash = std::uintmax_t{1} << 32;
  std::filesystem::resize_file(folder_ / "model.safetensors", kSecondsToHash);  // a hole, which takes no disk
  options_.go_on = [] { return false; };
  EXPECT_EQ(open_served_model(folder_.string(), options_).status().code(), StatusCode::kCancelled);
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("hashing")));
}

TEST_F(ServedModelTest, SamplingThatTheModelAsksForAndDoesNotGetIsSaid) {
  write("generation_config.json", R"({"do_sample": true, "repetition_penalty": 1.05, "min_p": 0.1})");
  ASSERT_TRUE(open_served_model(folder_.string(), options_).ok());
  EXPECT_THAT(lines_.front(), HasSubstr("repetition_penalty 1.05, min_p 0.1"));
}

TEST_F(ServedModelTest, SamplingThatChangesNothingIsNotSaid) {
  write("generation_config.json", R"({"do_sample": true, "repetition_penalty": 1.0, "min_p": 0})");
  ASSERT_TRUE(open_served_model(folder_.string(), options_).ok());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("hashing")));
}

}  // namespace
}  // namespace mesh::tracker
