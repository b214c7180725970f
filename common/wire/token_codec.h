#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/identity/mac.h"
#include "common/wire/segment.h"

namespace mesh::wire {

inline constexpr std::string_view kTokensRoute = "/mesh/v1/tokens";
inline constexpr std::string_view kTokensContentType = "application/x-meshnet-tokens";
inline constexpr std::string_view kAnswersContentType = "application/x-meshnet-answers";

struct ReceivedToken {
  TokenMessage message;
  std::string_view covered;  ///< what the MAC covers; a view into the body
  Mac mac;
};

struct SignedToken {
  TokenMessage message;
  SessionSecret secret;
};

std::string encode_tokens(std::span<const SignedToken> tokens);
StatusOr<std::vector<ReceivedToken>> parse_tokens(std::string_view body);
bool mac_fits(const ReceivedToken& received, const SessionSecret& secret);

/// The body of a frame's answer, one entry per segment in the frame's order.
std::string encode_segment_answers(std::span<const SegmentAnswer> answers);
StatusOr<std::vector<SegmentAnswer>> parse_segment_answers(std::string_view body);

/// The body of the answer to tokens, in their order.
std::string encode_token_answers(std::span<const TokenAnswer> answers);
StatusOr<std::vector<TokenAnswer>> parse_token_answers(std::string_view body);

}  // namespace mesh::wire
