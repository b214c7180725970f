#include "tracker/gateway/respond.h"

#include <utility>

#include "common/json/error_fields.h"
#include "common/net/error_response.h"
#include "tracker/gateway/answer_text.h"

namespace mesh::gateway {
namespace {

/// The head ends every answer; this only bounds the wait for it.
constexpr auto kLongest = std::chrono::hours(24);
constexpr std::string_view kDone = "data: [DONE]\n\n";
constexpr std::string_view kPing = ": ping\n\n";

std::string event(std::string_view data) {
  std::string out = "data: ";
  out += data;
  out += "\n\n";
  return out;
}
std::string event(const json::Value& value) {
  return event(json::serialize(value));
}

Status client_left() {
  return error(StatusCode::kCancelled, "the client closed the connection");
}

/// Errors as clients know them.
Status as_client_error(const Status& status) {
  if (json::code_of(status)) return status;
  if (status.code() == StatusCode::kResourceExhausted) return json::with_code(status, "rate_limit_exceeded");
  if (status.code() == StatusCode::kUnavailable) return json::with_code(status, "service_unavailable");
  return status;
}

/// One answer on its way to one client.
class Exchange {
 public:
  Exchange(Job job, std::shared_ptr<Answer> answer, const RespondOptions& options)
      : job_(std::move(job)),
        answer_(std::move(answer)),
        options_(options),
        text_(job_.tokenizer, job_.stops) {
    began_ = SteadyClock().now();
  }

  /// Waits at most `patience` for the first event and keeps it.
  Status begin() {
    const auto first = answer_->next(SteadyClock().now() + options_.patience);
    if (first) pending_ = first;
    const End* end = first ? std::get_if<End>(&*first) : nullptr;
    return end != nullptr ? end->status : absl::OkStatus();
  }

  net::Response whole() {
    std::string content;
    while (true) {
      const auto next = take(SteadyClock().now() + kLongest);
      if (!next) return finish(net::error_response(client_left()));
      if (const End* end = std::get_if<End>(&*next)) {
        if (!end->status.ok()) {
          net::Response failed = net::error_response(as_client_error(end->status));
          return text_.tokens() == 0 ? failed : finish(std::move(failed));  // what never began is no answer
        }
        const auto rest = text_.finish();
        if (!rest.ok()) return finish(net::error_response(rest.status()));
        const EndReason reason = text_.stopped() ? EndReason::kStop : end->reason;
        return finish(net::Response::json(job_.shape->whole(content + *rest, reason, usage())));
      }
      const auto piece = push(std::get<Token>(*next));
      if (!piece.ok()) return finish(net::error_response(piece.status()));
      content += *piece;
      if (text_.stopped())
        return finish(net::Response::json(job_.shape->whole(content, EndReason::kStop, usage())));
    }
  }

  void stream(net::StreamWriter& writer) {
    run_stream(writer);
    close();
  }

 private:
  void run_stream(net::StreamWriter& writer) {
    const bool usage_wanted = job_.include_usage;
    if (const auto first = job_.shape->first_chunk(usage_wanted); first && !writer.write(event(*first)))
      return;
    while (true) {
      const TimePoint silent_until = SteadyClock().now() + options_.ping;
      const auto next = take(silent_until);
      if (!next) {
        const bool interrupted = SteadyClock().now() < silent_until;
        if (interrupted || writer.client_gone() || !writer.write(kPing)) return;
        continue;
      }
      EndReason reason = EndReason::kStop;
      if (const Token* token = std::get_if<Token>(&*next)) {
        const auto piece = push(*token);
        if (!piece.ok()) return fail(writer, piece.status());
        if (!piece->empty() && !writer.write(event(job_.shape->text_chunk(*piece, usage_wanted)))) return;
        if (!text_.stopped()) continue;
      } else {
        const End& end = std::get<End>(*next);
        if (!end.status.ok()) return fail(writer, end.status);
        const auto rest = text_.finish();
        if (!rest.ok()) return fail(writer, rest.status());
        if (!rest->empty() && !writer.write(event(job_.shape->text_chunk(*rest, usage_wanted)))) return;
        reason = text_.stopped() ? EndReason::kStop : end.reason;
      }
      if (!writer.write(event(job_.shape->last_chunk(reason, usage_wanted)))) return;
      if (usage_wanted && !writer.write(event(job_.shape->usage_chunk(usage())))) return;
      writer.write(kDone);
      return;
    }
  }

  std::optional<Event> take(TimePoint deadline) {
    if (pending_) return std::exchange(pending_, std::nullopt);
    return answer_->next(deadline);
  }

  StatusOr<std::string> push(const Token& token) {
    if (text_.tokens() == 0) first_token_ = SteadyClock().now() - began_;
    return text_.push(token);
  }

  Usage usage() const { return {job_.ask.prompt.size(), text_.tokens()}; }

  static void fail(net::StreamWriter& writer, const Status& status) {
    writer.write(event(net::error_body(as_client_error(status))));
  }

  net::Response finish(net::Response response) {
    close();
    return response;
  }

  void close() {
    answer_->close();
    if (options_.observer) options_.observer({job_.ask.prompt.size(), text_.tokens(), first_token_});
  }

  Job job_;
  std::shared_ptr<Answer> answer_;
  RespondOptions options_;
  AnswerText text_;
  std::optional<Event> pending_;
  TimePoint began_{};
  Duration first_token_{};
};

}  // namespace

net::Response respond(Backend& backend, Job job, net::Request& request, const RespondOptions& options) {
  auto answer = backend.ask(job.ask);
  if (!answer.ok()) return net::error_response(as_client_error(answer.status()));
  request.client->on_gone([answer = *answer] { answer->interrupt(); });
  const bool stream = job.stream;
  auto exchange = std::make_shared<Exchange>(std::move(job), *answer, options);
  if (!stream) return exchange->whole();

  if (const Status status = exchange->begin(); !status.ok()) {
    (*answer)->close();
    return net::error_response(as_client_error(status));
  }
  net::Response response;
  response.content_type = net::kEventStreamType;
  response.headers.add("Cache-Control", "no-cache");
  response.headers.add("X-Accel-Buffering", "no");
  response.stream = [exchange](net::StreamWriter& writer) { exchange->stream(writer); };
  return response;
}

}  // namespace mesh::gateway
