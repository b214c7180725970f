#include "tracker/gateway/endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json/view.h"
#include "common/net/error_response.h"
#include "tracker/gateway/fake_backend_for_test.h"

namespace mesh::gateway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::string_view kAsk = R"({"model":"test-model","messages":[{"role":"user","content":"hi"}])";

class EndpointsTest : public testing::Test {
 protected:
  EndpointsTest() : routes(openai_routes(backend, options())) {}

  EndpointOptions options() {
    EndpointOptions options;
    options.respond.ping = std::chrono::milliseconds(20);
    options.respond.patience = std::chrono::milliseconds(20);
    options.respond.observer = [this](const AnswerFigures&) { ++answers; };
    return options;
  }

  net::Response call(const std::string& method, const std::string& pattern, std::string body,
                     std::map<std::string, std::string> params = {}) {
    request.method = method;
    request.path = pattern;
    request.body = std::move(body);
    request.params = std::move(params);
    request.client = watch;
    for (const net::Route& route : routes) {
      if (route.method == method && route.pattern == pattern) return route.handler(request);
    }
    ADD_FAILURE() << "no route " << method << " " << pattern;
    return {};
  }
  net::Response chat(const std::string& rest) {
    return call("POST", "/v1/chat/completions", std::string(kAsk) + rest + "}");
  }
  net::Response completion(const std::string& rest) {
    return call("POST", "/v1/completions", R"({"model":"test-model",)" + rest + "}");
  }
  std::string streamed(const net::Response& response) {
    FakeWriter writer(watch);
    if (response.stream) response.stream(writer);
    return writer.text;
  }
  static json::Value parsed(const std::string& text) { return json::parse(text).value_or(json::Value()); }
  static std::vector<json::Value> events(const std::string& text) {
    std::vector<json::Value> out;
    for (std::size_t at = 0; (at = text.find("data: {", at)) != std::string::npos;) {
      const std::size_t end = text.find("\n\n", at);
      out.push_back(parsed(text.substr(at + 6, end - at - 6)));
      at = end;
    }
    return out;
  }
  static std::string at(const json::Value& value, const char* pointer) {
    boost::json::error_code code;
    const auto* found = value.find_pointer(pointer, code);
    return found == nullptr ? "(absent)" : json::serialize(*found);
  }
  void expect_error(const net::Response& response, int status, const std::string& param,
                    const std::string& code) {
    const json::Value body = parsed(response.body);
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_EQ(at(body, "/error/param"), param) << response.body;
    EXPECT_EQ(at(body, "/error/code"), code) << response.body;
    EXPECT_NE(at(body, "/error/type"), "(absent)");
    EXPECT_NE(at(body, "/error/message"), "(absent)");
  }
  void script(std::string_view text, End end) {
    backend.script = backend.spell(text);
    backend.script.emplace_back(end);
  }

  FakeBackend backend;
  std::vector<net::Route> routes;
  net::Request request;
  std::shared_ptr<FakeWatch> watch = std::make_shared<FakeWatch>();
  int answers = 0;  ///< that the observer heard of
};

TEST_F(EndpointsTest, ModelsAreListedAndFoundByName) {
  EXPECT_EQ(at(parsed(call("GET", "/v1/models", "").body), "/data/0/id"), "\"test-model\"");
  const auto one = call("GET", "/v1/models/{model...}", "", {{"model", "test-model"}});
  EXPECT_EQ(at(parsed(one.body), "/object"), "\"model\"");
  expect_error(call("GET", "/v1/models/{model...}", "", {{"model", "other"}}), 404, "\"model\"",
               "\"model_not_found\"");
}

TEST_F(EndpointsTest, ChatAnswersWithMessageReasonAndUsage) {
  script("the time was", End{});
  const auto response = chat("");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::Value body = parsed(response.body);
  EXPECT_EQ(at(body, "/object"), "\"chat.completion\"");
  EXPECT_EQ(at(body, "/choices/0/message/role"), "\"assistant\"");
  EXPECT_EQ(at(body, "/choices/0/message/content"), "\"the time was\"");
  EXPECT_EQ(at(body, "/choices/0/message/refusal"), "null");
  EXPECT_EQ(at(body, "/choices/0/finish_reason"), "\"stop\"");
  EXPECT_EQ(at(body, "/usage/prompt_tokens"), std::to_string(backend.asked.at(0).prompt.size()));
  EXPECT_EQ(at(body, "/usage/completion_tokens"), std::to_string(backend.script.size() - 1));
  EXPECT_TRUE(backend.answer->closed());
}

