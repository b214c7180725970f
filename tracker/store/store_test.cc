#include "tracker/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

namespace mesh::tracker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "meshnet-store-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    path = (folder / "tracker.db").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Store open() {
    auto store = Store::open(path);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  std::filesystem::path folder;
  std::string path;
};

NodeId node(std::uint8_t number) {
  NodeId id;
  id.bytes[0] = number;
  return id;
}

TEST_F(StoreTest, EpochIsOnDiskBeforeItIsGivenOut) {
  EXPECT_EQ(*open().next_epoch({0}), Epoch{1});
  EXPECT_EQ(*open().next_epoch({0}), Epoch{2});
  EXPECT_EQ(*open().epoch(), Epoch{2});
}

TEST_F(StoreTest, EpochStartsAboveWhatNodesHaveSeen) {
  Store store = open();
  EXPECT_EQ(*store.next_epoch({40}), Epoch{41});
  EXPECT_EQ(*store.next_epoch({7}), Epoch{42});
}

TEST_F(StoreTest, ValuesKeepAllBytes) {
  const std::string secret("\0\xff\x01", 3);
  ASSERT_TRUE(open().set_value("identity", secret).ok());
  EXPECT_EQ(*open().value("identity"), secret);
  EXPECT_EQ(*open().value("never set"), "");
}

TEST_F(StoreTest, NodesAreOnePerIdentity) {
  {
    Store store = open();
    ASSERT_TRUE(store.put_node({node(2), std::string(32, 'b'), "{}"}).ok());
    ASSERT_TRUE(store.put_node({node(1), std::string(32, 'a'), "{}"}).ok());
    ASSERT_TRUE(store.put_node({node(1), std::string(32, 'a'), "{\"x\":1}"}).ok());
  }
  Store store = open();
  EXPECT_THAT(*store.nodes(), ElementsAre(StoredNode{node(1), std::string(32, 'a'), "{\"x\":1}"},
                                          StoredNode{node(2), std::string(32, 'b'), "{}"}));
  ASSERT_TRUE(store.erase_node(node(1)).ok());
  EXPECT_EQ(store.nodes()->size(), 1u);
}

TEST_F(StoreTest, DirectiveLogIsNewestFirst) {
  Store store = open();
  ASSERT_TRUE(store.log_directive({"aa", node(1), {3}, "{}", "issued", 10}).ok());
  ASSERT_TRUE(store.log_directive({"aa", node(1), {3}, "{}", "done", 20}).ok());
  EXPECT_THAT(*store.directives(1), ElementsAre(StoredDirective{"aa", node(1), {3}, "{}", "done", 20}));
  EXPECT_EQ(store.directives(10)->size(), 2u);
}

TEST_F(StoreTest, DirectiveLogKeepsItsNewestLinesAndTheBeginningOfLongOnes) {
  Store store = open();
  store.keep_directives(10);
  ASSERT_TRUE(store.log_directive({"first", node(1), {1}, "{}", std::string(1 << 20, 'x'), 1}).ok());
  EXPECT_EQ(store.directives(1)->front().outcome, std::string(4096, 'x'));
  for (int i = 2; i <= 205; ++i)
    ASSERT_TRUE(store.log_directive({std::to_string(i), node(1), {2}, "{}", "done", 2}).ok());
  const auto lines = store.directives(1000);
  EXPECT_EQ(lines->front().id, "205");
  EXPECT_EQ(lines->back().id, "191") << "at the 200th line the last ten stayed";
}

TEST_F(StoreTest, WhatWasStoredSurvivesAKill) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto store = Store::open(path);
    if (store.ok() && store->next_epoch({8}).ok() && store->put_node({node(5), "k", "{}"}).ok())
      raise(SIGKILL);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  Store store = open();
  EXPECT_EQ(*store.epoch(), Epoch{9});
  EXPECT_EQ(store.nodes()->size(), 1u);
}

TEST_F(StoreTest, FileOfANewerProgramIsRefusedWithBothVersions) {
  open();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto store = Store::open(path);
  ASSERT_EQ(store.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(message_of(store.status())), HasSubstr("version 99"));
}

TEST_F(StoreTest, AFileThatIsNoStoreIsRefused) {
  std::ofstream(path) << std::string(8192, 'x');
  EXPECT_EQ(Store::open(path).status().code(), StatusCode::kDataLoss);
}

TEST_F(StoreTest, AFolderThatIsNotThereIsNamed) {
  const auto store = Store::open((folder / "missing" / "tracker.db").string());
  EXPECT_THAT(std::string(message_of(store.status())), HasSubstr("missing"));
}

}  // namespace
}  // namespace mesh::tracker
