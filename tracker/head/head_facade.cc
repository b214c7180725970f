#include "tracker/head/head_impl.h"

namespace mesh::head {

HeadTable::HeadTable(HeadOptions options, const SessionSecret& seed)
    : impl_(std::make_unique<Impl>(std::move(options), seed)) {}
HeadTable::~HeadTable() = default;

Status HeadTable::start(StartRequest request, TimePoint now) {
  return impl_->start(std::move(request), now);
}
void HeadTable::cancel(const SessionId& session, TimePoint now) {
  impl_->cancel(session, now);
}
void HeadTable::route_found(const SessionId& session, std::uint64_t request,
                            std::vector<wire::HopAddress> hops, TimePoint now) {
  impl_->route_found(session, request, std::move(hops), now);
}
void HeadTable::route_failed(const SessionId& session, std::uint64_t request, const Status& status,
                             TimePoint now) {
  impl_->route_failed(session, request, status, now);
}
void HeadTable::open_answered(const HopRef& ref, const StatusOr<wire::OpenReply>& reply, TimePoint now) {
  impl_->open_answered(ref, reply, now);
}
void HeadTable::cursor_answered(const HopRef& ref, const StatusOr<wire::CursorEntry>& reply, TimePoint now) {
  impl_->cursor_answered(ref, reply, now);
}
void HeadTable::renew_answered(const HopRef& ref, bool known, TimePoint now) {
  impl_->renew_answered(ref, known, now);
}
void HeadTable::close_answered(const HopRef& ref, const Status& status, TimePoint now) {
  impl_->close_answered(ref, status, now);
}
void HeadTable::ids_answered(const HopRef& ref, const wire::SegmentAnswer& answer, TimePoint now) {
  impl_->ids_answered(ref, answer, now);
}
std::optional<SessionSecret> HeadTable::secret(const SessionId& session, Generation generation) const {
  return impl_->secret(session, generation);
}
wire::TokenAnswer HeadTable::token(const wire::TokenMessage& message, TimePoint now) {
  return impl_->token(message, now);
}
void HeadTable::report(const NodeId& from, const wire::Report& report, TimePoint now) {
  impl_->report(from, report, now);
}
void HeadTable::node_lost(const NodeId& node, TimePoint now) {
  impl_->node_lost(node, now);
}
void HeadTable::tick(TimePoint now) {
  impl_->tick(now);
}
std::optional<TimePoint> HeadTable::next_wakeup() const {
  return impl_->next_wakeup();
}
std::vector<HeadAction> HeadTable::take_actions() {
  return impl_->take_actions();
}
HeadStats HeadTable::stats() const {
  return impl_->stats();
}
std::vector<wire::HopAddress> HeadTable::route_of(const SessionId& session) const {
  return impl_->route_of(session);
}

}  // namespace mesh::head
