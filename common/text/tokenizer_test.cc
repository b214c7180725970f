#include "common/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/text/golden_test.h"

namespace mesh {
namespace {

std::shared_ptr<const Tokenizer> load(const std::string& name, const json::Value& config) {
  auto loaded = Tokenizer::load(golden_text("tokenizers/" + name + ".json"), json::serialize(config));
  EXPECT_TRUE(loaded.ok()) << name << ": " << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

TEST(Tokenizer, EncodesAsTransformersDoes) {
  for (const json::Value& kind : tokenizer_cases()) {
    const std::string name = text_of(kind.at("name"));
    const auto tokenizer = load(name, kind.at("config"));
    ASSERT_TRUE(tokenizer);
    EXPECT_EQ(tokenizer->vocab_size(), kind.at("size").to_number<std::size_t>()) << name;
    for (const json::Value& item : kind.at("encode").as_array()) {
      const std::string text = text_of(item.at("text"));
      EXPECT_EQ(*tokenizer->encode(text, AddSpecial::kNo), ids_of(item.at("ids"))) << name << ": " << text;
      EXPECT_EQ(*tokenizer->encode(text, AddSpecial::kYes), ids_of(item.at("ids_special")))
          << name << ": " << text;
    }
  }
}

TEST(Tokenizer, DecodesAsTransformersDoes) {
  for (const json::Value& kind : tokenizer_cases()) {
    const auto tokenizer = load(text_of(kind.at("name")), kind.at("config"));
    ASSERT_TRUE(tokenizer);
    for (const json::Value& item : kind.at("decode").as_array()) {
      const auto ids = ids_of(item.at("ids"));
      EXPECT_EQ(*tokenizer->decode(ids, SkipSpecial::kNo), text_of(item.at("text")))
          << text_of(kind.at("name"));
      EXPECT_EQ(*tokenizer->decode(ids, SkipSpecial::kYes), text_of(item.at("text_skip")))
          << text_of(kind.at("name"));
    }
  }
}

TEST(Tokenizer, TokensHaveSpellingsBytesAndIds) {
  const json::Value config = json::Object();
  const auto level = load("byte_level", config);
  const TokenId space = *level->id_of("Ġ");
  EXPECT_EQ(*level->token(space), "Ġ");
  EXPECT_EQ(*level->token_bytes(space), " ");
  EXPECT_EQ(*level->token_bytes(*level->id_of("ĸ")), "\x96");
  EXPECT_EQ(*level->token_bytes(*level->id_of("<|im_end|>")), "<|im_end|>");
  const auto fallback = load("byte_fallback", config);
  EXPECT_EQ(*fallback->token_bytes(*fallback->id_of("<0xE4>")), "\xE4");
  EXPECT_EQ(*fallback->token_bytes(*fallback->id_of("▁the")), " the");
  EXPECT_TRUE(level->is_special(*level->id_of("<|im_end|>")));
  EXPECT_FALSE(level->is_special(space));
  EXPECT_EQ(level->id_of("no such token").status().code(), StatusCode::kNotFound);
  for (const TokenId id : {-1, 1'000'000}) {
    EXPECT_EQ(level->token(id).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(level->token_bytes(id).status().code(), StatusCode::kNotFound);
    EXPECT_FALSE(level->is_special(id));
    EXPECT_EQ(*level->decode(std::vector<TokenId>{id, space}, SkipSpecial::kNo), " ");
  }
}

TEST(Tokenizer, BrokenFilesAreRefused) {
  const std::string good = golden_text("tokenizers/byte_level.json");
  const auto refused = [](std::string_view text, std::string_view config = "") {
    return Tokenizer::load(text, config).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("{}"));
  EXPECT_TRUE(refused("[]"));
  EXPECT_TRUE(refused("\xff"));
  EXPECT_TRUE(refused(R"({"version": "1.0", "model": {"type": "Nope"}})"));
  EXPECT_TRUE(
      refused(R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})"));
  EXPECT_TRUE(refused(std::string(100'000, '[')));
  EXPECT_TRUE(refused(good, "{"));
  for (std::size_t size = 0; size < good.size(); size += good.size() / 50) {
    EXPECT_TRUE(refused(std::string_view(good).substr(0, size))) << size;
  }
}

TEST(Tokenizer, FlippedBytesNeverEndTheProcess) {
  const std::string good = golden_text("tokenizers/byte_fallback.json");
  for (std::size_t at = 0; at < good.size(); at += 211) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x11);
    const auto loaded = Tokenizer::load(bad);
    if (loaded.ok()) (void)(*loaded)->encode("a text <s> 日本", AddSpecial::kYes);
  }
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = load("byte_level", json::Object());
  EXPECT_EQ(tokenizer->encode("\xc3", AddSpecial::kNo).status().code(), StatusCode::kInvalidArgument);
}

TEST(Tokenizer, ServesManyThreads) {
  const auto tokenizer = load("byte_level", json::Object());
  const auto expected = *tokenizer->encode("The quick brown fox", AddSpecial::kNo);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        EXPECT_EQ(*tokenizer->encode("The quick brown fox", AddSpecial::kNo), expected);
    });
  }
}

}  // namespace
}  // namespace mesh
