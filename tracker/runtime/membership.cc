#include "tracker/runtime/membership.h"

#include "common/identity/random.h"

namespace mesh::tracker {
namespace {

constexpr auto kLongPlan = std::chrono::milliseconds(10);
constexpr auto kWatch = std::chrono::milliseconds(200);

/// Ranges and states; progress is not worth a write to disk.
std::vector<wire::ShardStatus> without_progress(std::vector<wire::ShardStatus> shards) {
  for (wire::ShardStatus& shard : shards) {
    shard.bytes_done = shard.bytes_total = 0;
    shard.ready = {};
  }
  return shards;
}

}  // namespace

Membership::Membership(Options options, std::unique_ptr<MembershipStore> store,
                       std::shared_ptr<const KeyPair> identity, log::Logger log)
    : options_(std::move(options)),
      identity_(std::move(identity)),
      log_(std::move(log)),
      store_(std::move(store)),
      registry_(options_.registry),
      book_({options_.catalogue, options_.profiles, options_.head_layers, options_.self, options_.head_url}),
      desk_(options_.profiles, options_.head_layers, options_.desk, random_u64()) {}

Status Membership::start() {
  {
    const std::lock_guard lock(mutex_);
    MESH_ASSIGN_OR_RETURN(const std::vector<StoredNode> nodes, store_->nodes());
    for (const StoredNode& node : nodes) {
      auto facts = wire::parse_join(node.join_json);
      if (!facts.ok()) {
        log_.warning("forgot node {}: {}", node.id.hex().substr(0, 16), message_of(facts.status()));
        continue;
      }
      stored_[node.id] = without_progress(facts->shards);
      registry_.restore(node.id, node.public_key, *std::move(facts), clock_.now());
    }
    book_.publish(registry_);
    if (!nodes.empty()) log_.info("{} nodes are remembered and awaited for one lease", nodes.size());
    reconsider();
  }
  thread_ = std::thread([this] { watch(); });
  return absl::OkStatus();
}

void Membership::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Membership::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    stopping_.wait_for(lock, kWatch, [&] { return stop_; });
    if (stop_) return;
    const bool suspected = registry_.suspects_itself();
    const std::vector<NodeId> lost = registry_.expire(clock_.now());
    book_.publish(registry_);
    for (const NodeId& node : lost)
      log_.warning("node {} fell silent; its lease ended", node.hex().substr(0, 16));
    if (!suspected && registry_.suspects_itself()) {
      log_.error(
          "more than a third of the nodes fell silent at once: this tracker suspects its own network and "
          "orders "
          "nothing new until half of them are back");
    }
    reconsider();
    if (lost.empty() || !options_.on_lost) continue;
    lock.unlock();
    for (const NodeId& node : lost) options_.on_lost(node);
    lock.lock();
  }
}

void Membership::reconsider() {
  const TimePoint began = clock_.now();
  if (began < next_plan_) return;
  const bool changed = desk_.consider(registry_, began);
  const Duration took = clock_.now() - began;
  if (took > kLongPlan) next_plan_ = clock_.now() + 10 * took;
  if (!changed) return;
  const auto epoch = store_->next_epoch(registry_.highest_epoch());
  if (!epoch.ok()) {
    // Without a stored epoch nothing may be ordered; the next change tries again.
    log_.error("cannot store the next epoch, so nothing is ordered: {}", message_of(epoch.status()));
    return;
  }
  registry_.given_out(*epoch);
  desk_.adopt(*epoch);
  const Plan& plan = desk_.plan();
  log_.info("plan of epoch {}: {} assignments, {} steps, {} gaps", plan.epoch.value, plan.target.size(),
            plan.steps.size(), plan.gaps.size());
  std::set<std::string> notes(plan.notes.begin(), plan.notes.end());
  for (const Gap& gap : plan.gaps) {
    const auto* entry = entry_of(gap.model);
    notes.insert(fmt::format("layers {} of {} have no node: {}", to_string(gap.layers),
                             entry == nullptr ? gap.model.hex() : entry->name, gap.reason));
  }
  for (const std::string& note : notes) {
    if (!noted_.contains(note)) log_.warning("{}", note);
  }
  noted_ = std::move(notes);
  log_events();
}

void Membership::log_events() {
  for (const DirectiveEvent& event : desk_.take_events()) {
    const wire::Directive& directive = event.directive;
    const bool load = directive.kind == wire::DirectiveKind::kLoadShard;
    log_.info("{} layers {} at node {}: {}", load ? "LOAD_SHARD" : "DROP_SHARD", to_string(directive.layers),
              directive.node.hex().substr(0, 16), event.outcome);
    StoredDirective line;
    line.id = directive.id.hex();
    line.node = directive.node;
    line.epoch = directive.epoch;
    line.body = wire::to_json(directive);
    line.outcome = event.outcome;
    line.unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
    if (const Status stored = store_->log_directive(line); !stored.ok()) {
      log_.error("the directive log cannot be written: {}", message_of(stored));
    }
  }
}

void Membership::remember(const NodeId& node) {
  const NodeRecord* record = registry_.find(node);
  if (record == nullptr) return;
  auto shards = without_progress(record->facts.shards);
  const auto known = stored_.find(node);
  if (known != stored_.end() && known->second == shards) return;
  if (const Status stored = store_->put_node({node, record->public_key, wire::to_json(record->facts)});
      !stored.ok()) {
    log_.error("node {} cannot be stored: {}", node.hex().substr(0, 16), message_of(stored));
    return;
  }
  stored_[node] = std::move(shards);
}

const wire::CatalogueEntry* Membership::entry_of(const ModelIdentity& identity) const {
  for (const wire::CatalogueEntry& entry : options_.catalogue) {
    if (entry.model == identity) return &entry;
  }
  return nullptr;
}

Coverage Membership::coverage_of(const ModelIdentity& identity) const {
  const wire::CatalogueEntry* entry = entry_of(identity);
  Coverage coverage = registry_.coverage(identity, entry == nullptr ? 0 : entry->layer_count);
  const auto own = options_.head_layers.find(identity);
  if (own != options_.head_layers.end() && own->second > 0)
    coverage.add_ready({options_.self, {0, own->second}});
  return coverage;
}

void Membership::trust_again() {
  const std::lock_guard lock(mutex_);
  registry_.trust_again();
  reconsider();
}

Membership::Figures Membership::figures() const {
  const std::lock_guard lock(mutex_);
  Figures figures;
  figures.epoch = desk_.plan().epoch;
  for (const auto& [id, record] : registry_.nodes()) {
    const bool alive = record.presence == NodePresence::kAlive;
    ++(!alive ? figures.silent : record.draining ? figures.draining : figures.alive);
  }
  return figures;
}

}  // namespace mesh::tracker
