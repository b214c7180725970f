#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/safetensors/writer.h"
#include "node/engine/testing/golden.h"

namespace mesh::engine::testing {

struct EditableTensor {
  safetensors::Dtype dtype;
  std::vector<std::uint64_t> shape;
  std::string data;
};
using Tensors = std::map<std::string, EditableTensor>;

/// A copy of a golden checkpoint whose tensors a test changes.
class EditedCheckpoint {
 public:
  /// `name`: of a folder of tests/golden/checkpoints, or a whole path.
  EditedCheckpoint(const std::string& name, const std::function<void(Tensors&)>& edit) {
    const std::filesystem::path source = std::filesystem::path(golden_folder("")) / name;
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() / fmt::format("mesh-engine-{}-{}", test, ::getpid());
    std::filesystem::create_directories(folder_);
    std::filesystem::copy_file(source / "config.json", folder_ / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const auto original = open_checkpoint(source.string());
    Tensors tensors;
    for (const auto& [tensor, file] : original->tensor_files()) {
      const auto info = *original->info(tensor);
      tensors[tensor] = {info.dtype, info.shape, std::string(*original->tensor(tensor))};
    }
    edit(tensors);
    std::vector<safetensors::NewTensor> list;
    for (const auto& [tensor, value] : tensors)
      list.push_back({tensor, value.dtype, value.shape, value.data});
    EXPECT_TRUE(safetensors::write_safetensors(folder_ / "model.safetensors", list).ok());
  }
  ~EditedCheckpoint() { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace mesh::engine::testing
