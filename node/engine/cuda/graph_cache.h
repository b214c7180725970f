#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace mesh::engine::cuda {

/// What a captured graph depends on besides the buffers.
struct GraphKey {
  const void* owner = nullptr;
  std::uint32_t first_layer = 0, layers = 0;
  int slot = 0;  ///< whose tables are read and whose results written
  int part = 0;  ///< layers, with a head behind them or not, or a head alone
  int rows = 0, tiles = 0, splits = 0;
  int head_rows = 0;
  bool head_in_place = false;

  auto operator<=>(const GraphKey&) const = default;
};

/// Graphs of launch sequences: the first run of a key launches, the second one captures, later ones replay.
/// The least recently used graph goes when there are too many, and all of an owner that is gone.
class GraphCache {
 public:
  ~GraphCache() { clear(); }
  void clear();

  /// Runs `enqueue` on `stream`, or the graph that was made of it. True: as a graph. A capture that fails is
  /// not tried again.
  bool run(const GraphKey& key, const std::shared_ptr<const void>& owner, cudaStream_t stream,
           const std::function<void()>& enqueue);

 private:
  struct Entry {
    std::weak_ptr<const void> owner;
    cudaGraphExec_t graph = nullptr;
    std::uint64_t used = 0;
    bool refused = false;
  };
  void drop_old();
  cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& enqueue);

  std::map<GraphKey, Entry> entries_;
  std::uint64_t clock_ = 0;
};

}  // namespace mesh::engine::cuda
