#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/net/connection.h"
#include "common/net/router.h"
#include "common/net/server.h"

namespace mesh::net {

/// How many workers may be busy for long at once.
class LongLivedSlots {
 public:
  explicit LongLivedSlots(std::size_t count) : free_(static_cast<long>(count)) {}
  bool try_take() {
    if (free_.fetch_sub(1) > 0) return true;
    free_.fetch_add(1);
    return false;
  }
  void give_back() { free_.fetch_add(1); }

 private:
  std::atomic<long> free_;
};

/// Memory for the bodies of all requests under way; none of it is taken for what is small.
class BodyMemory {
 public:
  explicit BodyMemory(std::size_t bytes) : free_(static_cast<std::int64_t>(bytes)) {}
  bool try_take(std::size_t bytes) {
    const auto wanted = static_cast<std::int64_t>(bytes);
    if (free_.fetch_sub(wanted) >= wanted) return true;
    free_.fetch_add(wanted);
    return false;
  }
  void give_back(std::size_t bytes) { free_.fetch_add(static_cast<std::int64_t>(bytes)); }

 private:
  std::atomic<std::int64_t> free_;
};

/// What all exchanges of a listener share.
struct ExchangeContext {
  ServerOptions options;
  Router router;
  std::shared_ptr<AccessPolicy> policy;
  LongLivedSlots slots;
  BodyMemory bodies{options.bodies_bytes};

  Response error_answer(const Status& status, const Request& request) const;
};

/// Reads one request whose head is in connection.input, answers it, and leaves what follows it in the input.
/// True when the connection can take another.
bool run_exchange(ExchangeContext& context, const std::shared_ptr<Connection>& connection);

/// A whole HTTP answer that ends the connection, for requests that never came to be.
std::string refusal_bytes(const ExchangeContext& context, const Status& status, const Connection& connection);

}  // namespace mesh::net
