#include "common/hub/progress.h"

namespace mesh::hub {

Status ProgressMeter::add(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  const Time now = std::chrono::steady_clock::now();
  if (!cancelled_ && now - last_ >= std::chrono::milliseconds(100)) {
    last_ = now;
    cancelled_ = !report(now);
  }
  if (!cancelled_) return absl::OkStatus();
  return error(StatusCode::kCancelled, "cancelled after {} of {} bytes", done_, total_);
}

void ProgressMeter::finish() {
  const std::lock_guard lock(mutex_);
  report(std::chrono::steady_clock::now());
}

bool ProgressMeter::report(Time now) {
  const double seconds = std::chrono::duration<double>(now - start_).count();
  return report_({done_, total_, seconds > 0 ? static_cast<double>(done_) / seconds : 0});
}

}  // namespace mesh::hub
