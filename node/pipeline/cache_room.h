#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "node/pipeline/hop_faults.h"
#include "node/pipeline/step.h"

namespace mesh::pipeline {

/// Which caches of sessions are on the device, which are in host memory, and whose turn on the device comes
/// next; in bytes and times alone (docs/engine-contract.md, Memory pressure). A cache that is on the device
/// has its whole reservation there; in host memory it takes what its tokens take. Caches that wait come in
/// one by one, in the order in which they began to wait, as room is there or others have had their turn.
class CacheRoom {
 public:
  enum class Place : std::uint8_t {
    kDevice,
    kHost,
    kNowhere,  ///< without tokens: it never began, or was dropped
  };
  struct Limits {
    std::uint64_t device_bytes = 0;  ///< for caches of sessions and kept prompts
    std::uint64_t host_bytes = 0;    ///< 0: no cache ever leaves the device
    Duration shortest_turn = std::chrono::milliseconds(100);
    Duration longest_turn = std::chrono::seconds(2);
    double turn_per_return = 8;  ///< a turn takes at least so often what coming back took
  };
  /// One that makes room, and how.
  struct Leaving {
    CacheId cache = 0;
    bool drop = false;  ///< its tokens are computed again; else they go to host memory
  };

  CacheRoom(Limits limits, HopFaults faults) : limits_(limits), faults_(faults) {}

  /// What shards leave for caches and kept prompts now.
  void set_device_bytes(std::uint64_t bytes) { limits_.device_bytes = bytes; }
  std::uint64_t device_bytes() const { return limits_.device_bytes; }
  std::uint64_t host_bytes() const { return limits_.host_bytes; }
  std::uint64_t on_device() const { return on_device_; }
  std::uint64_t on_host() const { return on_host_; }
  std::uint64_t of_all() const { return of_all_; }  ///< reservations, wherever their caches are
  std::size_t caches_on_host() const { return count_on_host_; }

  /// Whether every cache, one of `bytes` more among them, can be promised its turns. Two of the largest size
  /// stay free in host memory, so that whoever has had its turn can always leave.
  bool takes(std::uint64_t bytes) const;

  /// The least device_bytes() with which all that were taken keep the promise of takes().
  std::uint64_t promised() const;
  /// Of those that wait.
  std::uint64_t waiting_bytes() const;

  /// A new cache that reserves `bytes` on the device, at kDevice or kNowhere. `to_compute`: tokens that it
  /// had before it was dropped.
  void add(CacheId cache, std::uint64_t bytes, Place place, TimePoint now, Position to_compute = 0);
  void remove(CacheId cache);
  Place place(CacheId cache) const { return entries_.at(cache).place; }
  std::uint64_t bytes(CacheId cache) const { return entries_.at(cache).bytes; }
  /// A step of it begins, after which it has `tokens` tokens, which take `host_bytes` in host memory.
  void used(CacheId cache, Position tokens, std::uint64_t host_bytes, TimePoint now);

  /// Whether steps of it may begin.
  bool may_run(CacheId cache) const;
  /// It has work and may not run; it keeps the place that it has. And it has none.
  void wait(CacheId cache);
  void stop_waiting(CacheId cache);
  bool waits(CacheId cache) const;
  std::optional<CacheId> first_waiting() const;

  /// Who has to leave so that `cache` fits on the device; empty: nobody. None: it does not fit yet, because
  /// others still have their turn or no way to leave, or ever (`bytes` above device_bytes()). `has_work`: it
  /// would wait at once; `may_drop`: its tokens may be computed again.
  std::optional<std::vector<Leaving>> who_leaves(CacheId cache, TimePoint now,
                                                 const std::function<bool(CacheId)>& has_work,
                                                 const std::function<bool(CacheId)>& may_drop) const;
  /// It runs no further step until it has left; clear_held() takes all of that back, and gives whom.
  void hold(CacheId cache) { held_.insert(cache); }
  std::set<CacheId> clear_held() { return std::exchange(held_, {}); }
  void leave(CacheId cache);  ///< to host memory
  void enter(CacheId cache, TimePoint now);
  /// It has entered, but its tokens are still being copied, or those are that make room for it: until it has
  /// arrived it neither runs nor leaves.
  void set_out(CacheId cache) { entries_.at(cache).on_its_way = true; }
  void arrived(CacheId cache);
  /// What was to leave is on the device still: there was no host memory for it.
  void stayed(CacheId cache);

  /// While somebody waits: when the next turn ends.
  std::optional<TimePoint> next_wakeup(TimePoint now) const;

  /// Rates as measured here: bytes that were copied to or from host memory, rows of prefill that were
  /// computed.
  void note_copy(std::uint64_t bytes, Duration took) { copy_rate_.note(static_cast<double>(bytes), took); }
  void note_prefill(std::uint32_t rows, Duration took) { prefill_rate_.note(rows, took); }

 private:
  struct Entry {
    std::uint64_t bytes = 0;
    std::uint64_t host_bytes = 0;  ///< what its tokens take
    Position tokens = 0;
    Place place = Place::kDevice;
    bool on_its_way = false;
    TimePoint last_used{};
    TimePoint turn_until{};
    std::uint64_t waits_as = 0;  ///< its place in waiting_; 0: none
  };
  /// Per second, the later ones counting more; 0: never measured.
  struct Rate {
    double per_second = 0;
    void note(double amount, Duration took);
  };

  void leave_host(const Entry& entry);              ///< counts it there no more
  Duration copy_time(const Entry& entry) const;     ///< there and back
  Duration compute_time(const Entry& entry) const;  ///< of its tokens; the longest when nothing was measured
  bool cheaper_to_compute(const Entry& entry) const { return compute_time(entry) < copy_time(entry); }
  Duration turn(const Entry& entry) const;

  Limits limits_;
  const HopFaults faults_;
  std::map<CacheId, Entry> entries_;
  std::map<std::uint64_t, CacheId> waiting_;  ///< first come, first served
  std::set<CacheId> held_;
  std::multiset<std::uint64_t> sizes_;
  std::uint64_t last_wait_ = 0;
  std::uint64_t on_device_ = 0, on_host_ = 0, of_all_ = 0;
  std::size_t count_on_host_ = 0;
  Rate copy_rate_, prefill_rate_;
};

}  // namespace mesh::pipeline
