#include "tracker/runtime/peer_calls.h"

#include "common/identity/signed_message.h"
#include "common/net/message.h"

namespace mesh::tracker {
namespace {

/// Nodes come and go; connections to those that went must not pile up.
constexpr std::size_t kMostUrls = 1024;
constexpr int kTooMany = 429;

}  // namespace

PeerCalls::PeerCalls(Options options, std::shared_ptr<const KeyPair> signer)
    : options_(std::move(options)), signer_(std::move(signer)), jobs_(options_.queued) {
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

void PeerCalls::stop() {
  jobs_.close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void PeerCalls::post(std::string url, std::string_view route, std::string body, Done done) {
  Job job{std::move(url), std::string(route), std::move(body), std::move(done)};
  if (jobs_.try_push(job)) return;
  job.done(error(StatusCode::kUnavailable, "too many control calls wait"));
}

void PeerCalls::work() {
  while (auto job = jobs_.pop()) job->done(call(*job));
}

StatusOr<std::string> PeerCalls::call(const Job& job) {
  MESH_ASSIGN_OR_RETURN(std::unique_ptr<net::Client> client, borrow(job.url));
  const MessageSignature signature = sign_message(*signer_, job.route, job.body);
  net::CallOptions call;
  call.headers.add(kKeyHeader, signature.key_hex);
  call.headers.add(kSignatureHeader, signature.signature_hex);
  call.timeout = options_.timeout;
  call.idempotent = true;  // every control message may be repeated harmlessly
  auto reply = client->post(job.route, job.body, net::kJsonType, call);
  if (!reply.ok()) return reply.status();
  give_back(job.url, std::move(client));
  if (reply->status != kTooMany) MESH_RETURN_IF_ERROR(reply->as_status());
  return std::move(reply->body);
}

StatusOr<std::unique_ptr<net::Client>> PeerCalls::borrow(const std::string& url) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = idle_.find(url);
    if (found != idle_.end() && !found->second.empty()) {
      auto client = std::move(found->second.back());
      found->second.pop_back();
      return client;
    }
  }
  net::ClientOptions options;
  options.addresses = options_.addresses;
  options.connect_timeout = options_.timeout;
  return net::Client::make(url, options);
}

void PeerCalls::give_back(const std::string& url, std::unique_ptr<net::Client> client) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() >= kMostUrls && !idle_.contains(url)) idle_.clear();
  idle_[url].push_back(std::move(client));
}

}  // namespace mesh::tracker
