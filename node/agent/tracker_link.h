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
/// key, or else is the first one seen in this run. Each instance is one connection, used by one thread at a
/// time.
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
    /// kPermissionDenied when `key` is not the pinned one.
    Status check(const PublicKey& key);
    std::optional<PublicKey> key() const;

   private:
    const std::optional<JoinKey> join_key_;
    mutable std::mutex mutex_;
    std::optional<PublicKey> key_;
  };

  TrackerLink(Options options, std::shared_ptr<Pin> pin)
      : options_(std::move(options)), pin_(std::move(pin)) {}

  /// Bodies of verified replies, or why there is none; a refusal's code is in `error`.
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

  const Options options_;
  const std::shared_ptr<Pin> pin_;
  std::mutex mutex_;  ///< guards the pointer against cancel()
  std::unique_ptr<net::Client> client_;
};

/// Checks the signatures of a reply's directives against the pinned key and reads their texts.
std::vector<CheckedDirective> check_directives(const std::vector<wire::SignedDirective>& directives,
                                               const PublicKey& tracker);

}  // namespace mesh
