#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace mesh::hub {

/// A folder of its own for each test, removed afterwards.
class TestFolder : public testing::Test {
 protected:
  TestFolder() {
    const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string(info->test_suite_name()) + "." + info->name() + "." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    folder_ = std::filesystem::canonical(folder_);
  }
  ~TestFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::filesystem::path& name, std::string_view text) const {
    const auto path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  static std::string read_file(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static std::filesystem::path golden(std::string_view name) {
    return std::filesystem::path(MESH_SOURCE_DIR) / "tests/golden/safetensors" / name;
  }

  std::filesystem::path folder_;
};

}  // namespace mesh::hub
