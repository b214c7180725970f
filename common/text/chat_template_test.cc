#include "common/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "common/text/golden_test.h"

namespace mesh {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNow = 1751605567;  // the maker's clock: 2025-07-04 05:06:07 UTC

StatusOr<std::string> render(std::string_view source, const json::Object& variables,
                             const ChatLimits& limits = {}) {
  MESH_ASSIGN_OR_RETURN(const auto loaded, ChatTemplate::load(source, ""));
  ChatInput input;
  input.variables = variables;
  input.now_unix_seconds = kNow;
  return loaded->render(input, limits);
}

StatusCode code_of(std::string_view source, const ChatLimits& limits = {}) {
  return render(source, {}, limits).status().code();
}

/// Jinja2 that the parser or the values of the library cannot express; no known chat template uses any of it.
const std::set<std::string, std::less<>> kUnsupported = {
    "{{ -n }} {{ +n }} {{ --n }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{{ {1: 'a', none: 'b', true: 'c', 2.5: 'd'} | tojson }}",
    "{{ range(3) | tojson }}",
    "{{ 'a'.encode('utf-8') }}",
    "{{ 'abc' | attr('upper') is callable }} {{ d | attr('nope') }}|",
    "{{ raise_exception is callable }} {{ 'x' is callable }} {{ 'upper' is filter }} {{ 'nope' is filter }} "
    "{{ 'odd' is test }}",
    "{{ lipsum(n=1) is string }}",
    "{{ 'a b&c/d é' | urlencode }} {{ {'a': 1, 'b': 'x y'} | urlencode }}",
};

void expect_same(const json::Object& golden, const StatusOr<std::string>& ours, const std::string& what) {
  if (golden.contains("error")) {
    EXPECT_FALSE(ours.ok()) << what << "\n  transformers: " << text_of(golden.at("error"))
                            << "\n  ours: " << *ours;
  } else {
    EXPECT_EQ(ours.ok() ? *ours : ours.status().ToString(), text_of(golden.at("output"))) << what;
  }
}

TEST(ChatTemplate, RendersEveryConstructAsTransformersDoes) {
  const json::Value variables = golden_json("templates/variables.json");
  const json::Value constructs = golden_json("templates/constructs.json");
  ASSERT_GT(constructs.as_array().size(), 250u);
  for (const json::Value& construct : constructs.as_array()) {
    const std::string source = text_of(construct.at("template"));
    if (kUnsupported.contains(source)) continue;
    expect_same(construct.as_object(), render(source, variables.as_object()), source);
  }
}

TEST(ChatTemplate, RendersWholeChatsAsTransformersDoes) {
  const json::Value chats = golden_json("templates/chats.json");
  const json::Value renderings = golden_json("templates/renderings.json");
  ASSERT_GT(renderings.as_array().size(), 40u);
  for (const json::Value& rendering : renderings.as_array()) {
    const std::string name = text_of(rendering.at("template"));
    const std::int64_t chat = rendering.at("chat").as_int64();
    auto loaded = ChatTemplate::load(golden_text("templates/" + name),
                                     R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
    ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.status();
    ChatInput input;
    for (const auto& [key, value] : chats.at(static_cast<std::size_t>(chat)).as_object()) {
      if (key == "messages")
        input.messages = value;
      else if (key == "tools")
        input.tools = value;
      else if (key == "add_generation_prompt")
        input.add_generation_prompt = value.as_bool();
      else
        input.variables[key] = value;
    }
    input.now_unix_seconds = kNow;
    expect_same(rendering.as_object(), (*loaded)->render(input), name + ", chat " + std::to_string(chat));
  }
}

TEST(ChatTemplate, ErrorOfRaiseExceptionReachesTheCaller) {
  const auto rendered = render("{{ raise_exception('roles must alternate') }}", {});
  EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(rendered.status())),
              HasSubstr("refuses these messages: roles must alternate"));
}

TEST(ChatTemplate, SyntaxErrorNamesTheLine) {
  const auto loaded = ChatTemplate::load("a\nb\n{% for x %}", "");
  EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(loaded.status())), HasSubstr("line 3"));
}

TEST(ChatTemplate, RuntimeErrorNamesTheLineOfTheSource) {
  const auto rendered = render("a\n{% if true %}\n\n{{ 1 + 'x' }}\n{% endif %}", {});
  EXPECT_THAT(std::string(message_of(rendered.status())), HasSubstr("line 4"));
}

