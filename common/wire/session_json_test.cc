#include "common/wire/session_json.h"

#include <gtest/gtest.h>

#include "common/wire/vectors_for_test.h"

namespace mesh::wire {
namespace {

OpenRequest tail_opening() {
  OpenRequest r;
  r.session = kVectorSession;
  r.generation = {3};
  r.identity = kVectorIdentity;
  r.range = {6, 12};
  r.max_tokens = 512;
  r.head_url = "http://10.0.0.1:8070";
  r.tail = TailSetup{{0.7f, 0.9f, 40, 0xffff'ffff'ffff'ffff, 1}, {1, 2, 3}};
  r.emit_from = 17;
  return r;
}

/// The example of proto-docs/http.md.
const std::string kOpening =
    R"({"session":"000102030405060708090a0b0c0d0e0f","generation":3,)"
    R"("identity":"202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f",)"
    R"("range":{"begin":6,"end":12},"takes_ids":false,"max_tokens":512,"lease_ms":30000,)"
    R"("head_url":"http://10.0.0.1:8070","secret":"00ff",)"
    R"("tail":{"sampling":{"temperature":0,"top_p":1,"top_k":0,"seed":18446744073709551615,"choice":0},"ids":[1,2,3]},)"
    R"("emit_from":17})";

std::string edited(std::string_view from, std::string_view to) {
  std::string text = kOpening;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Opening, ReadsTheDocumentedExample) {
  const auto message = read_open(kOpening);
  ASSERT_TRUE(message.ok()) << message.status();
  OpenRequest expected = tail_opening();
  expected.tail->sampling = {0, 1, 0, 0xffff'ffff'ffff'ffff, 0};
  EXPECT_EQ(message->request, expected);
  EXPECT_EQ(message->sealed_secret, std::string("\0\xff", 2));
}

TEST(Opening, SurvivesTheWireForTailAndMiddleAndNeverShowsTheSecret) {
  OpenRequest middle = tail_opening();
  middle.tail.reset();
  middle.emit_from.reset();
  middle.next = HopAddress{counting_id<NodeId>(5), "http://10.0.0.7:8090", {12, 20}};
  for (OpenRequest request : {tail_opening(), middle}) {
    request.secret = kVectorSecret;
    const std::string text = write_open(request, "sealed");
    EXPECT_EQ(text.find(kVectorSecret.hex()), std::string::npos);
    const auto back = read_open(text);
    ASSERT_TRUE(back.ok()) << back.status();
    request.secret = {};
    EXPECT_EQ(back->request, request);
    EXPECT_EQ(back->sealed_secret, "sealed");
  }
}

TEST(Opening, ContradictionsAndWrongFieldsAreRefusedByName) {
  const struct {
    std::string text, message;
  } cases[] = {
      {edited("\"generation\":3", "\"generation\":0"), "generation"},
      {edited("\"max_tokens\":512", "\"max_tokens\":16"), "emit_from"},
      {edited("\"max_tokens\":512", "\"max_tokens\":4294967295"), "max_tokens"},
      {edited("\"begin\":6", "\"begin\":13"), "range"},
      {edited("\"end\":12", "\"end\":6"), "range"},
      {edited("\"temperature\":0", "\"temperature\":-1"), "temperature"},
      {edited("\"top_p\":1", "\"top_p\":0"), "top_p"},
      {edited("[1,2,3]", "[1,-2,3]"), "tail: ids"},
      {edited("\"secret\":\"00ff\"", "\"secret\":\"zz\""), "secret"},
      {edited("\"takes_ids\":false", "\"takes_ids\":\"no\""), "takes_ids"},
      {edited("\"emit_from\":17", "\"emit_form\":17"), "emit_form"},
      {edited("\"lease_ms\":30000,", ""), "lease_ms"},
      {edited("\"tail\":{\"sampling\"", "\"next\":{\"sampling\""), "next"},
      {kOpening + "x", "byte"},
  };
  for (const auto& c : cases) {
    const auto result = read_open(c.text);
    ASSERT_FALSE(result.ok()) << c.text;
    EXPECT_NE(message_of(result.status()).find(c.message), std::string_view::npos) << result.status();
  }
}

TEST(ControlMessages, SurviveTheWire) {
  const HopKey hop{kVectorSession, 6};
  const OpenReply opened{OpenCode::kOpened, {{3}, {7}, 21}, {16, 1024}, 5, ""};
  EXPECT_EQ(*read_open_reply(write_open_reply(opened)), opened);
  const OpenReply refused{OpenCode::kNoRoom, {}, {}, 0, "the cache is full: 12 of 12 blocks"};
  EXPECT_EQ(*read_open_reply(write_open_reply(refused)), refused);
  const CloseRequest close{kVectorSession, {4}};
  EXPECT_EQ(*read_close(write_close(close)), close);
  const CursorsRequest ask{{hop, {kVectorSession, 0}}};
  EXPECT_EQ(*read_cursors(write_cursors(ask)), ask);
  const CursorsReply cursors{{{hop, true, {{3}, {2}, 9}, 1, 8}, {{kVectorSession, 0}, false, {}, 0, 0}}};
  EXPECT_EQ(*read_cursors_reply(write_cursors_reply(cursors)), cursors);
  const RenewRequest renew{{kVectorSession}, 30'000};
  EXPECT_EQ(*read_renew(write_renew(renew)), renew);
  const RenewReply unknown{{kVectorSession}};
  EXPECT_EQ(*read_renew_reply(write_renew_reply(unknown)), unknown);
  for (int code = 0; code <= static_cast<int>(ReportCode::kDeadline); ++code) {
    const Report report{hop, {3}, static_cast<ReportCode>(code), 4, "why"};
    EXPECT_EQ(*read_report(write_report(report)), report);
  }
}

TEST(ControlMessages, RefuseTooManyEntriesAndUnknownCodes) {
  CursorsRequest many;
  many.hops.resize(kMaxSessionsPerMessage + 1);
  EXPECT_FALSE(read_cursors(write_cursors(many)).ok());
  std::string report = write_report({{kVectorSession, 0}, {1}, ReportCode::kDeadline, 0, ""});
  report.replace(report.find("deadline"), 8, "headline");
  EXPECT_FALSE(read_report(report).ok());
  EXPECT_FALSE(read_close("[]").ok());
  EXPECT_FALSE(read_close("").ok());
}

}  // namespace
}  // namespace mesh::wire
