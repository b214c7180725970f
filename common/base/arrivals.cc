#include "common/base/arrivals.h"

#include <algorithm>

namespace mesh {
void ArrivalClock::arrived(TimePoint at) {
  intervals_ = {intervals_[1], intervals_[2], at - std::exchange(last_, at)};
}

std::optional<ArrivalClock::Window> ArrivalClock::next(TimePoint now) const {
  if (!enough_cores_ || now < rests_until_) return std::nullopt;
  auto sorted = intervals_;
  std::ranges::sort(sorted);
  const Duration interval = sorted[1];
  if (interval < kShortest || interval > kLongest) return std::nullopt;
  if (std::min(interval - sorted[0], sorted[2] - interval) > slack(interval)) return std::nullopt;
  const TimePoint due = last_ + interval;
  const Window window{due - slack(interval), due + slack(interval)};
  if (now >= window.until) return std::nullopt;
  return window;
}

void ArrivalClock::polled(Poll end, TimePoint now) {
  if (end == Poll::kCame) rest_ = kFirstRest;
  if (end != Poll::kCrowded) return;
  rests_until_ = now + rest_;
  rest_ = std::min(rest_ * 2, kLongestRest);
}

}  // namespace mesh