TEST(ChatTemplate, FileIsPreferredToConfigurationAndListsAreByName) {
  const std::string config =
      R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})";
  const auto text = [](const auto& loaded) {
    return loaded.ok() ? *(*loaded)->render({}) : loaded.status().ToString();
  };
  EXPECT_EQ(text(ChatTemplate::load("F", config)), "F");
  EXPECT_EQ(text(ChatTemplate::load("", config)), "D");
  EXPECT_EQ(text(ChatTemplate::load("", config, "tool_use")), "T");
  EXPECT_EQ(text(ChatTemplate::load("", R"({"chat_template": "S"})")), "S");
  EXPECT_EQ(ChatTemplate::load("", config, "rag").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ChatTemplate::load("", "{}").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ChatTemplate::load("", "").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ChatTemplate::load("", "{\"chat_template\": 3}").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ChatTemplate::load("", "{").status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, SeesTheModelsTokensByName) {
  const auto loaded =
      ChatTemplate::load("{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}", R"({
      "bos_token": {"content": "<b>", "lstrip": false}, "eos_token": "<e>", "pad_token": null,
      "extra_special_tokens": {"image_token": "<i>"}})");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*(*loaded)->render({}), "<b><e><i>");
  EXPECT_EQ(ChatTemplate::load("x", R"({"bos_token": 3})").status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, EndlessWorkEndsWithAStatus) {
  EXPECT_EQ(code_of("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of("{% for a in range(100000) %}0123456789{% endfor %}", {.output_bytes = 1000}),
            StatusCode::kResourceExhausted);
}

TEST(ChatTemplate, GrowthWithoutBoundEndsWithAStatus) {
  const char* const kGrow[] = {"{% set ns.x = ns.x ~ ns.x %}",
                               "{% set ns.x = ns.x + ns.x %}",
                               "{% set ns.x = ns.x * 2 %}",
                               "{% set ns.x = ns.x | replace('a', 'aa') %}",
                               "{% set ns.x = [ns.x, ns.x] | join %}",
                               "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
                               "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
                               "{% set ns.x = '{0}{0}'.format(ns.x) %}",
                               "{% set ns.x = ns.x.replace('', 'a') %}"};
  for (const char* grow : kGrow) {
    const std::string source =
        std::string("{% set ns = namespace(x='a') %}{% for i in range(100) %}") + grow + "{% endfor %}";
    EXPECT_EQ(code_of(source, {.output_bytes = 1 << 20}), StatusCode::kResourceExhausted) << grow;
  }
  EXPECT_EQ(code_of("{{ 'x' * 100000000000 }}"), StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of("{{ 'x'.ljust(100000000000) }}"), StatusCode::kResourceExhausted);
  EXPECT_EQ(
      code_of(
          "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
          {.output_bytes = 1 << 20}),
      StatusCode::kResourceExhausted);
}

TEST(ChatTemplate, DeepValuesAndExpressionsDoNotOverflowTheStack) {
  EXPECT_EQ(
      code_of("{% set ns = namespace(x=[]) %}{% for i in range(99000) %}{% set ns.x = [ns.x] %}{% endfor %}"),
      StatusCode::kOk);
  EXPECT_NE(code_of("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% "
                    "endfor %}{{ ns.x }}"),
            StatusCode::kOk);
  EXPECT_NE(code_of("{% set ns = namespace(x=[]) %}{% set ns.x = [ns] %}{{ ns.x | tojson }}"),
            StatusCode::kOk);
  const auto repeated = [](std::string_view part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
  };
  EXPECT_FALSE(render("{{ " + repeated("not ", 200000) + "x }}", {}).ok());
  EXPECT_FALSE(render("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}", {}).ok());
  EXPECT_FALSE(render("{{ 1" + repeated(" + 1", 100000) + " }}", {}).ok());
  EXPECT_FALSE(render("{{ x" + repeated(".x", 200000) + " }}", {}).ok());
  EXPECT_FALSE(render(repeated("{% if true %}", 20000) + repeated("{% endif %}", 20000), {}).ok());
  for (const char* link : {".x", " | trim", "[0]", " if x", " and x", " - 1", "()", " is odd"}) {
    (void)render("{{ x" + repeated(link, 4900) + " }}", {});  // any status will do: the process lives
  }
  EXPECT_TRUE(render("{{ 1" + repeated(" + 1", 1000) + " }}", {}).ok());
}

TEST(ChatTemplate, HugeOrBrokenSourceIsRefused) {
  EXPECT_EQ(ChatTemplate::load(std::string(2 << 20, 'a'), "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ChatTemplate::load("\xff\xfe", "").status().code(), StatusCode::kInvalidArgument);
  for (const char* source :
       {"{{", "{%", "{#", "{{ 'a", "{{ '\\u12' }}", "{% raw %}", "{{ }}", "{% generation %}"}) {
    (void)render(source, {});  // any status will do: the process lives
  }
}

TEST(ChatTemplate, OneTemplateServesManyThreads) {
  auto loaded = ChatTemplate::load("{% for m in messages %}{{ m.content }};{% endfor %}", "");
  ASSERT_TRUE(loaded.ok());
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ChatInput input;
      input.messages = {{{"role", "user"}, {"content", std::to_string(t)}}};
      for (int i = 0; i < 20; ++i) EXPECT_EQ(*(*loaded)->render(input), std::to_string(t) + ";");
    });
  }
}

}  // namespace
}  // namespace mesh
