#include "common/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <chrono>

#include "common/text/golden_test.h"

namespace mesh {
namespace {

bool is_utf8(std::string_view text) {
  return json::parse(json::serialize(json::Value(text))).ok();
}

std::shared_ptr<const Tokenizer> load(const json::Value& kind) {
  auto loaded = Tokenizer::load(golden_text("tokenizers/" + text_of(kind.at("name")) + ".json"),
                                json::serialize(kind.at("config")));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : nullptr;
}

/// The stream's text, each piece checked for whole characters.
std::string stream(StreamDecoder& decoder, const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) {
    const auto piece = decoder.push(id);
    EXPECT_TRUE(piece.ok()) << piece.status();
    EXPECT_TRUE(is_utf8(*piece)) << *piece;
    text += *piece;
  }
  return text + *decoder.finish();
}

/// A run of byte tokens that is not UTF-8: there the stream keeps characters that decode takes back.
bool has_broken_bytes(std::string_view text) {
  return text.find("\uFFFD") != std::string_view::npos;
}

TEST(StreamDecoder, PiecesJoinedAreTheDecodeOfTheWhole) {
  int compared = 0;
  for (const json::Value& kind : tokenizer_cases()) {
    const std::string name = text_of(kind.at("name"));
    const auto tokenizer = load(kind);
    ASSERT_TRUE(tokenizer);
    const bool fallback = name.starts_with("byte_fallback");
    for (const SkipSpecial skip : {SkipSpecial::kNo, SkipSpecial::kYes}) {
      StreamDecoder decoder(tokenizer, skip);
      for (const json::Value& item : kind.at("decode").as_array()) {
        const auto ids = ids_of(item.at("ids"));
        const std::string whole = text_of(item.at(skip == SkipSpecial::kNo ? "text" : "text_skip"));
        const std::string streamed = stream(decoder, ids);
        if (fallback && has_broken_bytes(whole)) continue;
        EXPECT_EQ(streamed, whole) << name;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 300);
}

TEST(StreamDecoder, GivesTheTextsOfTrainedModels) {
  for (const std::string name : {"gpt2", "qwen3"}) {
    const auto tokenizer = *Tokenizer::load(golden_text("checkpoints/" + name + "/tokenizer.json"));
    const json::Value answers = golden_json("checkpoints/" + name + "/reference.json");
    for (const json::Value& answer : answers.as_array()) {
      EXPECT_EQ(*tokenizer->encode(text_of(answer.at("prompt")), AddSpecial::kYes),
                ids_of(answer.at("prompt_ids")));
      StreamDecoder decoder(tokenizer, SkipSpecial::kYes);
      EXPECT_EQ(stream(decoder, ids_of(answer.at("completion_ids"))), text_of(answer.at("text")));
    }
  }
}

TEST(StreamDecoder, HoldsBackUnfinishedCharactersOnly) {
  for (const json::Value& kind : tokenizer_cases()) {
    const std::string name = text_of(kind.at("name"));
    if (name != "byte_level" && name != "byte_fallback") continue;
    const auto tokenizer = load(kind);
    const auto ids = *tokenizer->encode("😀", AddSpecial::kNo);
    StreamDecoder decoder(tokenizer, SkipSpecial::kYes);
    std::string text;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) text += *decoder.push(ids[i]);
    EXPECT_EQ(text.find("😀"), std::string::npos) << name;
    EXPECT_EQ(*decoder.push(ids.back()), "😀") << name;
    EXPECT_EQ(*decoder.finish(), "") << name;
  }
}

TEST(StreamDecoder, UnfinishedCharacterBecomesReplacementAtTheEnd) {
  for (const json::Value& kind : tokenizer_cases()) {
    const std::string name = text_of(kind.at("name"));
    if (name != "byte_level" && name != "byte_fallback") continue;
    const auto tokenizer = load(kind);
    const TokenId lead = *tokenizer->id_of(name == "byte_level" ? "ð" : "<0xF0>");
    StreamDecoder decoder(tokenizer, SkipSpecial::kYes);
    EXPECT_EQ(*decoder.push(lead), "");
    EXPECT_EQ(*decoder.finish(), "\uFFFD");
    const std::vector<TokenId> letters = *tokenizer->encode("the", AddSpecial::kNo);
    EXPECT_EQ(*decoder.push(lead), "");
    EXPECT_TRUE(decoder.push(letters[0])->starts_with("\uFFFD"));
  }
}

TEST(StreamDecoder, IdsWithoutATokenGiveNothing) {
  StreamDecoder decoder(load(tokenizer_cases().at(0)), SkipSpecial::kNo);
  EXPECT_EQ(*decoder.push(999'999), "");
  EXPECT_EQ(*decoder.push(-1), "");
  EXPECT_EQ(*decoder.finish(), "");
}

TEST(StreamDecoder, CostPerTokenDoesNotGrow) {
  const auto tokenizer = load(tokenizer_cases().at(0));
  // Continuation bytes alone: all invalid, never a whole character.
  const TokenId id = *tokenizer->id_of("ĸ");
  StreamDecoder decoder(tokenizer, SkipSpecial::kNo);
  const auto pushes = [&](int count) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) (void)decoder.push(id);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
  };
  const double early = pushes(2000);
  pushes(100'000);
  EXPECT_LT(pushes(2000), 20 * early);
}

TEST(StreamDecoder, OutlivesTheCallersTokenizer) {
  auto tokenizer = load(tokenizer_cases().at(0));
  const auto ids = *tokenizer->encode("the fox", AddSpecial::kNo);
  StreamDecoder decoder(tokenizer, SkipSpecial::kNo);
  tokenizer.reset();
  StreamDecoder moved = std::move(decoder);
  EXPECT_EQ(stream(moved, ids), "the fox");
}

}  // namespace
}  // namespace mesh
