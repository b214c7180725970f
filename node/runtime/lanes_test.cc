#include "node/runtime/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <set>
#include <system_error>

#include "common/net/server.h"
#include "common/wire/session_json.h"

namespace mesh {
namespace {

using testing::HasSubstr;

const std::string kNobody = "http://127.0.0.1:1";  // refuses at once

class Events final : public LaneEvents {
 public:
  void frame_done(std::uint64_t, StatusOr<std::vector<wire::SegmentAnswer>>) override {}
  void ask_done(std::uint64_t id, StatusOr<wire::CursorsReply>) override {
    const std::lock_guard lock(mutex_);
    came_.insert(id);
  }
  void tokens_done(std::uint64_t, StatusOr<std::vector<wire::TokenAnswer>>) override {}
  void report_done(std::uint64_t, const Status&) override {}

  bool came(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    return came_.contains(id);
  }
  void wait_for(std::uint64_t id) const {
    while (!came(id)) std::this_thread::yield();
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::uint64_t> came_;
};

pipeline::OutAsk ask(const std::string& url, std::uint64_t id = 1) {
  return {id, {}, url, {}};
}

/// Answers questions when it is let.
class SlowHop {
 public:
  SlowHop() {
    std::vector<net::Route> routes;
    routes.push_back({"POST", std::string(wire::kCursorsRoute), net::Access::kAnyone,
                      [this](net::Request&) {
                        may_answer_.wait();
                        return net::Response::text(wire::write_cursors_reply({}), net::kJsonType);
                      },
                      1 << 20, false});
    auto started = net::Server::start({}, std::move(routes), nullptr);
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  ~SlowHop() { answer(); }
  void answer() {
    if (!std::exchange(answered_, true)) let_.set_value();
  }
  std::string url(const std::string& host) const {
    return "http://" + host + ":" + std::to_string(server_->port());
  }

 private:
  std::promise<void> let_;
  const std::shared_future<void> may_answer_ = let_.get_future().share();
  bool answered_ = false;
  std::unique_ptr<net::Server> server_;
};

TEST(Lanes, BeyondTheMostAnIdleLaneEndsAndABusyOneStays) {
  Events events;
  SlowHop hop;
  Lanes lanes({}, events, 2);
  ASSERT_TRUE(lanes.send(ask(kNobody, 1)).ok());
  events.wait_for(1);
  ASSERT_TRUE(lanes.send(ask(hop.url("127.0.0.1"), 2)).ok());
  // The first lane becomes idle a moment after its event.
  while (!lanes.send(ask(hop.url("localhost"), 3)).ok()) std::this_thread::yield();
  EXPECT_EQ(lanes.size(), 2u);
  const Status refused = lanes.send(ask(kNobody, 4));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("all 2 lanes of this node"));
  hop.answer();
  while (!lanes.send(ask(kNobody, 5)).ok()) std::this_thread::yield();
  events.wait_for(5);
  EXPECT_EQ(lanes.size(), 2u);
  lanes.stop();
}

TEST(Lanes, WithoutAThreadTheSendingFailsAndSaysWhatToDo) {
  Events events;
  bool none_left = true;
  LaneOptions options;
  options.start_thread = [&](std::function<void()> run) {
    if (none_left) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    return std::thread(std::move(run));
  };
  Lanes lanes(options, events);
  const Status refused = lanes.send(ask(kNobody, 1));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(refused)), HasSubstr("raise this system's limit on threads"));
  EXPECT_EQ(lanes.size(), 0u);
  none_left = false;
  EXPECT_TRUE(lanes.send(ask(kNobody, 2)).ok());
  events.wait_for(2);
  lanes.stop();
}

TEST(Lanes, OneThreadIsEnough) {
  Events events;
  int given = 0;
  LaneOptions options;
  options.start_thread = [&](std::function<void()> run) {
    if (given == 1) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    ++given;
    return std::thread(std::move(run));
  };
  Lanes lanes(options, events);
  EXPECT_TRUE(lanes.send(ask(kNobody, 1)).ok());
  events.wait_for(1);
  lanes.stop();
}

TEST(Lane, IsNotIdleFromBeforeItSendsUntilTheEventHasCome) {
  Events events;
  LaneOptions options;
  options.url = kNobody;
  options.precedence = std::make_shared<Precedence>();
  auto lane = Lane::start(options, events);
  ASSERT_TRUE(lane.ok());
  for (std::uint64_t id = 1; id <= 500; ++id) {
    Lane::Item item = ask(kNobody, id);
    ASSERT_TRUE((*lane)->send(item));
    while (!events.came(id)) {
      if ((*lane)->idle_since()) {
        ASSERT_TRUE(events.came(id));
      }
    }
  }
}

}  // namespace
}  // namespace mesh
