#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::engine {

enum class MemoryUseKind : std::uint8_t { kWeights, kCache, kWorking };

/// Bytes promised out of a fixed budget. Thread-safe; reservations may outlive the object that made them.
class MemoryBudget {
 public:
  struct Totals {
    std::uint64_t budget = 0;
    std::uint64_t used[3] = {0, 0, 0};  ///< by MemoryUseKind
    std::uint64_t promised = 0;         ///< to caches, those in `used` among them
    std::uint64_t free() const;         ///< for what is no cache
  };

  /// Gives its bytes back when destroyed. Empty when moved from or default-made.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();
    std::uint64_t bytes() const { return bytes_; }
    /// Takes the other's bytes, which are of the same kind and budget, or of no budget at all.
    void merge(Reservation&& other);
    /// Moves `bytes` of it into a reservation of their own.
    Reservation split(std::uint64_t bytes);

   private:
    friend class MemoryBudget;
    struct State;
    std::shared_ptr<State> state_;
    MemoryUseKind kind_ = MemoryUseKind::kWeights;
    std::uint64_t bytes_ = 0;
  };

  /// Engine::promise_caches(): caches reserve out of all promises together, everything else beside them.
  class Promise {
   public:
    explicit Promise(MemoryBudget& budget) : state_(budget.state_) {}
    ~Promise();
    Promise(const Promise&) = delete;
    Status resize(std::uint64_t bytes);

   private:
    const std::shared_ptr<Reservation::State> state_;
    std::uint64_t bytes_ = 0;
  };

  explicit MemoryBudget(std::uint64_t budget);
  /// kResourceExhausted, naming `what`, the needed and the free bytes, and the options that help.
  StatusOr<Reservation> reserve(MemoryUseKind kind, std::uint64_t bytes, std::string_view what);
  Totals totals() const;

 private:
  std::shared_ptr<Reservation::State> state_;
};

/// "1.5 GiB (1610612736 bytes)".
std::string byte_text(std::uint64_t bytes);

/// The refusal that reserve() gives.
Status not_enough_memory(std::string_view what, std::uint64_t needed, std::uint64_t free);

}  // namespace mesh::engine
