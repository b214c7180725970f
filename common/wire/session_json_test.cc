#include "common/wire/session_json.h"

#include <gtest/gtest.h>

#include "common/json/json.h"
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
  r.tail = TailSetup{{0.75f, 0.5f, 40, 0xffff'ffff'ffff'ffff, 1}, {1, 2, 3}};
  r.emit_from = 17;
  return r;
}

const Freshness kFresh{[] {
                         NodeId node;
                         node.bytes.fill(6);
                         return node;
                       }(),
                       {4, 117}};

/// The vector without its line breaks, so that tests may edit it.
const std::string kOpening = json::serialize(*json::parse(read_vector("open_tail.json")));

std::string edited(std::string_view from, std::string_view to) {
  std::string text = kOpening;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Opening, ReadsTheGoldenMessages) {
  const auto tail = read_open(read_vector("open_tail.json"));
  ASSERT_TRUE(tail.ok()) << tail.status();
  EXPECT_EQ(tail->request, tail_opening());
  EXPECT_EQ(tail->sealed_secret, std::string("\0\xff", 2));
  EXPECT_EQ(tail->fresh, kFresh);
  const auto first = read_open(read_vector("open_first.json"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->request.takes_ids);
  EXPECT_FALSE(first->request.emit_from);
  NodeId node;
  node.bytes.fill(5);
  EXPECT_EQ(first->request.next, (HopAddress{node, "http://10.0.0.7:8090", {6, 12}}));
}

TEST(Opening, OffersTheKeysOfThePromptsBlocks) {
  const auto offer = read_open(read_vector("open_offer.json"));
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->request.prefix.size(), 3u);
  EXPECT_EQ(read_open(write_open(offer->request, "", kFresh))->request, offer->request);
  const std::string text = json::serialize(*json::parse(read_vector("open_offer.json")));
  const auto refused = [&](std::string_view from, std::string_view to) {
    std::string wrong = text;
    wrong.replace(wrong.find(from), from.size(), to);
    const auto result = read_open(wrong);
    EXPECT_FALSE(result.ok()) << to;
    return std::string(message_of(result.status()));
  };
  EXPECT_NE(refused("\"max_tokens\":512", "\"max_tokens\":383").find("prefix"), std::string::npos);
  EXPECT_NE(refused("\"prefix\":", "\"emit_from\":0,\"prefix\":").find("prefix"), std::string::npos);
  EXPECT_NE(refused("\"prefix\":[\"", "\"prefix\":[\"00").find("prefix"), std::string::npos);
  EXPECT_NE(refused("\"prefix\":[", "\"prefix\":[7,").find("prefix"), std::string::npos);
}

TEST(Opening, SurvivesTheWireForTailAndMiddleAndNeverShowsTheSecret) {
  OpenRequest middle = tail_opening();
  middle.tail.reset();
  middle.emit_from.reset();
  middle.next = HopAddress{counting_id<NodeId>(5), "http://10.0.0.7:8090", {12, 20}};
  for (OpenRequest request : {tail_opening(), middle}) {
    request.secret = kVectorSecret;
    const std::string text = write_open(request, "sealed", kFresh);
    EXPECT_EQ(text.find(kVectorSecret.hex()), std::string::npos);
    const auto back = read_open(text);
    ASSERT_TRUE(back.ok()) << back.status();
    request.secret = {};
    EXPECT_EQ(back->request, request);
    EXPECT_EQ(back->sealed_secret, "sealed");
    EXPECT_EQ(back->fresh, kFresh);
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
      {edited("\"temperature\":", "\"temperature\":-"), "temperature"},
      {edited("\"top_p\":", "\"top_p\":-"), "top_p"},
      {edited("[1,2,3]", "[1,-2,3]"), "tail: ids"},
      {edited("\"secret\":\"00ff\"", "\"secret\":\"zz\""), "secret"},
      {edited("\"takes_ids\":false", "\"takes_ids\":\"no\""), "takes_ids"},
      {edited("\"emit_from\":17", "\"emit_form\":17"), "emit_form"},
      {edited("\"lease_ms\":30000,", ""), "lease_ms"},
      {edited("\"fresh\":{\"node\"", "\"fresh\":{\"nobody\""), "fresh"},
      {edited("\"number\":117", "\"number\":-1"), "fresh"},
      {edited("\"tail\":{\"sampling\"", "\"next\":{\"sampling\""), "next"},
      {kOpening + "x", "byte"},
  };
  for (const auto& c : cases) {
    const auto result = read_open(c.text);
    ASSERT_FALSE(result.ok()) << c.text;
    EXPECT_NE(message_of(result.status()).find(c.message), std::string_view::npos) << result.status();
  }
}

TEST(ControlMessages, ReadTheGoldenMessages) {
  const HopKey hop{kVectorSession, 6};
  EXPECT_EQ(*read_open_reply(read_vector("open_reply.json")),
            (OpenReply{OpenCode::kNoRoom, {{3}, {2}, 9}, {16, 1024}, 4, "the cache is full"}));
  EXPECT_EQ(*read_close(read_vector("close.json")), (CloseRequest{kVectorSession, {4}}));
  EXPECT_EQ(*read_cursors(read_vector("cursors.json")), (CursorsRequest{{hop}}));
  EXPECT_EQ(*read_cursors_reply(read_vector("cursors_reply.json")),
            (CursorsReply{{{hop, true, {{3}, {2}, 9}, 1, 8}}}));
  EXPECT_EQ(read_renew(read_vector("renew.json"))->request, (RenewRequest{{kVectorSession}, 30'000}));
  EXPECT_EQ(read_renew(read_vector("renew.json"))->fresh, kFresh);
  EXPECT_EQ(*read_renew_reply(read_vector("renew_reply.json")), (RenewReply{{kVectorSession}}));
  EXPECT_EQ(*read_report(read_vector("report.json")), (Report{hop, {3}, ReportCode::kStepFailed, 4, "why"}));
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
  const CursorsReply cursors{{{hop, true, {{3}, {2}, 9}, 1, 8},
                              {hop, true, {{3}, {2}, 9}, 1, 8, true},
                              {{kVectorSession, 0}, false, {}, 0, 0}}};
  EXPECT_EQ(*read_cursors_reply(write_cursors_reply(cursors)), cursors);
  const RenewRequest renew{{kVectorSession}, 30'000};
  EXPECT_EQ(read_renew(write_renew(renew, kFresh))->request, renew);
  EXPECT_EQ(read_renew(write_renew(renew, kFresh))->fresh, kFresh);
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
