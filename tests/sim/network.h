#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/sim/random.h"

namespace mesh::sim {

/// Events on virtual time, in the order of (time, scheduling).
class Timeline {
 public:
  TimePoint now() const { return clock_.now(); }
  const Clock& clock() const { return clock_; }
  void at(TimePoint when, std::function<void()> what) {
    events_.emplace(std::pair(when, ++last_), std::move(what));
  }
  void after(Duration delay, std::function<void()> what) { at(now() + delay, std::move(what)); }
  /// Runs until nothing is left or `until` is over.
  void run(TimePoint until);
  std::uint64_t events() const { return ran_; }

 private:
  ManualClock clock_;
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t last_ = 0, ran_ = 0;
};

/// What the network does to a request, each with its chance.
struct NetworkFaults {
  double lose_request = 0;  ///< it never arrives
  double lose_answer = 0;   ///< it is carried out, the sender hears nothing: loss after 202
  double duplicate = 0;     ///< it is carried out twice, the second time up to 3 s later
  double corrupt = 0;       ///< one byte of the body changes
  double late = 0;          ///< it takes up to 2 s more
};

/// Requests and answers between programs named by URL.
class Network {
 public:
  using Handler = std::function<StatusOr<std::string>(const std::string& route, const std::string& body)>;
  using Done = std::function<void(StatusOr<std::string>)>;

  Network(Timeline& timeline, Random& random) : timeline_(timeline), random_(random) {}
  void set_faults(const NetworkFaults& faults) { faults_ = faults; }
  void listen(const std::string& url, Handler handler) { handlers_[url] = std::move(handler); }
  /// From now on connections are refused.
  void stop(const std::string& url) { handlers_.erase(url); }
  /// For `how_long` nothing that `from` sends arrives at `to`; the other way stays open.
  void cut(const std::string& from, const std::string& to, Duration how_long);
  /// `done` is called once: with the answer, or with an error when nothing came within `timeout`.
  void post(const std::string& from, const std::string& url, const std::string& route, std::string body,
            Duration timeout, Done done);

 private:
  Duration delay();
  StatusOr<std::string> deliver(const std::string& url, const std::string& route, const std::string& body);

  Timeline& timeline_;
  Random& random_;
  NetworkFaults faults_;
  std::map<std::string, Handler> handlers_;
  std::map<std::pair<std::string, std::string>, TimePoint> cuts_;  ///< until when
};

}  // namespace mesh::sim
