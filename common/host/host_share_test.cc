#include "common/host/host_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace mesh {
namespace {

using testing::HasSubstr;

class HostShareTest : public testing::Test {
 protected:
  HostShareTest() {
    std::string name = testing::TempDir() + "shareXXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~HostShareTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

/// Another process that holds a share until it is told to end.
class Neighbour {
 public:
  Neighbour(const std::filesystem::path& folder, std::uint64_t memory) {
    int ready[2];
    int end[2];
    EXPECT_EQ(::pipe(ready) + ::pipe(end), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(end[1]);
      const auto share = HostShare::enter(folder, {"neighbour", memory, std::nullopt});
      char byte = share.ok() ? 'y' : 'n';
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      while (::read(end[0], &byte, 1) > 0) {
      }
      ::_exit(0);  // like a kill: no destructor
    }
    ::close(ready[1]);
    ::close(end[0]);
    char byte = 'n';
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    ::close(ready[0]);
    end_ = end[1];
  }
  ~Neighbour() { kill(); }
  void kill() {
    if (end_ < 0) return;
    ::close(end_);
    end_ = -1;
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
  int end_ = -1;
};

TEST_F(HostShareTest, WhatANeighbourReservedIsNotReservedTwice) {
  const std::uint64_t all = *available_memory();
  Neighbour neighbour(folder_, all - (std::uint64_t{1} << 30));
  const auto refused = HostShare::enter(folder_, {"node", all / 2, std::nullopt});
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("neighbour"));
  EXPECT_THAT(refused.status().ToString(), HasSubstr("--memory"));
  neighbour.kill();
  EXPECT_TRUE(HostShare::enter(folder_, {"node", all / 2, std::nullopt}).ok());
}

TEST_F(HostShareTest, CoresAreDividedAmongThePrograms) {
  Neighbour neighbour(folder_, 1 << 20);
  const auto share = HostShare::enter(folder_, {"node", 1 << 20, std::nullopt});
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ((*share)->programs(), 2u);
  EXPECT_EQ((*share)->threads(), std::max(1u, usable_cores() / 2));
}

TEST_F(HostShareTest, TheDefaultLeavesAGibibyte) {
  const auto share = HostShare::enter(folder_, {"node", std::nullopt, 3});
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ((*share)->threads(), 3u);
  EXPECT_LE((*share)->memory() + HostShare::kLeave, *available_memory() + (std::uint64_t{256} << 20));
}

TEST_F(HostShareTest, WithoutASizeOnlyWhatIsClaimedCounts) {
  const auto share = HostShare::enter(folder_, {"node", std::nullopt, std::nullopt});
  ASSERT_TRUE(share.ok());
  const std::uint64_t all = *available_memory();
  Neighbour neighbour(folder_, all / 2);
  EXPECT_TRUE((*share)->reserve(all / 8).ok());
  EXPECT_EQ((*share)->reserve(all).code(), StatusCode::kResourceExhausted);
  neighbour.kill();
}

TEST_F(HostShareTest, AShareEndsWithItsOwner) {
  {
    ASSERT_TRUE(HostShare::enter(folder_, {"node", 1 << 20, std::nullopt}).ok());
  }
  const auto again = HostShare::enter(folder_, {"node", 1 << 20, std::nullopt});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->programs(), 1u);
}

}  // namespace
}  // namespace mesh
