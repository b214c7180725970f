#include "node/engine/weights/memory_budget.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace mesh::engine {
namespace {

/// Options of the programs that hold layers.
constexpr std::string_view kMoreMemory =
    "give more with --memory, or run fewer layers: --head-layers at a tracker, --max-node-layers for its "
    "nodes, --shard-start and --shard-end at a node alone";

}  // namespace

struct MemoryBudget::Reservation::State {
  std::mutex mutex;
  Totals totals;

  void give_back(MemoryUseKind kind, std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    totals.used[static_cast<std::size_t>(kind)] -= bytes;
  }
};

std::uint64_t MemoryBudget::Totals::free() const {
  const std::uint64_t caches = used[static_cast<std::size_t>(MemoryUseKind::kCache)];
  const std::uint64_t all = used[0] + used[1] + used[2] - caches + std::max(caches, promised);
  return all >= budget ? 0 : budget - all;
}

MemoryBudget::Promise::~Promise() {
  const std::lock_guard lock(state_->mutex);
  state_->totals.promised -= bytes_;
}

Status MemoryBudget::Promise::resize(std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  Totals without = state_->totals;
  without.promised -= bytes_;
  without.used[static_cast<std::size_t>(MemoryUseKind::kCache)] = 0;
  const std::uint64_t most = without.free();
  if (bytes > bytes_ && bytes > most) return not_enough_memory("caches", bytes, most);
  state_->totals.promised = without.promised + bytes;
  bytes_ = bytes;
  return absl::OkStatus();
}

MemoryBudget::Reservation::Reservation(Reservation&& other) noexcept
    : state_(std::move(other.state_)), kind_(other.kind_), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryBudget::Reservation& MemoryBudget::Reservation::operator=(Reservation&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(kind_, other.kind_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryBudget::Reservation::~Reservation() {
  if (state_) state_->give_back(kind_, bytes_);
}

MemoryBudget::Reservation MemoryBudget::Reservation::split(std::uint64_t bytes) {
  MESH_CHECK(bytes <= bytes_);
  Reservation part;
  part.state_ = state_;
  part.kind_ = kind_;
  part.bytes_ = bytes;
  bytes_ -= bytes;
  return part;
}

void MemoryBudget::Reservation::merge(Reservation&& other) {
  if (!state_) {
    *this = std::move(other);
    return;
  }
  MESH_CHECK(!other.state_ || (other.state_ == state_ && other.kind_ == kind_));
  bytes_ += std::exchange(other.bytes_, 0);
}

MemoryBudget::MemoryBudget(std::uint64_t budget) : state_(std::make_shared<Reservation::State>()) {
  state_->totals.budget = budget;
}

StatusOr<MemoryBudget::Reservation> MemoryBudget::reserve(MemoryUseKind kind, std::uint64_t bytes,
                                                          std::string_view what) {
  const std::lock_guard lock(state_->mutex);
  Totals seen = state_->totals;
  if (kind == MemoryUseKind::kCache) seen.promised = 0;
  if (bytes > seen.free()) return not_enough_memory(what, bytes, seen.free());
  state_->totals.used[static_cast<std::size_t>(kind)] += bytes;
  Reservation reservation;
  reservation.state_ = state_;
  reservation.kind_ = kind;
  reservation.bytes_ = bytes;
  return reservation;
}

MemoryBudget::Totals MemoryBudget::totals() const {
  const std::lock_guard lock(state_->mutex);
  return state_->totals;
}

std::string byte_text(std::uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? fmt::format("{:.1f} MiB ({} bytes)", mib, bytes)
                    : fmt::format("{:.2f} GiB ({} bytes)", mib / 1024, bytes);
}

Status not_enough_memory(std::string_view what, std::uint64_t needed, std::uint64_t free) {
  return error(StatusCode::kResourceExhausted, "not enough memory for {}: needed {}, free {}; {}", what,
               byte_text(needed), byte_text(free), kMoreMemory);
}

}  // namespace mesh::engine
