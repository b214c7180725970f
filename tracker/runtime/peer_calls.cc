#include "tracker/runtime/peer_calls.h"

#include <algorithm>

#include "common/identity/signed_message.h"
#include "common/net/message.h"

namespace mesh::tracker {
namespace {

/// Nodes come and go; connections to those that went must not pile up.
constexpr std::size_t kMostPeers = 1024;
/// Calls under way to one node.
constexpr std::size_t kAtOnce = 2;
constexpr int kTooMany = 429;

}  // namespace

PeerCalls::PeerCalls(Options options, std::shared_ptr<const KeyPair> signer)
    : options_(std::move(options)), signer_(std::move(signer)) {
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

void PeerCalls::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void PeerCalls::post(std::string url, std::string_view route, std::string body, Done done) {
  Job job{std::move(url), std::string(route), std::move(body), std::move(done), SteadyClock().now()};
  {
    const std::lock_guard lock(mutex_);
    if (peers_.size() >= kMostPeers && !peers_.contains(job.url)) forget_idle();
    Peer& peer = peers_[job.url];
    if (!stopped_ && peer.jobs.size() < options_.queued) {
      peer.jobs.push_back(std::move(job));
      changed_.notify_one();
      return;
    }
  }
  job.done(error(StatusCode::kUnavailable, "too many control calls wait"));
}

void PeerCalls::work() {
  while (auto job = next()) {
    if (SteadyClock().now() - job->posted > options_.timeout) {
      ended(job->url, false);
      job->done(error(StatusCode::kDeadlineExceeded, "the node was too slow with the calls before this one"));
      continue;
    }
    bool reached = false;
    StatusOr<std::string> answer = call(*job, reached);
    ended(job->url, reached);
    job->done(std::move(answer));
  }
}

bool PeerCalls::may_begin(const Peer& peer, std::size_t doubtful_calls) const {
  if (peer.jobs.empty()) return false;
  if (!peer.doubtful) return peer.running < kAtOnce;
  return peer.running == 0 && doubtful_calls < std::max<std::size_t>(options_.threads / 2, 1);
}

std::optional<PeerCalls::Job> PeerCalls::next() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::size_t doubtful_calls = 0;
    bool some_wait = false;
    for (const auto& [url, peer] : peers_) {
      if (peer.doubtful) doubtful_calls += peer.running;
      some_wait |= !peer.jobs.empty();
    }
    if (stopped_ && !some_wait) return std::nullopt;
    auto at = peers_.upper_bound(last_);
    for (std::size_t seen = 0; seen < peers_.size(); ++seen, ++at) {
      if (at == peers_.end()) at = peers_.begin();
      Peer& peer = at->second;
      if (!may_begin(peer, doubtful_calls)) continue;
      last_ = at->first;
      Job job = std::move(peer.jobs.front());
      peer.jobs.pop_front();
      ++peer.running;
      return job;
    }
    changed_.wait(lock);
  }
}

void PeerCalls::ended(const std::string& url, bool reached) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(url);
    --peer.running;
    peer.doubtful = !reached;
  }
  changed_.notify_all();
}

StatusOr<std::string> PeerCalls::call(const Job& job, bool& reached) {
  MESH_ASSIGN_OR_RETURN(std::unique_ptr<net::Client> client, borrow(job.url));
  const MessageSignature signature = sign_message(*signer_, job.route, job.body);
  net::CallOptions call;
  call.headers.add(kKeyHeader, signature.key_hex);
  call.headers.add(kSignatureHeader, signature.signature_hex);
  call.timeout = options_.timeout;
  call.idempotent = true;  // every control message may be repeated harmlessly
  auto reply = client->post(job.route, job.body, net::kJsonType, call);
  reached = reply.ok();
  if (!reply.ok()) return reply.status();
  give_back(job.url, std::move(client));
  if (reply->status != kTooMany) MESH_RETURN_IF_ERROR(reply->as_status());
  return std::move(reply->body);
}

StatusOr<std::unique_ptr<net::Client>> PeerCalls::borrow(const std::string& url) {
  {
    const std::lock_guard lock(mutex_);
    auto& idle = peers_.at(url).idle;
    if (!idle.empty()) {
      auto client = std::move(idle.back());
      idle.pop_back();
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
  peers_.at(url).idle.push_back(std::move(client));
}

void PeerCalls::forget_idle() {
  std::erase_if(peers_,
                [](const auto& entry) { return entry.second.jobs.empty() && entry.second.running == 0; });
}

}  // namespace mesh::tracker
