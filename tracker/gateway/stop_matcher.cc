#include "tracker/gateway/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace mesh::gateway {
namespace {

/// Length of the longest end of `text` that begins `stop` without being the whole of it.
std::size_t open_end(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

std::string StopMatcher::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string certain = held_.substr(0, first);
    held_.clear();
    return certain;
  }
  std::size_t open = 0;
  for (const std::string& stop : stops_) open = std::max(open, open_end(held_, stop));
  // A held end may lie inside a character; whole characters alone go out.
  std::size_t cut = held_.size() - open;
  while (cut > 0 && cut < held_.size() && (static_cast<unsigned char>(held_[cut]) & 0xc0) == 0x80) --cut;
  std::string certain = held_.substr(0, cut);
  held_.erase(0, cut);
  return certain;
}

std::string StopMatcher::finish() {
  return stopped_ ? std::string() : std::exchange(held_, {});
}

}  // namespace mesh::gateway
