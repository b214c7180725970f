#include "node/agent/agent_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace mesh {
namespace {

class AgentStateTest : public testing::Test {
 protected:
  AgentStateTest() {
    std::string name = testing::TempDir() + "stateXXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~AgentStateTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(AgentStateTest, StartsCountUpAndTheEpochStays) {
  auto first = AgentStateFile::begin_start(folder_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->start(), 1u);
  EXPECT_EQ(first->highest_epoch(), Epoch{0});
  ASSERT_TRUE(first->store_epoch(Epoch{12}).ok());
  const auto second = AgentStateFile::begin_start(folder_);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->start(), 2u);
  EXPECT_EQ(second->highest_epoch(), Epoch{12});
}

TEST_F(AgentStateTest, ADamagedFileIsSaidWithTheFixAndNotOverwritten) {
  std::ofstream(folder_ / "agent.json") << "{\"start\": 4";
  EXPECT_THAT(AgentStateFile::begin_start(folder_).status().ToString(), testing::HasSubstr("node.key"));
}

}  // namespace
}  // namespace mesh
