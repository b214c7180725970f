#pragma once

#include <gtest/gtest.h>

#include <map>

#include "tracker/head/head_table.h"

namespace mesh::head {

inline NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}
inline wire::HopAddress hop(std::uint8_t number, LayerRange range) {
  return {node(number), "http://node" + std::to_string(number), range};
}

/// A head with one session over three hops: embedded [0, 2), node 1 [2, 6), node 2 [6, 8).
class HeadTableTest : public testing::Test {
 protected:
  HeadTableTest() { options.head_url = "http://head"; }

  void start(std::vector<TokenId> prompt = {1, 2, 3}, std::uint32_t max_tokens = 4) {
    StartRequest request;
    request.session = id;
    request.layers = 8;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.eos_ids = {99};
    request.chunk = 32;
    ASSERT_TRUE(table.start(request, now).ok());
  }

  template <class T>
  std::vector<T> take() {
    for (HeadAction& action : table.take_actions()) pending.push_back(std::move(action));
    std::vector<T> found;
    std::erase_if(pending, [&](HeadAction& action) {
      T* one = std::get_if<T>(&action);
      if (one) found.push_back(std::move(*one));
      return one != nullptr;
    });
    return found;
  }

  void find_route() {
    const auto wanted = take<RouteWanted>();
    ASSERT_EQ(wanted.size(), 1u);
    EXPECT_TRUE(wanted[0].first);
    table.route_found(id, wanted[0].request, {hop(0, {0, 2}), hop(1, {2, 6}), hop(2, {6, 8})}, now);
  }
  static wire::OpenReply opened(const OpenHop& action, Position next = 0, Position kept_from = 0) {
    wire::OpenReply reply;
    reply.cursor = {action.request.generation, {0}, next};
    reply.kept_from = kept_from;
    return reply;
  }
  /// Answers every opening; the positions come from `next` by hop.
  std::vector<OpenHop> open_all(std::map<std::size_t, Position> next = {},
                                std::map<std::size_t, Position> kept = {}) {
    auto openings = take<OpenHop>();
    for (const OpenHop& action : openings) {
      table.open_answered(action.ref, opened(action, next[action.ref.index], kept[action.ref.index]), now);
    }
    return openings;
  }
  void run(std::vector<TokenId> prompt = {1, 2, 3}) {
    start(std::move(prompt));
    find_route();
    open_all();
  }
  /// Hop 0 takes and applies all ids at once; "start+rows", with ! where the tail shall sample.
  std::string feed() {
    std::string fed;
    for (auto sent = take<SendIds>(); !sent.empty(); sent = take<SendIds>()) {
      for (const SendIds& ids : sent) {
        const wire::Segment& s = ids.segment;
        fed += std::to_string(s.start) + "+" + std::to_string(s.rows) + (s.sample ? "! " : " ");
        table.ids_answered(
            ids.ref, {s.key(), s.seq, wire::AnswerCode::kAccepted, {s.generation, s.seq, s.end()}}, now);
      }
    }
    return fed;
  }
  wire::TokenCode token(Position position, TokenId token_id, Generation generation = {1}) {
    return table.token({id, generation, position, token_id, -1}, now).code;
  }
  /// Lets time pass until something is to be done.
  void wait() {
    now = *table.next_wakeup();
    table.tick(now);
  }

  HeadOptions options;
  TimePoint now = TimePoint{} + std::chrono::hours(1);
  SessionId id = SessionId::parse("0102030405060708090a0b0c0d0e0f10").value();
  HeadTable table{[] {
                    HeadOptions o;
                    o.head_url = "http://head";
                    return o;
                  }(),
                  SessionSecret{}};
  std::vector<HeadAction> pending;
};

}  // namespace mesh::head
