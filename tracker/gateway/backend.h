#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/text/chat_template.h"
#include "common/text/generation_defaults.h"
#include "common/text/tokenizer.h"
#include "common/wire/messages.h"

namespace mesh::gateway {

/// One model as clients see it. Immutable.
struct Model {
  std::string name;
  std::int64_t created_unix = 0;
  ModelIdentity identity;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  ///< null: the model has none, and cannot chat
  GenerationDefaults defaults;
  Position context = 0;     ///< most tokens of prompt and answer together
  std::uint32_t vocab = 0;  ///< ids lie in [0, vocab)
};

/// What to generate.
struct Ask {
  ModelIdentity identity;
  std::vector<TokenId> prompt;   ///< 1 … context - 1 ids
  std::uint32_t max_tokens = 0;  ///< of the answer, ≥ 1
  std::vector<TokenId> eos_ids;
  wire::Sampling sampling;
  bool length_asked = false;  ///< else max_tokens is a default, and may be lowered to what fits
  std::string request_id;     ///< for logs
  std::string principal;      ///< whose key asked; empty: there are no keys
};

struct Token {
  TokenId id = 0;
  bool is_eos = false;
};
enum class EndReason { kStop, kLength };
/// The last event of an answer. A status that is not OK is a failure; `reason` then says nothing.
struct End {
  Status status;
  EndReason reason = EndReason::kStop;
};
using Event = std::variant<Token, End>;

/// One running answer, pulled by one thread.
class Answer {
 public:
  virtual ~Answer() = default;
  /// The next event, waiting for it until `deadline`; nothing when that passed or after interrupt(). No event
  /// follows End.
  virtual std::optional<Event> next(TimePoint deadline) = 0;
  /// From any thread: next() returns nothing at once, now and from now on. Sets a flag and wakes, no more:
  /// the thread that pulls has to close().
  virtual void interrupt() = 0;
  /// From the thread that pulls: interrupts, and closes the session at every hop. So does the destructor.
  virtual void close() = 0;
};

/// What the gateway needs of the head. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const std::vector<Model>& models() const = 0;
  /// kUnavailable: some layer has no ready copy, or the tracker is draining. kInvalidArgument: it can never
  /// fit. Whatever else keeps it from running (docs/admission.md) is its answer's End: kResourceExhausted
  /// when too many wait or its wait is over.
  virtual StatusOr<std::shared_ptr<Answer>> ask(Ask ask) = 0;
};

}  // namespace mesh::gateway
