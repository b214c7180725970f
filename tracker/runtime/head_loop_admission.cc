#include "tracker/runtime/head_loop.h"

// What the head's strand does for docs/admission.md.
namespace mesh::tracker {

std::optional<NoFit> HeadLoop::room_for(const gateway::Ask& ask) {
  const engine::MemoryUse memory = node_->memory();
  const std::uint64_t taken = memory.weight_bytes + memory.working_bytes;
  const std::uint64_t own = memory.budget_bytes > taken ? memory.budget_bytes - taken : 0;
  return mesh_.find_room(ask.identity, ask.prompt.size() + std::uint64_t{ask.max_tokens}, own);
}

Status HeadLoop::never_fits(const gateway::Ask& ask, const NoFit& no) {
  if (options_.admissions != nullptr) options_.admissions->on_refused("never_fits");
  return insufficient_memory(
      ask, no, no.node == options_.self ? "the tracker" : "node " + no.node.hex().substr(0, 16));
}

/// An answer whose length nobody asked for becomes as short as it must.
Status HeadLoop::fit(gateway::Ask& ask) {
  const auto no = room_for(ask);
  if (!no) return absl::OkStatus();
  if (ask.length_asked || no->most_tokens <= ask.prompt.size()) return never_fits(ask, *no);
  ask.max_tokens = static_cast<std::uint32_t>(no->most_tokens - ask.prompt.size());
  return absl::OkStatus();
}

void HeadLoop::admit() {
  while (const auto start = admissions_.next(now())) begin(*start);
}

bool HeadLoop::wait_again(const head::Finished& finished) {
  if (finished.status.code() != StatusCode::kResourceExhausted) return false;
  const gateway::Ask* const ask = admissions_.not_begun(finished.session);
  if (ask == nullptr) return false;
  without_room_.insert(finished.session);
  const auto no = room_for(*ask);
  if (no || draining_) {
    const Status status = no ? never_fits(*ask, *no) : stopping();
    admissions_.end(finished.session, {status, gateway::EndReason::kStop}, now());
    return true;
  }
  log_.with_session(finished.session)
      .with_request(ask->request_id)
      .debug("waits for room: {}", message_of(finished.status));
  admissions_.found_no_room(finished.session, finished.status, now());
  return true;
}

void HeadLoop::drain() {
  draining_ = true;
  post([this] { admissions_.end_waiting(stopping(), now()); });
}

}  // namespace mesh::tracker
