#include "tracker/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mesh::tracker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TrackerSettings with_model() {
  TrackerSettings values;
  values.models = {"/a/model"};
  return values;
}

std::string why(TrackerSettings values) {
  return std::string(message_of(complete_tracker_settings(values)));
}

TEST(TrackerSettings, DefaultsAreForThisMachineAloneAndNeedNoKeys) {
  TrackerSettings values = with_model();
  ASSERT_TRUE(complete_tracker_settings(values).ok());
  EXPECT_EQ(values.mesh_advertise, "127.0.0.1:8070");
  EXPECT_FALSE(values.data_dir.empty());
}

TEST(TrackerSettings, ACountOfTokensIsShownAsANumber) {
  TrackerSettings values;
  config::Settings settings("tracker", "test", "version");
  declare_tracker_settings(settings, values);
  EXPECT_THAT(settings.load({{"--print-config"}, {}, {}}).output, HasSubstr("session-tokens = 8192"));
}

TEST(TrackerSettings, AModelIsNeeded) {
  EXPECT_THAT(why({}), HasSubstr("--model"));
}

TEST(TrackerSettings, ListeningBeyondThisMachineNeedsEachKeyAndNamesIt) {
  TrackerSettings values = with_model();
  values.listen = "0.0.0.0:8080";
  EXPECT_THAT(why(values), HasSubstr("--api-key"));
  values = with_model();
  values.mesh_listen = "10.1.2.3:8070";
  EXPECT_THAT(why(values), HasSubstr("--join-key-file"));
  values = with_model();
  values.admin_listen = "0.0.0.0:8081";
  EXPECT_THAT(why(values), HasSubstr("--admin-key"));
  values.admin_key = "k";
  EXPECT_EQ(why(values), "");
}

TEST(TrackerSettings, AnAddressOfNoSingleHostNeedsAnAdvertisedOne) {
  TrackerSettings values = with_model();
  values.mesh_listen = "0.0.0.0:8070";
  values.join_key_file = "f";
  EXPECT_THAT(why(values), HasSubstr("--mesh-advertise"));
  values.mesh_advertise = "tracker.example:8070";
  EXPECT_EQ(why(values), "");
}

TEST(TrackerSettings, HeartbeatsAreOftenEnoughForOpeningsToBeFresh) {
  TrackerSettings values = with_model();
  values.lease = std::chrono::seconds(60);
  values.heartbeat = std::chrono::seconds(10);
  EXPECT_EQ(why(values), "");
  values.heartbeat = std::chrono::seconds(11);
  EXPECT_THAT(why(values), HasSubstr("--heartbeat"));
}

TEST(TrackerSettings, NamesAreNoAddressesToListenOn) {
  TrackerSettings values = with_model();
  values.listen = "example.org:80";
  EXPECT_THAT(why(values), HasSubstr("numeric address"));
}

TEST(TrackerSettings, ApiKeysAreSeparatedByCommas) {
  TrackerSettings values;
  values.api_key = "one,, two ,";
  EXPECT_THAT(values.api_keys(), ElementsAre("one", "two"));
}

TEST(TrackerSettings, KeysOfNothingOrThatHeadersChangeAreRefused) {
  for (const char* none : {",", " ", ", ,"}) {
    TrackerSettings values = with_model();
    values.listen = "0.0.0.0:8080";
    values.api_key = none;
    EXPECT_THAT(why(values), HasSubstr("holds no key")) << none;
  }
  for (const char* bad : {"a b", "good,b%41d", "k\tey", "schlüssel"}) {
    TrackerSettings values = with_model();
    values.api_key = bad;
    EXPECT_THAT(why(values), HasSubstr("--api-key: a key has")) << bad;
    values.api_key.clear();
    values.admin_key = bad;
    EXPECT_THAT(why(values), HasSubstr("--admin-key: a key has")) << bad;
  }
}

TEST(TrackerSettings, HeadLayersAreAutoOrANumber) {
  for (const auto& [text, code] : {std::pair{"auto", -1}, {"7", -1}, {"x", 2}, {"-1", 2}}) {
    TrackerSettings values;
    config::Settings settings("tracker", "", "");
    declare_tracker_settings(settings, values);
    config::Sources sources;
    sources.arguments = {"--model", "/m", std::string("--head-layers=") + text};
    const auto outcome = settings.load(sources);
    EXPECT_EQ(outcome.exit_code.value_or(-1), code) << text << outcome.output;
    const bool seven = std::string_view(text) == "7";
    EXPECT_EQ(values.head_layers, seven ? std::optional<std::uint32_t>(7) : std::nullopt);
  }
}

}  // namespace
}  // namespace mesh::tracker
