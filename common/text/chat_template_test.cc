#include "common/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "common/text/golden_test.h"

namespace mesh {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNow = 1751605567;  // the maker's clock: 2025-07-04 05:06:07 UTC

StatusOr<std::string> render(std::string_view source, const json::Object& variables, const ChatLimits& limits = {}) {
  auto loaded = ChatTemplate::load(source, "");
  if (!loaded.ok()) return loaded.status();
  ChatInput input;
  input.variables = variables;
  if (const auto* given = variables.if_contains("messages")) input.messages = *given;
  input.now_unix_seconds = kNow;
  return (*loaded)->render(input, limits);
}

TEST(ChatTemplate, RendersEveryConstructAsTransformersDoes) {
  const json::Value variables = golden_json("templates/variables.json");
  const json::Value constructs = golden_json("templates/constructs.json");
  ASSERT_GT(constructs.as_array().size(), 250u);
  for (const json::Value& construct : constructs.as_array()) {
    const json::Object& entry = construct.as_object();
    const std::string source = text_of(entry.at("template"));
    const auto rendered = render(source, variables.as_object());
    if (entry.contains("error")) {
      EXPECT_FALSE(rendered.ok()) << source << "\n  transformers: " << text_of(entry.at("error")) << "\n  ours: " << *rendered;
    } else {
      ASSERT_TRUE(entry.contains("output"));
      EXPECT_EQ(rendered.ok() ? *rendered : std::string(rendered.status().message()), text_of(entry.at("output"))) << source;
    }
  }
}

}  // namespace
}  // namespace mesh
