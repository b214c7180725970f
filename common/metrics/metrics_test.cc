#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace mesh::metrics {
namespace {

using ::testing::HasSubstr;

TEST(Registry, WritesTheExpositionFormat) {
  Registry registry;
  registry.counter("meshnet_tokens_total", "Tokens sampled.", {{"model", "a\"b"}}).add(3);
  registry.gauge("meshnet_sessions_open", "Open sessions.").set(2);
  Histogram steps = registry.histogram("meshnet_step_seconds", "Time of a step.", {0.1, 1});
  steps.observe(0.05);
  steps.observe(0.5);
  const std::string text = registry.text();
  EXPECT_THAT(
      text, HasSubstr("# HELP meshnet_tokens_total Tokens sampled.\n# TYPE meshnet_tokens_total counter\n"));
  EXPECT_THAT(text, HasSubstr("meshnet_tokens_total{model=\"a\\\"b\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("meshnet_sessions_open 2\n"));
  EXPECT_THAT(text, HasSubstr("meshnet_step_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("meshnet_step_seconds_bucket{le=\"+Inf\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("meshnet_step_seconds_count 2\n"));
}

TEST(Registry, OneNameAndLabelsIsOneMetric) {
  Registry registry;
  registry.counter("meshnet_frames_total", "Frames.", {{"result", "accepted"}}).add();
  registry.counter("meshnet_frames_total", "Frames.", {{"result", "accepted"}}).add();
  registry.counter("meshnet_frames_total", "Frames.", {{"result", "refused"}}).add();
  EXPECT_EQ(registry.counter("meshnet_frames_total", "Frames.", {{"result", "accepted"}}).value(), 2);
}

TEST(Registry, RegistriesAreApart) {
  Registry one, two;
  one.counter("meshnet_frames_total", "Frames.").add();
  EXPECT_EQ(two.counter("meshnet_frames_total", "Frames.").value(), 0);
}

TEST(RegistryDeathTest, ABadNameIsAProgrammersError) {
  EXPECT_DEATH({ Registry().counter("meshnet_frames", "Frames."); }, "check_name");
}

TEST(CheckName, HoldsTheRules) {
  EXPECT_TRUE(check_name(Kind::kCounter, "meshnet_wire_bytes_total", {{"direction", "sent"}}).ok());
  EXPECT_TRUE(check_name(Kind::kHistogram, "meshnet_request_seconds", {{"route", "/v1/models"}}).ok());
  EXPECT_TRUE(check_name(Kind::kGauge, "meshnet_memory_bytes", {}).ok());
  EXPECT_FALSE(check_name(Kind::kCounter, "meshnet_tokens", {}).ok());
  EXPECT_FALSE(check_name(Kind::kGauge, "meshnet_tokens_total", {}).ok());
  EXPECT_FALSE(check_name(Kind::kGauge, "tokens", {}).ok());
  EXPECT_FALSE(check_name(Kind::kGauge, "meshnet_Tokens", {}).ok());
  EXPECT_FALSE(check_name(Kind::kGauge, "meshnet_delay_ms", {}).ok());
  EXPECT_FALSE(check_name(Kind::kCounter, "meshnet_sent_kb_total", {}).ok());
  EXPECT_FALSE(check_name(Kind::kGauge, "meshnet_request_count", {}).ok());
  for (const char* label : {"key", "address", "prompt", "session", "le", "Route", ""}) {
    EXPECT_FALSE(check_name(Kind::kGauge, "meshnet_open", {{label, "x"}}).ok()) << label;
  }
}

}  // namespace
}  // namespace mesh::metrics
