#include "common/hub/open_model.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "common/hub/file_names.h"
#include "common/hub/test_folder.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;

class OpenModel : public TestFolder {
 protected:
  void expect_refused(std::string_view spec, StatusCode code, const std::string& because) {
    const auto files = open_model(spec, golden("hf_cache"));
    ASSERT_FALSE(files.ok()) << spec;
    EXPECT_EQ(files.status().code(), code) << files.status();
    EXPECT_THAT(std::string(message_of(files.status())), HasSubstr(because));
  }
  const std::string commit_main_ = std::string(40, 'a');
  const std::string commit_v1_ = std::string(40, 'b');
};

TEST(FileNames, NamesIdsAndRevisionsStayInTheirFolder) {
  EXPECT_TRUE(is_file_name("model-00001-of-00002.safetensors"));
  for (const char* const bad : {"", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a b", "a\nb"}) {
    EXPECT_FALSE(is_file_name(bad)) << bad;
  }
  EXPECT_FALSE(is_file_name(std::string(256, 'a')));
  EXPECT_FALSE(is_file_name(std::string_view("a\0b", 3)));
  EXPECT_TRUE(is_model_id("HuggingFaceTB/SmolLM2-135M_x.y"));
  EXPECT_FALSE(is_model_id("gpt2"));
  EXPECT_FALSE(is_model_id("a/b/c"));
  EXPECT_FALSE(is_model_id("../b"));
  EXPECT_FALSE(is_model_id("a/.."));
  EXPECT_FALSE(is_model_id(std::string(97, 'a') + "/b"));
  EXPECT_TRUE(is_model_id(std::string(96, 'a') + "/" + std::string(96, 'b')));
  EXPECT_TRUE(is_revision("refs/pr/1"));
  for (const char* const bad : {"", "/a", "a/", "a//b", "../x", "a/../b", "a b"})
    EXPECT_FALSE(is_revision(bad)) << bad;
}

TEST_F(OpenModel, ReadsACacheThatHuggingfaceHubWrote) {
  const auto files = open_model("tiny/model", golden("hf_cache"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->describe(), "tiny/model@" + commit_main_);
  EXPECT_THAT((*files)->files(),
              ElementsAre(Key("config.json"), Key("model.safetensors"), Key("tokenizer.json")));
  EXPECT_EQ(*(*files)->read_small(kConfig), R"({"model_type": "llama", "revision": "main"})");
}

TEST_F(OpenModel, FindsRevisionsByNameAndByCommit) {
  for (const std::string& spec : {std::string("tiny/model@v1"), "tiny/model@" + commit_v1_}) {
    const auto files = open_model(spec, golden("hf_cache"));
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ((*files)->describe(), "tiny/model@" + commit_v1_);
    EXPECT_EQ(*(*files)->read_small(kConfig), R"({"model_type": "llama", "revision": "v1"})");
  }
  expect_refused("tiny/model@v2", StatusCode::kNotFound, "--revision v2");
  expect_refused("tiny/model@" + std::string(40, 'c'), StatusCode::kNotFound, "no snapshot");
  expect_refused("tiny/model@../refs/main", StatusCode::kInvalidArgument, "revision");
  expect_refused("tiny/other", StatusCode::kNotFound, "hf download tiny/other");
  expect_refused("no-such-folder", StatusCode::kNotFound, "neither a folder");
  expect_refused("../../no-such-folder", StatusCode::kNotFound, "neither a folder");
}

TEST_F(OpenModel, LooksWhereHuggingfaceHubLooks) {
  const auto with = [](std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
      ::unsetenv(name);
    ::setenv("HOME", "/home/u", 1);
    for (const auto& [name, value] : variables) ::setenv(name, value, 1);
    return hf_cache_folder();
  };
  EXPECT_EQ(with({}), "/home/u/.cache/huggingface/hub");
  EXPECT_EQ(with({{"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(with({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/hf"}}), "/home/u/hf/hub");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "/cache"}}), "/cache");
}

TEST_F(OpenModel, OpensShardsAndNothingElseOfAFolder) {
  fs::copy(golden("sharded"), folder_ / "m");
  write("m/consolidated.safetensors", "not looked at");
  write("m/README.md", "not looked at");
  write("m/pytorch_model.bin", "not looked at");
  const auto files = open_model((folder_ / "m").string(), {});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT((*files)->files(),
              ElementsAre(Key("config.json"), Key("model-00001-of-00002.safetensors"),
                          Key("model-00002-of-00002.safetensors"), Key("model.safetensors.index.json")));
  EXPECT_TRUE((*files)->ensure({{"config.json", {{0, 1}}}}).ok());
  EXPECT_EQ((*files)->ensure({{"README.md", {{0, 1}}}}).code(), StatusCode::kNotFound);
  EXPECT_EQ((*files)->ensure({{"config.json", {{1, 1000}}}}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ((*files)->ensure({{"config.json", {{~std::uint64_t{0}, 2}}}}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ((*files)->path("../m/config.json").status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*files)->read_small("README.md").status().code(), StatusCode::kNotFound);

  fs::remove(folder_ / "m/model-00002-of-00002.safetensors");
  expect_refused((folder_ / "m").string(), StatusCode::kNotFound, "model-00002-of-00002.safetensors");
}

TEST_F(OpenModel, RefusesAnIndexThatLeavesTheFolder) {
  write("m/config.json", "{}");
  for (const char* const file : {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", ""}) {
    write("m/model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", file));
    expect_refused((folder_ / "m").string(), StatusCode::kInvalidArgument, "no .safetensors file name");
  }
  write("m/model.safetensors.index.json", R"({"weight_map":[]})");
  expect_refused((folder_ / "m").string(), StatusCode::kInvalidArgument, "weight_map");
}

TEST_F(OpenModel, RefusesLinksOutOfTheFolder) {
  write("secret", "{}");
  write("m/model.safetensors", "");
  fs::create_symlink(folder_ / "secret", folder_ / "m/config.json");
  expect_refused((folder_ / "m").string(), StatusCode::kInvalidArgument, "link out of the folder");
  fs::remove(folder_ / "m/config.json");
  fs::create_symlink(folder_ / "absent", folder_ / "m/config.json");
  expect_refused((folder_ / "m").string(), StatusCode::kNotFound, "config.json");
}

TEST_F(OpenModel, SaysWhyOtherFormatsDoNotWork) {
  const auto gguf = write("g/model.gguf", "GGUF");
  expect_refused((folder_ / "g").string(), StatusCode::kInvalidArgument, "GGUF keeps no per-layer");
  expect_refused(gguf.string(), StatusCode::kInvalidArgument, "GGUF keeps no per-layer");
  write("p/config.json", "{}");
  write("p/pytorch_model.bin", "");
  expect_refused((folder_ / "p").string(), StatusCode::kInvalidArgument, "pickle");
  write("e/config.json", "{}");
  expect_refused((folder_ / "e").string(), StatusCode::kNotFound, "model.safetensors");
  write("c/model.safetensors", "");
  expect_refused((folder_ / "c").string(), StatusCode::kNotFound, "config.json");
  expect_refused((folder_ / "c/model.safetensors").string(), StatusCode::kInvalidArgument, "give the folder");
}

TEST_F(OpenModel, SmallFilesHaveALimit) {
  write("m/model.safetensors", "");
  write("m/config.json", std::string((1 << 20) + 1, ' '));
  const auto files = open_model((folder_ / "m").string(), {});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->read_small(kConfig).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mesh::hub
