#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "node/engine/weights/load_crew.h"
#include "node/engine/weights/matrix_reader.h"
#include "node/engine/weights/part_reader.h"
#include "node/engine/weights/part_store.h"
#include "node/engine/weights/parts.h"

namespace mesh::engine {

/// Where parts go: into the shard that is being made.
struct TableTarget {
  MatrixPlan plan;
  MatrixUse use;
  std::vector<std::shared_ptr<const MatrixPart>*> targets;
};
struct LayerTarget {
  const LayerPlan* plan;
  std::shared_ptr<const LayerPart>* target;
};
struct NormTarget {
  const NormPlan* plan;
  std::shared_ptr<const NormPart>* target;
};

/// A part that has to be read.
struct MissingPart {
  std::string name;
  std::uint64_t bytes = 0;  ///< of memory
  std::variant<TableTarget, LayerTarget, NormTarget> what;
  std::vector<const TensorSource*> sources;
};

/// The tasks that read missing parts: one for each piece of a matrix, one for a layer's norms, so that parts
/// are ready one after another in the order in which they were added. A part goes to its targets and into the
/// store when the last of its tasks has ended. Parts, reader and store outlive it.
class PartTasks {
 public:
  /// `told` hears, on the thread that ended it, that one more part is in the store.
  PartTasks(const PartReader& reader, PartStore& store, const ModelIdentity& model,
            std::function<void()> told)
      : reader_(reader), store_(store), model_(model), told_(std::move(told)) {}
  PartTasks(const PartTasks&) = delete;

  /// `wait`: until the part's bytes are on this machine; maybe empty.
  void add(const MissingPart& part, MemoryBudget::Reservation memory, const std::function<Status()>& wait);
  const std::vector<LoadTask>& list() const { return tasks_; }

 private:
  using Keep = std::function<void()>;
  using NormList = std::vector<std::pair<const NormPlan*, NormWeights*>>;
  void add_part(const std::string& name, const TableTarget& table, MemoryBudget::Reservation memory);
  void add_part(const std::string& name, const LayerTarget& layer, MemoryBudget::Reservation memory);
  void add_part(const std::string& name, const NormTarget& norm, MemoryBudget::Reservation memory);
  template <class Part>
  Keep keeper(const std::string& name, const std::shared_ptr<Part>& part,
              const std::vector<std::shared_ptr<const Part>*>& targets, int tasks);
  void add_matrix(const std::string& name, const MatrixPlan& plan, MatrixUse use, LinearPtr& to,
                  const Keep& keep);
  void add_norms(const std::string& name, const NormList& norms, const Keep& keep);

  const PartReader& reader_;
  PartStore& store_;
  const ModelIdentity& model_;
  const std::function<void()> told_;
  std::vector<LoadTask> tasks_;
};

}  // namespace mesh::engine
