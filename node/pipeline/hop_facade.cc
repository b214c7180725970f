#include "node/pipeline/hop_impl.h"

namespace mesh::pipeline {

HopTable::HopTable(HopOptions options) : HopTable(options, HopFaults{}) {}
HopTable::HopTable(HopOptions options, const HopFaults& faults)
    : impl_(std::make_unique<Impl>(options, faults)) {}
HopTable::~HopTable() = default;

wire::OpenReply HopTable::open(const wire::OpenRequest& request, const std::optional<ShardView>& shard,
                               TimePoint now) {
  return impl_->open(request, shard, now);
}
void HopTable::close(const wire::CloseRequest& request, TimePoint now) {
  impl_->close(request, now);
}
wire::CursorsReply HopTable::cursors(const wire::CursorsRequest& request) const {
  return impl_->cursors(request);
}
wire::RenewReply HopTable::renew(const wire::RenewRequest& request, TimePoint now) {
  return impl_->renew(request, now);
}
void HopTable::set_cache_bytes(std::uint64_t bytes) {
  impl_->set_cache_bytes(bytes);
}
std::uint64_t HopTable::promised_bytes() const {
  return impl_->promised_bytes();
}
std::uint64_t HopTable::wanted_bytes() const {
  return impl_->wanted_bytes();
}
void HopTable::withdraw(const wire::HopKey& hop) {
  impl_->withdraw(hop);
}
bool HopTable::waits_for_room() const {
  return impl_->waits_for_room();
}
void HopTable::cache_moved(const CacheMoved& moved) {
  impl_->cache_moved(moved);
}
void HopTable::set_draining(bool draining) {
  impl_->draining = draining;
}
std::optional<SessionKeys> HopTable::keys(const wire::HopKey& hop) const {
  return impl_->keys(hop);
}
wire::SegmentAnswer HopTable::accept(wire::Segment segment, TimePoint now) {
  return impl_->accept(std::move(segment), now);
}
std::optional<StepWork> HopTable::next_step(TimePoint now) {
  return impl_->next_step(now);
}
std::optional<TimePoint> HopTable::ahead_from() const {
  return impl_->ahead_from();
}
void HopTable::step_done(StepOutput output, TimePoint now) {
  impl_->step_done(std::move(output), now);
}
std::optional<OutFrame> HopTable::next_frame(TimePoint now) {
  return impl_->next_frame(now);
}
void HopTable::frame_answered(std::uint64_t id, const std::vector<wire::SegmentAnswer>& answers,
                              TimePoint now) {
  impl_->frame_answered(id, answers, now);
}
void HopTable::frame_failed(std::uint64_t id, const Status& status, TimePoint now) {
  impl_->frame_failed(id, status, now);
}
std::optional<OutAsk> HopTable::next_ask(TimePoint now) {
  return impl_->next_ask(now);
}
void HopTable::ask_answered(std::uint64_t id, const wire::CursorsReply& reply, TimePoint now) {
  impl_->ask_answered(id, reply, now);
}
void HopTable::ask_failed(std::uint64_t id, TimePoint now) {
  impl_->ask_failed(id, now);
}
std::optional<OutTokens> HopTable::next_tokens(TimePoint now) {
  return impl_->next_tokens(now);
}
void HopTable::tokens_answered(std::uint64_t id, const std::vector<wire::TokenAnswer>& answers,
                               TimePoint now) {
  impl_->tokens_answered(id, answers, now);
}
void HopTable::tokens_failed(std::uint64_t id, TimePoint now) {
  impl_->tokens_failed(id, now);
}
std::optional<OutReport> HopTable::next_report(TimePoint now) {
  return impl_->next_report(now);
}
void HopTable::report_answered(std::uint64_t id) {
  impl_->report_answered(id);
}
void HopTable::report_failed(std::uint64_t id, TimePoint now) {
  impl_->report_failed(id, now);
}
void HopTable::tick(TimePoint now) {
  impl_->tick(now);
}
std::optional<TimePoint> HopTable::next_wakeup() const {
  return impl_->next_wakeup();
}
std::vector<CacheOrder> HopTable::take_orders() {
  return impl_->take_orders();
}
std::uint64_t HopTable::shrink_prefixes(std::uint64_t bytes) {
  return impl_->shrink_prefixes(bytes);
}
void HopTable::prefix_lost(PrefixBlockId id) {
  impl_->prefix_lost(id);
}
HopStats HopTable::stats() const {
  return impl_->stats();
}

}  // namespace mesh::pipeline
