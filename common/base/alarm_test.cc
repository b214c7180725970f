#include "common/base/alarm.h"

#include <gtest/gtest.h>

#include <future>

namespace mesh {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TimePoint now() {
  return SteadyClock().now();
}

TEST(Alarm, RingsOnceAtItsTimeAndNotBefore) {
  std::promise<TimePoint> rung;  // a second ring would throw
  Alarm alarm([&] { rung.set_value(now()); });
  const TimePoint at = now() + milliseconds(20);
  alarm.set(at);
  EXPECT_GE(rung.get_future().get(), at);
}

TEST(Alarm, AnEarlierTimeReplacesALaterOne) {
  std::promise<void> rung;
  Alarm alarm([&] { rung.set_value(); });
  alarm.set(now() + hours(2));
  alarm.set(now());
  rung.get_future().wait();
}

TEST(Alarm, ALaterTimeReplacesAnEarlierOne) {
  std::promise<TimePoint> rung;
  Alarm alarm([&] { rung.set_value(now()); });
  alarm.set(now() + milliseconds(30));
  const TimePoint at = now() + milliseconds(60);
  alarm.set(at);
  EXPECT_GE(rung.get_future().get(), at);
}

TEST(Alarm, ItsRingMaySetIt) {
  std::promise<void> third;
  int rings = 0;
  Alarm* self = nullptr;
  std::promise<void> ready;
  auto is_ready = ready.get_future();
  Alarm alarm([&] {
    if (rings == 0) is_ready.wait();
    if (++rings == 3) return third.set_value();
    self->set(now());
  });
  self = &alarm;
  ready.set_value();
  alarm.set(now());
  third.get_future().wait();
}

TEST(Alarm, AfterStopNothingRings) {
  int rings = 0;
  Alarm alarm([&] { ++rings; });
  alarm.set(now() + hours(1));
  alarm.stop();
  EXPECT_EQ(rings, 0);
}

}  // namespace
}  // namespace mesh
