#include "node/engine/weights/part_tasks.h"

#include <atomic>
#include <utility>

namespace mesh::engine {
namespace {

template <class Part>
std::shared_ptr<Part> made(MemoryBudget::Reservation memory) {
  auto part = std::make_shared<Part>();
  part->memory = std::move(memory);
  return part;
}

const NormPlan* pointer(const std::optional<NormPlan>& plan) {
  return plan ? &*plan : nullptr;
}

}  // namespace

void PartTasks::add(const MissingPart& part, MemoryBudget::Reservation memory,
                    const std::function<Status()>& wait) {
  const std::size_t first = tasks_.size();
  std::visit([&](const auto& what) { add_part(part.name, what, std::move(memory)); }, part.what);
  for (std::size_t i = first; i < tasks_.size(); ++i) tasks_[i].wait = wait;
}

void PartTasks::add_part(const std::string& name, const TableTarget& table,
                         MemoryBudget::Reservation memory) {
  const auto part = made<MatrixPart>(std::move(memory));
  add_matrix(name, table.plan, table.use, part->matrix, keeper(name, part, table.targets, 1));
}

void PartTasks::add_part(const std::string& name, const LayerTarget& layer,
                         MemoryBudget::Reservation memory) {
  const auto part = made<LayerPart>(std::move(memory));
  const LayerPlan& plan = *layer.plan;
  const std::pair<const MatrixPlan*, LinearPtr*> matrices[] = {{&plan.qkv, &part->qkv},
                                                               {&plan.attention_out, &part->attention_out},
                                                               {&plan.mlp_in, &part->mlp_in},
                                                               {&plan.mlp_out, &part->mlp_out}};
  const Keep keep = keeper(name, part, {layer.target}, static_cast<int>(std::size(matrices)) + 1);
  for (const auto& [matrix, to] : matrices) add_matrix(name, *matrix, MatrixUse::kLayer, *to, keep);
  add_norms(name,
            {{&plan.attention_norm, &part->attention_norm},
             {pointer(plan.query_norm), &part->query_norm},
             {pointer(plan.key_norm), &part->key_norm},
             {&plan.mlp_norm, &part->mlp_norm}},
            keep);
}

void PartTasks::add_part(const std::string& name, const NormTarget& norm, MemoryBudget::Reservation memory) {
  const auto part = made<NormPart>(std::move(memory));
  add_norms(name, {{norm.plan, &part->norm}}, keeper(name, part, {norm.target}, 1));
}

template <class Part>
PartTasks::Keep PartTasks::keeper(const std::string& name, const std::shared_ptr<Part>& part,
                                  const std::vector<std::shared_ptr<const Part>*>& targets, int tasks) {
  return [this, name, part, targets, left = std::make_shared<std::atomic<int>>(tasks)] {
    if (--*left != 0) return;
    for (auto* target : targets) *target = part;
    store_.put(model_, name, part);
    told_();
  };
}

void PartTasks::add_matrix(const std::string& name, const MatrixPlan& plan, MatrixUse use, LinearPtr& to,
                           const Keep& keep) {
  const auto matrix = std::make_shared<MatrixReader>(reader_, plan, use);
  for (std::size_t piece = 0; piece < matrix->pieces(); ++piece) {
    tasks_.push_back({name, [matrix, piece, &to, keep]() -> Status {
                        MESH_ASSIGN_OR_RETURN(LinearPtr made, matrix->run(piece));
                        if (made == nullptr) return absl::OkStatus();
                        to = std::move(made);
                        keep();
                        return absl::OkStatus();
                      }});
  }
}

void PartTasks::add_norms(const std::string& name, const NormList& norms, const Keep& keep) {
  const auto run = [this, norms, keep]() -> Status {
    for (const auto& [plan, to] : norms) {
      if (plan == nullptr) continue;
      MESH_ASSIGN_OR_RETURN(*to, reader_.norm(*plan));
    }
    keep();
    return absl::OkStatus();
  };
  tasks_.push_back({name, run});
}

}  // namespace mesh::engine
