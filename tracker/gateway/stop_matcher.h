#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mesh::gateway {

/// Finds the first stop string in a text that comes in pieces, wherever the pieces' borders lie. Text that
/// may still turn out to begin a stop string is held back; a stop string and what follows it are never given
/// out.
class StopMatcher {
 public:
  /// `stops`: none empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// The text that is certain after this piece; may be empty. After a match always empty.
  std::string push(std::string_view piece);
  /// What was held back, at the end of the text.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace mesh::gateway