TEST_F(EndpointsTest, EndTokensAreCountedAndNotShown) {
  backend.script = backend.spell("the");
  const std::size_t tokens = backend.script.size();
  backend.script.emplace_back(Token{0, true});
  backend.script.emplace_back(End{});
  const json::Value body = parsed(chat("").body);
  EXPECT_EQ(at(body, "/choices/0/message/content"), "\"the\"");
  EXPECT_EQ(at(body, "/usage/completion_tokens"), std::to_string(tokens + 1));
}

TEST_F(EndpointsTest, StreamHasRoleFirstOneIdReasonOnceAndDoneLast) {
  script("the time was", End{absl::OkStatus(), EndReason::kLength});
  const std::string text = streamed(chat(R"(,"stream":true)"));
  const auto chunks = events(text);
  ASSERT_GE(chunks.size(), 3u) << text;
  EXPECT_EQ(at(chunks[0], "/choices/0/delta/role"), "\"assistant\"");
  std::string content;
  int reasons = 0;
  for (const auto& chunk : chunks) {
    EXPECT_EQ(at(chunk, "/id"), at(chunks[0], "/id"));
    EXPECT_EQ(at(chunk, "/usage"), "(absent)");
    const auto piece = at(chunk, "/choices/0/delta/content");
    if (piece.front() == '"') content += piece.substr(1, piece.size() - 2);
    reasons += at(chunk, "/choices/0/finish_reason") != "null";
  }
  EXPECT_EQ(content, "the time was");
  EXPECT_EQ(reasons, 1);
  EXPECT_EQ(at(chunks.back(), "/choices/0/finish_reason"), "\"length\"");
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
}

TEST_F(EndpointsTest, UsageComesLastWithoutChoicesWhenAsked) {
  script("the", End{});
  const auto chunks = events(streamed(chat(R"(,"stream":true,"stream_options":{"include_usage":true})")));
  EXPECT_EQ(at(chunks.back(), "/choices"), "[]");
  EXPECT_NE(at(chunks.back(), "/usage/total_tokens"), "(absent)");
  EXPECT_EQ(at(chunks.front(), "/usage"), "null");
}

TEST_F(EndpointsTest, StopStringIsNeverShownAcrossTokensAndClosesTheSession) {
  backend.script = backend.spell("the time was long ago and then");
  const json::Value body = parsed(chat(R"(,"stop":["as lo"])").body);
  EXPECT_EQ(at(body, "/choices/0/message/content"), "\"the time w\"");
  EXPECT_EQ(at(body, "/choices/0/finish_reason"), "\"stop\"");
  EXPECT_TRUE(backend.answer->closed());
}

TEST_F(EndpointsTest, StopStringThatOnlyTheEndCompletesIsTheReason) {
  // The first bytes of a character are text, U+FFFD, when nothing follows them.
  for (const char* streaming : {"", R"(,"stream":true)"}) {
    backend.script = backend.spell("the \xf0\x9f\x99\x82");
    backend.script.pop_back();
    backend.script.emplace_back(End{absl::OkStatus(), EndReason::kLength});
    const auto response = chat(std::string(R"(,"stop":["\ufffd"])") + streaming);
    const json::Value body = *streaming == 0 ? parsed(response.body) : events(streamed(response)).back();
    EXPECT_EQ(at(body, "/choices/0/finish_reason"), "\"stop\"");
  }
}

TEST_F(EndpointsTest, FailureBeforeTheStreamIsAnHttpError) {
  backend.script = {End{error(StatusCode::kUnavailable, "no route"), EndReason::kStop}};
  const auto response = chat(R"(,"stream":true)");
  expect_error(response, 503, "null", "\"service_unavailable\"");
  EXPECT_EQ(response.headers.get("Retry-After"), "1");
}

TEST_F(EndpointsTest, FailureInMidStreamIsAnEventWithoutDone) {
  script("the time", End{error(StatusCode::kUnavailable, "a layer is lost"), EndReason::kStop});
  const std::string text = streamed(chat(R"(,"stream":true)"));
  EXPECT_THAT(text, HasSubstr("data: {\"error\":{"));
  EXPECT_THAT(text, HasSubstr("a layer is lost"));
  EXPECT_THAT(text, Not(HasSubstr("[DONE]")));
}

TEST_F(EndpointsTest, SilentStreamIsKeptAliveByComments) {
  backend.script = {};
  const auto response = chat(R"(,"stream":true)");
  FakeWriter writer(watch);
  writer.after_write = [&](const std::string& text) {
    if (text.find(": ping\n\n: ping\n\n") != std::string::npos) watch->leave();
  };
  response.stream(writer);
  EXPECT_THAT(writer.text, HasSubstr(": ping\n\n"));
  EXPECT_TRUE(backend.answer->closed());
}

