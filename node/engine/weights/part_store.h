#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/base/ids.h"

namespace mesh::engine {

/// Parts that some shard holds, by model and name ("layer 3", a tensor's name). Keeps none alive.
/// Thread-safe. A name always means the same type of part.
class PartStore {
 public:
  template <class Part>
  std::shared_ptr<const Part> find(const ModelIdentity& model, const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = parts_.find({model, name});
    if (found == parts_.end()) return nullptr;
    return std::static_pointer_cast<const Part>(found->second.lock());
  }

  void put(const ModelIdentity& model, const std::string& name, const std::shared_ptr<const void>& part) {
    const std::lock_guard lock(mutex_);
    std::erase_if(parts_, [](const auto& entry) { return entry.second.expired(); });
    parts_[{model, name}] = part;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<ModelIdentity, std::string>, std::weak_ptr<const void>> parts_;
};

}  // namespace mesh::engine
