#include "node/agent/progress_line.h"
#include "node/agent/about_size.h"

#include <fmt/format.h>

namespace mesh {

std::optional<std::string> ProgressLine::note(std::string_view phase, std::uint64_t done, std::uint64_t total,
                                              TimePoint now) {
  if (phase != phase_ || done < last_done_) {
    phase_ = phase;
    began_ = now;
    first_done_ = done;
  }
  last_done_ = done;
  if (now - last_ < interval_ || total == 0) return std::nullopt;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  const double rate = seconds > 0 ? static_cast<double>(done - first_done_) / seconds : 0;
  std::string line = fmt::format("{} {}: {} % of {}", phase, what_, done * 100 / total, about_size(total));
  if (rate >= 1 && done <= total) {
    line += fmt::format(", {}/s, {:.0f} s left", about_size(static_cast<std::uint64_t>(rate)),
                        static_cast<double>(total - done) / rate);
  }
  return line;
}

}  // namespace mesh
