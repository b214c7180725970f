#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/identity/join_key.h"
#include "common/identity/key_pair.h"
#include "common/net/client.h"
#include "node/agent/agent.h"

namespace mesh {

/// Signed calls to one tracker and the check of its signed replies. The tracker's key is pinned by the join
/// key, or else is the first one seen in this run. Once a reply of that key came, no answer without its
/// signature ends anything: anybody on the way can send one. Each instance is one connection, used by one
/// thread at a time.
class TrackerLink {
 public:
  struct Options {
    std::string url;
    std::shared_ptr<const KeyPair> identity;
    std::optional<JoinKey> join_key;
  };
  /// The key that all links of a node share. Thread-safe.
  class Pin {
   public:
    explicit Pin(std::optional<JoinKey> join_key) : join_key_(std::move(join_key)) {}
    /// kPermissionDenied when `key` is not the pinned one; pins the first.
    Status check(const PublicKey& key);
    /// The same for the key of a refusal, which pins nothing.
    Status compare(const PublicKey& key) const;
    /// Of the replies seen in this run; nothing before the first.
    std::optional<PublicKey> key() const;
    /// Whether one key alone may speak for the tracker by now.
    bool is_set() const { return join_key_ || key(); }

   private:
    Status compare_locked(const PublicKey& key) const;

    const std::optional<JoinKey> join_key_;
    mutable std::mutex mutex_;
    std::optional<PublicKey> key_;
  };

  TrackerLink(Options options, std::shared_ptr<Pin> pin)
      : options_(std::move(options)), pin_(std::move(pin)) {}

  /// Bodies of verified replies, or why there is none. The code of a refusal is in `error` when the pinned
  /// key signed it, and while none is set; "signature" when the first answer is another key's.
  StatusOr<std::string> call(std::string_view route, const std::string& body, Duration timeout,
                             wire::ControlError& error);
  /// GET whose body is checked by its own hashes, not by a signature: manifests and byte ranges of models.
  StatusOr<std::string> get(const std::string& path, std::size_t max_bytes);
  Status download(const std::string& path, const net::ByteRange& range, const net::BodySink& sink);
  /// Ends a call under way.
  void cancel();

 private:
  StatusOr<net::Client*> client();
  net::Headers signed_headers(std::string_view path, std::string_view body) const;
  Status refused(std::string_view route, const net::Reply& reply, wire::ControlError& refusal) const;
  /// The answer of another key: the owner's mistake when it is the first, a stranger's later.
  Status distrusted(const Status& why, wire::ControlError& refusal) const;

  const Options options_;
  const std::shared_ptr<Pin> pin_;
  std::mutex mutex_;  ///< guards the pointer against cancel()
  std::unique_ptr<net::Client> client_;
};

/// Checks the signatures of a reply's directives against the pinned key and reads their texts.
std::vector<CheckedDirective> check_directives(const std::vector<wire::SignedDirective>& directives,
                                               const PublicKey& tracker);

}  // namespace mesh
