#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/identity/key_pair.h"
#include "common/net/client.h"

namespace mesh::tracker {

/// Signed control calls to nodes, on threads of their own: whoever asks never waits. Each node has a queue, a
/// few calls under way and connections of its own, and nodes whose last call failed have half of the threads
/// at most: one that went dark, so that every call waits for its timeout, holds up nobody else's.
class PeerCalls {
 public:
  struct Options {
    std::size_t threads = 16;
    std::size_t queued = 1024;                   ///< calls to one node
    Duration timeout = std::chrono::seconds(2);  ///< of a call, and of its wait in the queue
    net::AddressPolicy addresses = net::AddressPolicy::any();
  };
  using Done = std::function<void(StatusOr<std::string>)>;

  PeerCalls(Options options, std::shared_ptr<const KeyPair> signer);
  ~PeerCalls() { stop(); }
  PeerCalls(const PeerCalls&) = delete;
  PeerCalls& operator=(const PeerCalls&) = delete;

  /// POSTs `body` to `url` + `route`; `done` gets the answer's body (2xx and 429, which carries one too) or
  /// the error, on one of the threads; at once kUnavailable when the queue is full or stopped, and
  /// kDeadlineExceeded, unsent, when it has waited for as long as a call may take.
  void post(std::string url, std::string_view route, std::string body, Done done);
  /// Carries out what waits, as far as its time is not over.
  void stop();

 private:
  struct Job {
    std::string url;
    std::string route;
    std::string body;
    Done done;
    TimePoint posted{};
  };
  struct Peer {
    std::deque<Job> jobs;
    std::size_t running = 0;
    bool doubtful = false;  ///< its last call failed, or came to nothing in the queue
    std::vector<std::unique_ptr<net::Client>> idle;
  };

  void work();
  /// Waits for a call that may begin; nothing when all is done after stop().
  std::optional<Job> next();
  /// `doubtful_calls`: calls under way to doubtful peers.
  bool may_begin(const Peer& peer, std::size_t doubtful_calls) const;
  /// `reached`: whether the node answered; false too when there was no time left to ask it.
  void ended(const std::string& url, bool reached);
  StatusOr<std::string> call(const Job& job, bool& reached);
  StatusOr<std::unique_ptr<net::Client>> borrow(const std::string& url);
  void give_back(const std::string& url, std::unique_ptr<net::Client> client);
  void forget_idle();

  const Options options_;
  const std::shared_ptr<const KeyPair> signer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Peer> peers_;
  std::string last_;  ///< whose call began last; the next one is another's, in turn
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mesh::tracker
