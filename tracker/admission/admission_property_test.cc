#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tracker/admission/admission_queue.h"

// Random arrivals, openings that take time, answers, clients that leave and closings that are late, over a
// mesh with a room that is counted here. What must hold is in docs/admission.md.
namespace mesh::tracker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Ticket = AdmissionQueue::Ticket;

const ModelIdentity kModel = *ModelIdentity::parse(std::string(64, '7'));
constexpr std::uint32_t kRoom = 100;
constexpr auto kLongestOpening = milliseconds(30);

struct Plan {
  std::string principal;
  std::uint32_t size = 0;  ///< of the room
  Duration opens{}, answers{};
  std::optional<Duration> leaves;  ///< after its arrival
};

class Mesh {
 public:
  Mesh(std::uint64_t seed, Duration longest_wait)
      : random_(seed),
        options_{.max_running = 1 + pick(8),
                 .depth = pick(12),
                 .max_per_key = pick(2) == 0 ? 0 : 2 + pick(6),
                 .longest_wait = longest_wait,
                 .retry = milliseconds(500)},
        queue_(options_) {}

  void run(int arrivals) {
    for (int i = 0; i < arrivals; ++i) {
      catch_up(now_ + milliseconds(pick(120)));
      arrive();
    }
    // Whatever waits comes to an end; nothing new comes.
    for (int i = 0; i < 1'000'000 && (!plans_.empty() || !events_.empty()); ++i) {
      const auto next = next_time();
      ASSERT_TRUE(next) << plans_.size() << " requests wait for nothing";
      ASSERT_GE(*next, now_);
      now_ = *next;
      catch_up(now_);
    }
    EXPECT_TRUE(plans_.empty());
    EXPECT_EQ(queue_.running(), 0u);
    EXPECT_EQ(queue_.waiting(), 0u);
    EXPECT_EQ(free_, kRoom);
  }

  std::size_t finished = 0, waits_over = 0, refused = 0, found_no_room = 0;

 private:
  enum class What { kOpened, kEnded, kLeaves, kClosed };
  struct Event {
    What what;
    Ticket ticket;
    std::uint32_t size = 0;
    std::uint64_t attempt = 0;
  };