TEST_F(EndpointsTest, ClientThatLeavesBeforeAnyTokenEndsTheSession) {
  backend.script = {};
  watch->leave_when_watched = true;
  const auto response = chat("");
  EXPECT_EQ(response.status, 499);
  EXPECT_TRUE(backend.answer->closed());
}

TEST_F(EndpointsTest, FullAndUncoveredAreToldApart) {
  backend.refusal = error(StatusCode::kResourceExhausted, "full");
  expect_error(chat(""), 429, "null", "\"rate_limit_exceeded\"");
  backend.refusal = error(StatusCode::kUnavailable, "layers [3, 5) have no ready copy");
  expect_error(chat(""), 503, "null", "\"service_unavailable\"");
}

TEST_F(EndpointsTest, WhatNeverBeganIsAnHttpErrorWithTheTimeToTryAgainAndNoAnswer) {
  const Status full =
      net::with_retry_after(error(StatusCode::kResourceExhausted, "full"), std::chrono::seconds(7));
  for (const char* stream : {"", R"(,"stream":true)"}) {
    script("", End{full});
    const auto response = chat(stream);
    expect_error(response, 429, "null", "\"rate_limit_exceeded\"");
    EXPECT_EQ(response.headers.get("Retry-After"), "7");
  }
  EXPECT_EQ(answers, 0);
}

TEST_F(EndpointsTest, SamplingFieldsReachTheBackend) {
  script("the", End{});
  ASSERT_EQ(chat(R"(,"temperature":0.5,"top_p":0.9,"top_k":7,"seed":-3,"max_completion_tokens":5)").status,
            200);
  const Ask& ask = backend.asked.at(0);
  EXPECT_FLOAT_EQ(ask.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(ask.sampling.top_p, 0.9f);
  EXPECT_EQ(ask.sampling.top_k, 7u);
  EXPECT_EQ(ask.sampling.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(ask.max_tokens, 5u);
  EXPECT_THAT(ask.eos_ids, ElementsAre(0));
}

TEST_F(EndpointsTest, DefaultsAreTheModelsOwn) {
  backend.model().defaults.temperature = 0.6;
  backend.model().defaults.top_k = 20;
  script("the", End{});
  ASSERT_EQ(chat("").status, 200);
  EXPECT_FLOAT_EQ(backend.asked.at(0).sampling.temperature, 0.6f);
  EXPECT_EQ(backend.asked.at(0).sampling.top_k, 20u);
  EXPECT_EQ(backend.asked.at(0).max_tokens, 64 - backend.asked.at(0).prompt.size());
}

TEST_F(EndpointsTest, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(,"temperature":9)", "\"temperature\""},
      {R"(,"top_p":0)", "\"top_p\""},
      {R"(,"stop":["a","b","c","d","e"])", "\"stop\""},
      {R"(,"stop":[""])", "\"stop\""},
      {R"(,"stop":7)", "\"stop\""},
      {R"(,"seed":"x")", "\"seed\""},
      {R"(,"max_tokens":0)", "\"max_tokens\""},
      {R"(,"max_tokens":-1)", "\"max_tokens\""},
      {R"(,"n":2)", "\"n\""},
      {R"(,"logit_bias":{"5":1})", "\"logit_bias\""},
      {R"(,"logprobs":true)", "\"logprobs\""},
      {R"(,"tools":[{}])", "\"tools\""},
      {R"(,"response_format":{"type":"json_object"})", "\"response_format\""},
      {R"(,"frequency_penalty":0.5)", "\"frequency_penalty\""},
      {R"(,"no_such_field":1)", "\"no_such_field\""},
      {R"(,"stream_options":{"include_usage":true})", "\"stream_options\""},
  };
  for (const auto& [rest, param] : cases) {
    const auto response = chat(rest);
    EXPECT_EQ(response.status, 400) << rest;
    EXPECT_EQ(at(parsed(response.body), "/error/param"), param) << rest;
  }
  EXPECT_TRUE(backend.asked.empty());
}

TEST_F(EndpointsTest, FieldsThatAskForNothingPass) {
  script("the", End{});
  EXPECT_EQ(
      chat(R"(,"n":1,"logit_bias":{},"logprobs":false,"tools":[],"tool_choice":"none","presence_penalty":0,)"
           R"("response_format":{"type":"text"},"user":"u","store":false,"stop":null)")
          .status,
      200);
}

