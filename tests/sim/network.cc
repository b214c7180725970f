#include "tests/sim/network.h"

#include <memory>

namespace mesh::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

void Timeline::run(TimePoint until) {
  while (!events_.empty() && events_.begin()->first.first <= until) {
    auto node = events_.extract(events_.begin());
    clock_.set(std::max(clock_.now(), node.key().first));
    ++ran_;
    node.mapped()();
  }
  clock_.set(std::max(clock_.now(), until));
}

Duration Network::delay() {
  Duration d = microseconds(random_.between(200, 5000));
  if (random_.chance(faults_.late)) d += milliseconds(random_.between(1, 2000));
  return d;
}

StatusOr<std::string> Network::deliver(const std::string& url, const std::string& route,
                                       const std::string& body) {
  const auto at = handlers_.find(url);
  if (at == handlers_.end()) return error(StatusCode::kUnavailable, "connection refused");
  const Handler handler = at->second;
  return handler(route, body);
}

void Network::cut(const std::string& from, const std::string& to, Duration how_long) {
  cuts_[{from, to}] = timeline_.now() + how_long;
}

void Network::post(const std::string& from, const std::string& url, const std::string& route,
                   std::string body, Duration timeout, Done done) {
  auto finished = std::make_shared<bool>(false);
  const auto finish = [finished, done = std::move(done)](StatusOr<std::string> answer) {
    if (std::exchange(*finished, true)) return;
    done(std::move(answer));
  };
  timeline_.after(timeout, [finish] { finish(error(StatusCode::kDeadlineExceeded, "no answer")); });
  // Control messages are signed: damage there is the same as loss.
  if (random_.chance(faults_.corrupt) && body.starts_with("MSH")) {
    char& byte = body[random_.between(0, body.size() - 1)];
    byte = static_cast<char>(byte ^ (1 << random_.between(0, 7)));
  }
  const bool lose_answer = random_.chance(faults_.lose_answer);
  if (random_.chance(faults_.duplicate)) {
    timeline_.after(delay() + milliseconds(random_.between(0, 3000)),
                    [=, this] { (void)deliver(url, route, body); });
  }
  const auto severed = cuts_.find({from, url});
  if (severed != cuts_.end() && severed->second > timeline_.now()) return;
  if (random_.chance(faults_.lose_request)) return;
  timeline_.after(delay(), [=, this] {
    auto answer = deliver(url, route, body);
    if (lose_answer || answer.status().code() == StatusCode::kDeadlineExceeded) return;  // the latter: frozen
    timeline_.after(delay(), [finish, answer = std::move(answer)]() mutable { finish(std::move(answer)); });
  });
}

}  // namespace mesh::sim
