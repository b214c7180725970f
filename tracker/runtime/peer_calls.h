#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/identity/key_pair.h"
#include "common/net/client.h"

namespace mesh::tracker {

/// Signed control calls to nodes, on threads of their own: whoever asks never waits. Connections are kept per
/// node.
class PeerCalls {
 public:
  struct Options {
    std::size_t threads = 16;
    std::size_t queued = 4096;
    Duration timeout = std::chrono::seconds(2);
    net::AddressPolicy addresses = net::AddressPolicy::any();
  };
  using Done = std::function<void(StatusOr<std::string>)>;

  PeerCalls(Options options, std::shared_ptr<const KeyPair> signer);
  ~PeerCalls() { stop(); }
  PeerCalls(const PeerCalls&) = delete;
  PeerCalls& operator=(const PeerCalls&) = delete;

  /// POSTs `body` to `url` + `route`; `done` gets the answer's body (2xx and 429, which carries one too) or
  /// the error, on one of the threads; at once kUnavailable when the queue is full or stopped.
  void post(std::string url, std::string_view route, std::string body, Done done);
  void stop();

 private:
  struct Job {
    std::string url;
    std::string route;
    std::string body;
    Done done;
  };
  void work();
  StatusOr<std::string> call(const Job& job);
  StatusOr<std::unique_ptr<net::Client>> borrow(const std::string& url);
  void give_back(const std::string& url, std::unique_ptr<net::Client> client);

  const Options options_;
  const std::shared_ptr<const KeyPair> signer_;
  BoundedQueue<Job> jobs_;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<net::Client>>> idle_;
  std::vector<std::thread> threads_;
};

}  // namespace mesh::tracker
