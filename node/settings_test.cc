#include "node/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace mesh {
namespace {

using testing::HasSubstr;

const std::string kJoinKey = "mesh1." + std::string(64, 'a') + "." + std::string(64, 'b');

struct Loaded {
  NodeSettings values;
  config::Settings::Outcome outcome;
  Status complete;
};

Loaded load(std::vector<std::string> arguments) {
  Loaded loaded;
  config::Settings settings("node", "test", "version");
  declare_node_settings(settings, loaded.values);
  loaded.outcome = settings.load({std::move(arguments), {}, {}});
  if (!loaded.outcome.exit_code) loaded.complete = complete_node_settings(loaded.values);
  return loaded;
}

TEST(NodeSettings, AloneTakesThePrototypesFlags) {
  const Loaded loaded = load({"--model-id", "openai-community/gpt2", "--shard-start", "0", "--shard-end", "3",
                              "--quantization", "bfloat16"});
  ASSERT_FALSE(loaded.outcome.exit_code.has_value()) << loaded.outcome.output;
  EXPECT_TRUE(loaded.complete.ok()) << loaded.complete;
  EXPECT_EQ(loaded.values.shard_end, 3);
}

TEST(NodeSettings, WithoutTrackerAndModelItSaysBothWays) {
  const Loaded loaded = load({});
  EXPECT_THAT(loaded.complete.ToString(), HasSubstr("--tracker"));
  EXPECT_THAT(loaded.complete.ToString(), HasSubstr("--model-id"));
}

TEST(NodeSettings, AnEmptyOrHalfGivenRangeIsRefused) {
  EXPECT_FALSE(load({"--model-id", "m", "--shard-start", "3", "--shard-end", "3"}).complete.ok());
  EXPECT_FALSE(load({"--model-id", "m", "--shard-start", "3"}).complete.ok());
  EXPECT_FALSE(load({"--shard-start", "0", "--shard-end", "3"}).complete.ok());
}

TEST(NodeSettings, OffLoopbackAJoinKeyIsNeededAndTheMessageSaysHow) {
  const Loaded loaded = load({"--tracker", "http://10.0.0.1:8070", "--listen", "10.0.0.2:8090"});
  EXPECT_THAT(loaded.complete.ToString(), HasSubstr("--join-key"));
  EXPECT_TRUE(load({"--tracker", "http://10.0.0.1:8070", "--listen", "10.0.0.2:8090", "--join-key", kJoinKey})
                  .complete.ok());
}

TEST(NodeSettings, WhatATrackerElsewhereCannotReachIsRefusedWithTheFix) {
  EXPECT_THAT(load({"--tracker", "http://10.0.0.1:8070"}).complete.ToString(), HasSubstr("--advertise"));
  EXPECT_THAT(load({"--tracker", "http://10.0.0.1:8070", "--join-key", kJoinKey, "--listen", "0.0.0.0:8090",
                    "--advertise", "localhost:8090"})
                  .complete.ToString(),
              HasSubstr("cannot reach localhost"));
  for (const char* here : {"http://127.0.0.1:8070", "http://[::1]:8070", "http://this-machine:8070"})
    EXPECT_TRUE(load({"--tracker", here}).complete.ok()) << here;
}

TEST(NodeSettings, ABrokenJoinKeyIsAUsageErrorThatDoesNotRepeatIt) {
  const Loaded loaded = load({"--tracker", "http://127.0.0.1:8070", "--join-key", "mesh1.secret.words"});
  EXPECT_EQ(loaded.complete.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(loaded.complete.ToString(), HasSubstr("--join-key"));
  EXPECT_THAT(loaded.complete.ToString(), testing::Not(HasSubstr("secret.words")));
}

TEST(NodeSettings, AJoinKeyComesFromAFileToo) {
  const std::string file = testing::TempDir() + "meshnet-join-key-" + std::to_string(::getpid());
  const std::vector<std::string> base{"--tracker",     "http://10.0.0.1:8070", "--listen",
                                      "10.0.0.2:8090", "--join-key-file",      file};
  EXPECT_THAT(load(base).complete.ToString(), HasSubstr("cannot be read"));
  std::ofstream(file) << kJoinKey << "\n";
  const Loaded loaded = load(base);
  EXPECT_TRUE(loaded.complete.ok()) << loaded.complete;
  EXPECT_EQ(loaded.values.join_key, kJoinKey);
  auto both = base;
  both.insert(both.end(), {"--join-key", kJoinKey});
  EXPECT_THAT(load(both).complete.ToString(), HasSubstr("exclude each other"));
  std::ofstream(file) << "mesh1.secret.words" << std::string(10'000, 'x');
  EXPECT_THAT(load(base).complete.ToString(), HasSubstr(file));
  EXPECT_THAT(load(base).complete.ToString(), testing::Not(HasSubstr("secret.words")));
  std::filesystem::remove(file);
}

TEST(NodeSettings, AllAddressesNeedAnAdvertisedOne) {
  const std::vector<std::string> base{"--tracker",    "http://10.0.0.1:8070", "--listen",
                                      "0.0.0.0:8090", "--join-key",           kJoinKey};
  EXPECT_THAT(load(base).complete.ToString(), HasSubstr("--advertise"));
  auto with = base;
  with.insert(with.end(), {"--advertise", "node.example.org:8090"});
  EXPECT_TRUE(load(with).complete.ok());
}

TEST(NodeSettings, AnUnknownQuantizationIsRefused) {
  EXPECT_THAT(load({"--tracker", "http://127.0.0.1:8070", "--quantization", "q4_k"}).complete.ToString(),
              HasSubstr("q4_k"));
}

TEST(NodeSettings, TakesSeveralQuantizations) {
  EXPECT_TRUE(
      load({"--tracker", "http://127.0.0.1:8070", "--quantization", "fp8,nf4,int8,bfloat16"}).complete.ok());
}

TEST(NodeSettings, AnUnknownFlagIsAUsageError) {
  EXPECT_EQ(load({"--layers", "3"}).outcome.exit_code, 2);
}

}  // namespace
}  // namespace mesh
