#include "node/runtime/local_head.h"

#include <utility>

namespace mesh {

LocalHead::LocalHead(HeadSink& sink, LaneEvents& events) : sink_(sink), events_(events) {
  thread_ = std::thread([this] { loop(); });
}

void LocalHead::stop() {
  queue_.close();
  if (thread_.joinable()) thread_.join();
}

void LocalHead::loop() {
  while (auto item = queue_.pop()) {
    if (const auto* tokens = std::get_if<pipeline::OutTokens>(&*item)) {
      std::vector<wire::TokenMessage> messages;
      messages.reserve(tokens->tokens.size());
      for (const pipeline::OutToken& one : tokens->tokens) messages.push_back(one.message);
      events_.tokens_done(tokens->id, sink_.on_tokens(messages));
    } else if (const auto* report = std::get_if<pipeline::OutReport>(&*item)) {
      sink_.on_report(report->report);
      events_.report_done(report->id, absl::OkStatus());
    } else {
      sink_.on_cursor(std::get<wire::CursorEntry>(*item));
    }
  }
}

}  // namespace mesh
