#include "common/config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/config/toml.h"

namespace mesh::config {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SettingsTest : public ::testing::Test {
 protected:
  SettingsTest()
      : folder_(std::filesystem::temp_directory_path() / ("meshnet-config-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    settings_.text("listen", listen_, "Clients' address")
        .secret("join-key", join_key_, "Join key")
        .flag("keep", keep_, "Go on running")
        .integer("threads", threads_, 1, 1024, "Threads")
        .optional_size("memory", memory_, "Memory to use")
        .duration("heartbeat", heartbeat_, "Between heartbeats")
        .choice("device", device_, {"auto", "cpu", "cuda"}, "Where to compute")
        .list("model", models_, "Models to serve");
  }
  ~SettingsTest() override { std::filesystem::remove_all(folder_); }

  Settings::Outcome load(std::vector<std::string> arguments,
                         std::map<std::string, std::string> environment = {}) {
    Sources sources{std::move(arguments), std::move(environment), {}};
    sources.default_files = {file("missing.toml"), file("default.toml")};
    return settings_.load(sources);
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(file(name)) << text; }

  std::filesystem::path folder_;
  Settings settings_{"tracker", "Plans and answers.", "meshnet 1.2.3"};
  std::string listen_ = "127.0.0.1:8080";
  std::string join_key_;
  bool keep_ = false;
  std::int64_t threads_ = 4;
  std::optional<std::uint64_t> memory_;
  Duration heartbeat_ = 2s;
  std::string device_ = "auto";
  std::vector<std::string> models_;
};

TEST_F(SettingsTest, DefaultsStayWhenNothingIsSaid) {
  EXPECT_EQ(load({}).exit_code, std::nullopt);
  EXPECT_EQ(listen_, "127.0.0.1:8080");
  EXPECT_EQ(threads_, 4);
}

TEST_F(SettingsTest, FlagWinsOverEnvironmentOverFile) {
  write("default.toml", "threads = 5\nlisten = \"file:1\"\ndevice = \"cpu\"\n");
  const auto outcome = load({"--threads", "7"}, {{"MESHNET_THREADS", "6"}, {"MESHNET_LISTEN", "env:1"}});
  EXPECT_EQ(outcome.exit_code, std::nullopt) << outcome.output;
  EXPECT_EQ(threads_, 7);
  EXPECT_EQ(listen_, "env:1");
  EXPECT_EQ(device_, "cpu");
}

TEST_F(SettingsTest, ReadsEveryKind) {
  const auto outcome = load({"--keep", "--memory=8GiB", "--heartbeat", "250ms", "--device=cuda", "--model",
                             "a,b", "--model", "c", "--join-key", "mesh1.x"});
  EXPECT_EQ(outcome.exit_code, std::nullopt) << outcome.output;
  EXPECT_TRUE(keep_);
  EXPECT_EQ(memory_, 8589934592u);
  EXPECT_EQ(heartbeat_, 250ms);
  EXPECT_EQ(device_, "cuda");
  EXPECT_THAT(models_, ElementsAre("a", "b", "c"));
  EXPECT_EQ(join_key_, "mesh1.x");
}

TEST_F(SettingsTest, ReadsEveryKindFromTheFileAndTheEnvironment) {
  write("own.toml", "keep = true\nmemory = \"1GiB\"\nmodel = [\"a\", \"b\"]\njoin-key = \"k\"\n");
  const auto outcome =
      load({"--config", file("own.toml")}, {{"MESHNET_HEARTBEAT", "3s"}, {"MESHNET_JOIN_KEY", "e"}});
  EXPECT_EQ(outcome.exit_code, std::nullopt) << outcome.output;
  EXPECT_TRUE(keep_);
  EXPECT_EQ(memory_, 1073741824u);
  EXPECT_EQ(heartbeat_, 3s);
  EXPECT_THAT(models_, ElementsAre("a", "b"));
  EXPECT_EQ(join_key_, "e");
}

TEST_F(SettingsTest, UnknownKeysAndBadValuesNameTheirPlace) {
  write("default.toml", "threads = 5\ntreads = 6\n");
  auto outcome = load({});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.output, HasSubstr("default.toml:2: unknown key 'treads'"));
  write("default.toml", "\n\nmemory = \"lots\"\n");
  EXPECT_THAT(load({}).output, HasSubstr("default.toml:3): expected a size such as 8GiB"));
  write("default.toml", "");
  outcome = load({}, {{"MESHNET_DEVICE", "tpu"}});
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.output,
              HasSubstr("device (environment MESHNET_DEVICE): expected one of auto, cpu, cuda, got 'tpu'"));
  EXPECT_THAT(load({"--threads", "0"}).output,
              HasSubstr("threads (flag --threads): expected a number from 1 to 1024"));
  EXPECT_THAT(load({"--config", file("nowhere.toml")}).output, HasSubstr("cannot read"));
}

TEST_F(SettingsTest, BadFlagsAreUsageErrors) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"--nonsense"},
                                                                     {"--threads"},
                                                                     {"--threads", "1", "--threads", "2"},
                                                                     {"stray"},
                                                                     {"--model", "a", "stray"}}) {
    const auto outcome = load(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << arguments.front();
    EXPECT_THAT(outcome.output, HasSubstr("--help"));
  }
}

TEST_F(SettingsTest, HelpAndVersionEndWellAndBeforeAnyFileIsRead) {
  write("default.toml", "broken");
  EXPECT_EQ(load({"--version"}).output, "meshnet 1.2.3\n");
  const auto help = load({"--help"});
  EXPECT_EQ(help.exit_code, kExitDone);
  EXPECT_THAT(help.output, HasSubstr("--heartbeat"));
  EXPECT_THAT(help.output, HasSubstr("auto|cpu|cuda"));
}

TEST_F(SettingsTest, HelpHasGroupsAndAFooterAndShowsNoEmptyDefaults) {
  std::string path;
  settings_.group("For comparisons").text("path", path, "Code path").footer("More: the manual.");
  const std::string help = load({"--help"}).output;
  EXPECT_THAT(help, HasSubstr("For comparisons:\n  --path"));
  EXPECT_LT(help.find("--listen"), help.find("For comparisons:"));
  EXPECT_THAT(help, HasSubstr("Clients' address [\"127.0.0.1:8080\"]"));
  EXPECT_THAT(help, Not(HasSubstr("[\"\"]")));
  EXPECT_THAT(help, Not(HasSubstr("[[]]")));
  EXPECT_GT(help.find("More: the manual."), help.find("--path"));
  EXPECT_TRUE(help.ends_with("\n"));
}

TEST_F(SettingsTest, PrintConfigShowsOriginsHidesSecretsAndReadsBack) {
  write("default.toml", "threads = 5\n");
  const auto outcome =
      load({"--print-config", "--model", "a\"b", "--join-key", "mesh1.secret"}, {{"MESHNET_KEEP", "1"}});
  EXPECT_EQ(outcome.exit_code, kExitDone);
  EXPECT_THAT(outcome.output, HasSubstr("threads = 5  # " + file("default.toml") + ":1\n"));
  EXPECT_THAT(outcome.output, HasSubstr("keep = true  # environment MESHNET_KEEP\n"));
  EXPECT_THAT(outcome.output, HasSubstr("model = [\"a\\\"b\"]  # flag --model\n"));
  EXPECT_THAT(outcome.output, HasSubstr("memory = \"auto\"  # default\n"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("mesh1.secret")));
  EXPECT_THAT(outcome.output, HasSubstr("join-key is set"));
  const auto entries = parse_toml(outcome.output);
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(entries->size(), 7u);
}

}  // namespace
}  // namespace mesh::config