  std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_);
  }

  void arrive() {
    const Ticket ticket = ++last_;
    Plan plan;
    // One principal asks for most.
    plan.principal = pick(2) == 0 ? "greedy" : std::string(1, static_cast<char>('a' + pick(3)));
    plan.size = static_cast<std::uint32_t>(1 + (pick(4) == 0 ? pick(kRoom) : pick(20)));
    plan.opens = milliseconds(1 + pick(30));  // kLongestOpening at most
    plan.answers = milliseconds(1 + pick(2000));
    if (pick(6) == 0) plan.leaves = milliseconds(pick(3000));
    const auto mine = [&](const auto& one) { return one.second.principal == plan.principal; };
    const auto held = static_cast<std::size_t>(std::count_if(plans_.begin(), plans_.end(), mine));
    const auto why = queue_.enter({ticket, plan.principal, kModel}, now_);
    if (options_.max_per_key > 0) {
      EXPECT_EQ(why == Refusal::kKeyLimit, held >= options_.max_per_key);
    }
    if (why == Refusal::kQueueFull) {
      EXPECT_GE(queue_.waiting(), options_.depth);
    }
    if (why) {
      ++refused;
    } else {
      if (plan.leaves) events_.emplace(now_ + *plan.leaves, Event{What::kLeaves, ticket});
      arrived_[ticket] = now_;
      plans_[ticket] = plan;
      waiting_.insert(ticket);
    }
    settle();
  }

  std::optional<TimePoint> next_time() const {
    auto next = queue_.next_wakeup();
    if (!events_.empty()) next = next ? std::min(*next, events_.begin()->first) : events_.begin()->first;
    return next;
  }

  void catch_up(TimePoint until) {
    for (auto next = next_time(); next && *next <= until; next = next_time()) {
      now_ = std::max(now_, *next);
      if (!events_.empty() && events_.begin()->first <= now_) {
        const Event event = events_.begin()->second;
        events_.erase(events_.begin());
        happen(event);
      }
      settle();
    }
    now_ = until;
  }

  void happen(const Event& event) {
    if (event.what == What::kClosed) {
      free_ += event.size;
      queue_.room_changed();
      return;
    }
    const auto at = plans_.find(event.ticket);
    if (at == plans_.end()) return;
    if (event.what == What::kLeaves) return forget(event.ticket);
    if (event.attempt != attempts_[event.ticket]) return;
    if (event.what == What::kEnded) {
      ++finished;
      return forget(event.ticket);
    }
    if (at->second.size > free_) {
      ++found_no_room;
      queue_.found_no_room(event.ticket, now_);
      waiting_.insert(event.ticket);
      return;
    }
    free_ -= at->second.size;
    open_.insert(event.ticket);
    queue_.opened(event.ticket, now_);
    note_turn(event.ticket);
    events_.emplace(now_ + at->second.answers, Event{What::kEnded, event.ticket, 0, event.attempt});
  }

  /// Its hops close it a little later.
  void forget(Ticket ticket) {
    if (open_.erase(ticket) > 0) {
      events_.emplace(now_ + milliseconds(pick(20)), Event{What::kClosed, ticket, plans_[ticket].size});
    }
    queue_.leave(ticket, now_);
    plans_.erase(ticket);
    waiting_.erase(ticket);
    passed_.erase(ticket);
  }

  void settle() {
    for (const auto& [ticket, reason] : queue_.take_refused(now_)) {
      ASSERT_TRUE(waiting_.contains(ticket));
      if (reason == Refusal::kWaitOver) {
        EXPECT_GE(now_ - arrived_[ticket], options_.longest_wait);
        EXPECT_LE(now_ - arrived_[ticket], options_.longest_wait + kLongestOpening)
            << "a try may be under way";
        ++waits_over;
      }
      plans_.erase(ticket);
      waiting_.erase(ticket);
      passed_.erase(ticket);
    }
    while (const auto ticket = queue_.admit(now_)) {
      ASSERT_EQ(waiting_.erase(*ticket), 1u);
      // First come, first served among those of one principal.
      for (const Ticket other : waiting_) {
        if (plans_[other].principal != plans_[*ticket].principal) continue;
        EXPECT_GT(other, *ticket);
        passed_.erase(other);
      }
      admitted_[*ticket] = last_turn_[plans_[*ticket].principal] = now_;
      events_.emplace(now_ + plans_[*ticket].opens, Event{What::kOpened, *ticket, 0, ++attempts_[*ticket]});
    }
    EXPECT_EQ(queue_.waiting(), waiting_.size());
    EXPECT_EQ(queue_.waiting() + queue_.running(), plans_.size());
    EXPECT_LE(queue_.running(), options_.max_running);
    EXPECT_LE(plans_.size(), options_.max_running + options_.depth);
    if (const auto wakeup = queue_.next_wakeup()) {
      EXPECT_GT(*wakeup, now_) << "nobody spins";
    }
  }

  /// Between two admissions of a principal that waits, every other opens at most one that was admitted since.
  void note_turn(Ticket opened) {
    const std::string& mine = plans_[opened].principal;
    std::map<std::string, Ticket> firsts;
    for (const Ticket ticket : waiting_) firsts.try_emplace(plans_[ticket].principal, ticket);
    for (const auto& [principal, first] : firsts) {
      const TimePoint since = std::max(arrived_[first], last_turn_[principal]);
      if (principal == mine || admitted_[opened] <= since) continue;
      EXPECT_LE(++passed_[first][mine], 1) << principal << " waits behind " << mine;
    }
  }

  std::mt19937_64 random_;
  AdmissionOptions options_;
  AdmissionQueue queue_;
  TimePoint now_{seconds(1000)};
  Ticket last_ = 0;
  std::uint32_t free_ = kRoom;
  std::map<Ticket, Plan> plans_;
  std::set<Ticket> waiting_, open_;
  std::map<Ticket, TimePoint> arrived_, admitted_;
  std::map<std::string, TimePoint> last_turn_;
  std::map<Ticket, std::uint64_t> attempts_;
  std::map<Ticket, std::map<std::string, int>> passed_;
  std::multimap<TimePoint, Event> events_;
};

TEST(AdmissionProperty, BoundsHoldAndNobodyStarves) {
  std::size_t finished = 0, found_no_room = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Mesh mesh(seed, std::chrono::hours(10));
    mesh.run(150);
    ASSERT_FALSE(testing::Test::HasFailure());
    EXPECT_EQ(mesh.waits_over, 0u) << "every request fits the empty mesh";
    finished += mesh.finished;
    found_no_room += mesh.found_no_room;
    refused += mesh.refused;
  }
  EXPECT_GT(finished, 5000u);
  EXPECT_GT(found_no_room, 1000u);
  EXPECT_GT(refused, 1000u);
}

TEST(AdmissionProperty, AWaitIsNeverLongerThanAllowed) {
  std::size_t waits_over = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Mesh mesh(seed, seconds(2));
    mesh.run(150);
    ASSERT_FALSE(testing::Test::HasFailure());
    waits_over += mesh.waits_over;
  }
  EXPECT_GT(waits_over, 100u);
}

}  // namespace
}  // namespace mesh::tracker
