#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/net/message.h"
#include "tracker/gateway/backend.h"
#include "tracker/gateway/shapes.h"

namespace mesh::gateway {

/// Figures of one answer, for metrics.
struct AnswerFigures {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t answer_tokens = 0;
  Duration first_token{};  ///< from asking to the first token; 0: none came
};

struct RespondOptions {
  Duration ping = std::chrono::seconds(15);  ///< between comments of a silent stream
  Duration patience =
      std::chrono::seconds(10);  ///< a stream begins without a token after this: its status is then 200
  std::function<void(const AnswerFigures&)> observer;
};

struct Job {
  Ask ask;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::string> stops;
  bool stream = false;
  bool include_usage = false;
  std::shared_ptr<const Shape> shape;
};

/// Asks the backend and answers as JSON or as server-sent events. The session is closed when the client
/// leaves, when a stop string is met and when the answer ends. What fails before a stream has begun is an
/// HTTP error; later it is an event {"error": …}, and no [DONE] follows.
net::Response respond(Backend& backend, Job job, net::Request& request, const RespondOptions& options);

}  // namespace mesh::gateway
