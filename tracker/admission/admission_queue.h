#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"

namespace mesh::tracker {

struct AdmissionOptions {
  std::size_t max_running = 256;
  std::size_t depth = 128;      ///< requests that wait; 0: none waits for its turn
  std::size_t max_per_key = 0;  ///< running and waiting; 0: no limit of its own
  Duration longest_wait = std::chrono::seconds(30);
  Duration retry = std::chrono::milliseconds(500);  ///< after a try that found no room
};

enum class Refusal : std::uint8_t {
  kQueueFull,
  kKeyLimit,
  kDisplaced,  ///< a principal with fewer waiting took the place
  kWaitOver,
};

/// Requests that run and wait, under the rules of docs/admission.md. Pure: time is an argument; one thread.
/// After each event call admit() until it gives nothing, then take_refused(); sleep until an event or
/// next_wakeup(). Every ticket that entered leaves once: by leave(), or in take_refused().
class AdmissionQueue {
 public:
  /// Names one request; rises with arrival.
  using Ticket = std::uint64_t;
  struct Arrival {
    Ticket ticket = 0;
    std::string principal;
    ModelIdentity model;
  };
  struct Refused {
    Ticket ticket = 0;
    Refusal reason = Refusal::kWaitOver;

    friend bool operator==(const Refused&, const Refused&) = default;
  };

  explicit AdmissionQueue(AdmissionOptions options) : options_(options) {}

  /// Takes a place in the queue; otherwise says why there is none.
  std::optional<Refusal> enter(const Arrival& arrival, TimePoint now);
  /// Who shall open its session now; it counts as running.
  std::optional<Ticket> admit(TimePoint now);
  /// All its hops were opened. The time since it arrived, at the first call.
  std::optional<Duration> opened(Ticket ticket, TimePoint now);
  /// A hop of an admitted one has no room and no other can take its layers: it waits again, at its old place.
  void found_no_room(Ticket ticket, TimePoint now);
  /// It ended, or its client left, at any time.
  void leave(Ticket ticket, TimePoint now);
  /// A session was closed at a hop: whoever found no room may try again at once.
  void room_changed();
  /// Who waits no longer.
  std::vector<Refused> take_refused(TimePoint now);
  std::optional<TimePoint> next_wakeup() const;

  /// What Retry-After shall say to a request of `principal` that was refused.
  Duration retry_after(const std::string& principal) const;
  std::size_t running() const { return running_; }
  std::size_t waiting() const { return waiting_; }
  bool is_short_of_room(const ModelIdentity& model) const;

 private:
  struct Entry {
    Arrival arrival;
    TimePoint entered{};
    bool waiting = true;
    bool opened = false;
    TimePoint admitted{};
    std::uint64_t turn = 0;                ///< number of its admission
    std::uint64_t changes_before = 0;      ///< of room, when it was admitted
    std::optional<TimePoint> alone_since;  ///< since when it finds no room although nothing else runs
    bool hopeless = false;                 ///< for long enough: it holds back nobody
    TimePoint again{};                     ///< hopeless: its next try
  };
  struct Principal {
    std::uint64_t served = 0;        ///< the highest turn of those that were opened or ended
    std::set<std::uint64_t> trying;  ///< turns of those admitted that are neither
    std::size_t running = 0;
    std::set<Ticket> waiting;

    std::uint64_t turn() const { return trying.empty() ? served : std::max(served, *trying.rbegin()); }
  };
  struct Model {
    std::size_t waiting = 0;
    bool is_short = false;
    std::optional<Ticket> trying;  ///< while short: admitted, not yet opened at all hops
    TimePoint again{};             ///< while short: the next try
  };

  /// When it may be tried, if room and turn allow; none: not before another event.
  std::optional<TimePoint> next_try(const Entry& entry) const;
  /// The principal whose last request gives its place to one of `fewer`; null: none has two more waiting.
  Principal* greediest(const Principal& fewer);
  void start_waiting(Entry& entry);
  void stop_waiting(const Entry& entry);
  void stop_running(const Entry& entry);
  void served(const Entry& entry);
  void end_shortage(Model& model);

  const AdmissionOptions options_;
  std::map<Ticket, Entry> entries_;
  std::map<std::string, Principal> principals_;  ///< all that ever asked: as many as there are keys
  std::map<ModelIdentity, Model> models_;
  std::size_t running_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t turns_ = 0;
  std::uint64_t changes_ = 0;
  std::vector<Refused> displaced_;
  std::optional<Duration> mean_run_;  ///< moving average of an answer's time
};

}  // namespace mesh::tracker
