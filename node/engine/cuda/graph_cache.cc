#include "node/engine/cuda/graph_cache.h"

#include <algorithm>
#include <exception>

namespace mesh::engine::cuda {
namespace {

constexpr std::size_t kMostGraphs = 128;  // a shape has one for each of two slots

}  // namespace

void GraphCache::clear() {
  for (auto& [key, entry] : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
}

void GraphCache::drop_old() {
  for (auto at = entries_.begin(); at != entries_.end();) {
    if (at->second.owner.expired()) {
      if (at->second.graph != nullptr) cudaGraphExecDestroy(at->second.graph);
      at = entries_.erase(at);
    } else {
      ++at;
    }
  }
  while (entries_.size() >= kMostGraphs) {
    const auto oldest =
        std::ranges::min_element(entries_, {}, [](const auto& entry) { return entry.second.used; });
    if (oldest->second.graph != nullptr) cudaGraphExecDestroy(oldest->second.graph);
    entries_.erase(oldest);
  }
}

cudaGraphExec_t GraphCache::capture(cudaStream_t stream, const std::function<void()>& enqueue) {
  // Relaxed: loader threads go on allocating meanwhile.
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) return nullptr;
  bool complete = true;
  try {
    enqueue();
  } catch (const std::exception&) {
    complete = false;
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && complete) {
    if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) executable = nullptr;
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();  // a capture that fails is no error of the step
  return executable;
}

bool GraphCache::run(const GraphKey& key, const std::shared_ptr<const void>& owner, cudaStream_t stream,
                     const std::function<void()>& enqueue) {
  auto found = entries_.find(key);
  if (found == entries_.end() || found->second.owner.expired()) {
    drop_old();
    entries_.insert_or_assign(key, Entry{owner, nullptr, ++clock_, false});
    enqueue();
    return false;
  }
  Entry& entry = found->second;
  entry.used = ++clock_;
  if (entry.graph == nullptr && !entry.refused) {
    entry.graph = capture(stream, enqueue);
    entry.refused = entry.graph == nullptr;
  }
  if (entry.graph == nullptr || cudaGraphLaunch(entry.graph, stream) != cudaSuccess) {
    enqueue();
    return false;
  }
  return true;
}

}  // namespace mesh::engine::cuda
