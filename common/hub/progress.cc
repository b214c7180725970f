#include "common/hub/progress.h"

namespace mesh::hub {

void ProgressMeter::add(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  const Time now = std::chrono::steady_clock::now();
  if (now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  report(now);
}

void ProgressMeter::finish() {
  const std::lock_guard lock(mutex_);
  report(std::chrono::steady_clock::now());
}

void ProgressMeter::report(Time now) {
  if (!report_) return;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  report_({done_, total_, seconds > 0 ? static_cast<double>(done_) / seconds : 0});
}

}  // namespace mesh::hub