TEST_F(EndpointsTest, WrongMessagesAreNamedByPath) {
  const auto ask = [&](const std::string& messages) {
    return call("POST", "/v1/chat/completions", R"({"model":"test-model","messages":)" + messages + "}");
  };
  expect_error(ask("[]"), 400, "\"messages\"", "null");
  expect_error(ask("7"), 400, "\"messages\"", "null");
  expect_error(ask(R"([{"role":"king","content":"x"}])"), 400, "\"messages[0].role\"", "null");
  expect_error(ask(R"([{"role":"user","content":7}])"), 400, "\"messages[0].content\"", "null");
  expect_error(ask(R"([{"role":"user","content":[{"type":"image_url"}]}])"), 400,
               "\"messages[0].content[0].type\"", "null");
  expect_error(ask(R"([{"role":"user","content":"refuse"}])"), 400, "\"messages\"", "null");
}

TEST_F(EndpointsTest, PartsAndDeveloperMessagesReachTheTemplate) {
  script("the", End{});
  const auto parts =
      call("POST", "/v1/chat/completions",
           R"({"model":"test-model","messages":[{"role":"developer","content":"a"},)"
           R"({"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]})");
  ASSERT_EQ(parts.status, 200) << parts.body;
  const auto expected = backend.model().tokenizer->encode("system: a\nuser: bc\n", AddSpecial::kNo);
  EXPECT_EQ(backend.asked.at(0).prompt, *expected);
}

TEST_F(EndpointsTest, PromptBeyondTheContextIsRefused) {
  std::string words;
  for (int i = 0; i < 100; ++i) words += "time ";
  const auto response =
      call("POST", "/v1/chat/completions",
           R"({"model":"test-model","messages":[{"role":"user","content":")" + words + "\"}]}");
  expect_error(response, 400, "\"messages\"", "\"context_length_exceeded\"");
  expect_error(chat(R"(,"max_tokens":64)"), 400, "\"messages\"", "\"context_length_exceeded\"");
}

TEST_F(EndpointsTest, BrokenJsonIsA400) {
  expect_error(call("POST", "/v1/chat/completions", "{"), 400, "null", "null");
  expect_error(call("POST", "/v1/chat/completions", std::string(100'000, '[')), 400, "null", "null");
}

TEST_F(EndpointsTest, UnknownModelIsA404) {
  expect_error(call("POST", "/v1/completions", R"({"model":"x","prompt":"a"})"), 404, "\"model\"",
               "\"model_not_found\"");
}

TEST_F(EndpointsTest, ModelWithoutTemplateOnlyCompletes) {
  backend.model().chat_template = nullptr;
  expect_error(chat(""), 400, "\"model\"", "null");
  script("the", End{});
  EXPECT_EQ(completion(R"("prompt":"a")").status, 200);
}

TEST_F(EndpointsTest, CompletionsTakeTextIdsAndAListOfOne) {
  script("the", End{});
  for (const char* prompt : {R"("prompt":[5,6,7])", R"("prompt":[[5,6,7]])"}) {
    ASSERT_EQ(completion(prompt).status, 200) << prompt;
    EXPECT_THAT(backend.asked.back().prompt, ElementsAre(5, 6, 7));
  }
  ASSERT_EQ(completion(R"("prompt":"the time")").status, 200);
  const auto text = backend.asked.back().prompt;
  ASSERT_EQ(completion(R"("prompt":["the time"])").status, 200);
  EXPECT_EQ(backend.asked.back().prompt, text);
  EXPECT_EQ(backend.asked.back().max_tokens, 16u);
}

TEST_F(EndpointsTest, WrongPromptsAreRefused) {
  for (const char* prompt : {R"("prompt":[])", R"("prompt":"")", R"("prompt":7)", R"("prompt":[99999])",
                             R"("prompt":[-1])", R"("prompt":["a","b"])", R"("prompt":[[1],[2]])"}) {
    const auto response = completion(prompt);
    EXPECT_EQ(response.status, 400) << prompt;
    EXPECT_THAT(at(parsed(response.body), "/error/param"), HasSubstr("prompt")) << prompt;
  }
}

TEST_F(EndpointsTest, CompletionStreamHasTextsAndOneReason) {
  script("the time", End{});
  const auto chunks = events(streamed(completion(R"("prompt":"a","stream":true)")));
  EXPECT_EQ(at(chunks[0], "/object"), "\"text_completion\"");
  EXPECT_EQ(at(chunks.back(), "/choices/0/finish_reason"), "\"stop\"");
  EXPECT_EQ(at(chunks.back(), "/choices/0/text"), "\"\"");
}

}  // namespace
}  // namespace mesh::gateway
