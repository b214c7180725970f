#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/net/client.h"
#include "common/net/server.h"

namespace mesh::net {

/// A flag that threads of a test wait for.
class TestEvent {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  /// `patience` only bounds a test that fails.
  bool wait(std::chrono::milliseconds patience = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

/// Tests add routes, then start one server on a free port of loopback.
class ServerTest : public ::testing::Test {
 protected:
  void route(std::string method, std::string pattern, Handler handler, Access access = Access::kAnyone) {
    routes_.push_back({std::move(method), std::move(pattern), access, std::move(handler)});
  }
  void start(std::shared_ptr<AccessPolicy> policy = nullptr) {
    auto started = Server::start(std::move(options_), std::move(routes_), std::move(policy));
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  std::unique_ptr<Client> client() {
    auto made = Client::make("http://" + server_->address());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  /// For handlers and test alike: it outlives the server, which may still run a handler when the test has
  /// ended.
  TestEvent& event() { return events_.emplace_back(); }

  ServerOptions options_;
  std::vector<Route> routes_;

 private:
  std::deque<TestEvent> events_;

 protected:
  std::unique_ptr<Server> server_;
};

}  // namespace mesh::net
