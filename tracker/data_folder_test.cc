#include "tracker/data_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "common/host/data_folder_lock.h"

namespace mesh::tracker {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DataFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "meshnet-data-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path folder;
  const KeyPair tracker = KeyPair::generate();
};

TEST_F(DataFolder, OneProcessAtATimeUsesIt) {
  const auto first = lock_data_folder(folder / "new" / "one", "tracker");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(std::string(message_of(lock_data_folder(folder / "new" / "one", "tracker").status())),
              HasSubstr("another tracker"));
  ::close(*first);
  const auto second = lock_data_folder(folder / "new" / "one", "tracker");
  EXPECT_TRUE(second.ok());
  if (second.ok()) ::close(*second);
}

TEST_F(DataFolder, JoinKeyIsMadeOnceForItsOwnerAlone) {
  const auto made = load_join_key(folder / "join.key", tracker.public_key());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->pins(tracker.public_key()));
  EXPECT_EQ(fs::status(folder / "join.key").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto again = load_join_key(folder / "join.key", tracker.public_key());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->text(), made->text());
}

TEST_F(DataFolder, JoinKeyOfAnotherTrackerOrNoneIsRefusedWithTheFilesName) {
  ASSERT_TRUE(load_join_key(folder / "join.key", KeyPair::generate().public_key()).ok());
  EXPECT_THAT(std::string(message_of(load_join_key(folder / "join.key", tracker.public_key()).status())),
              HasSubstr("another tracker"));
  std::ofstream(folder / "bad.key") << "hello";
  EXPECT_THAT(std::string(message_of(load_join_key(folder / "bad.key", tracker.public_key()).status())),
              HasSubstr("bad.key"));
  EXPECT_FALSE(load_join_key(folder / "no" / "folder.key", tracker.public_key()).ok());
}

}  // namespace
}  // namespace mesh::tracker
