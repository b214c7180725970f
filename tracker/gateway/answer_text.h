#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/text/stream_decoder.h"
#include "tracker/gateway/backend.h"
#include "tracker/gateway/stop_matcher.h"

namespace mesh::gateway {

/// The text of one answer as its tokens come: whole characters, without end tokens, cut before the first stop
/// string.
class AnswerText {
 public:
  AnswerText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops);

  /// Text that is certain after this token; often empty.
  StatusOr<std::string> push(const Token& token);
  /// The rest, at the end. Call once, also after stopped().
  StatusOr<std::string> finish();
  /// A stop string was met: nothing more will come.
  bool stopped() const { return matcher_.stopped(); }
  std::uint32_t tokens() const { return tokens_; }

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::uint32_t tokens_ = 0;
};

}  // namespace mesh::gateway
