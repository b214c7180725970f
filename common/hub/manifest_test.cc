#include "common/hub/manifest.h"

#include <gmock/gmock.h>

#include "common/hub/open_model.h"
#include "common/hub/test_folder.h"
#include "common/identity/sha256.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ManifestTest : public TestFolder {
 protected:
  /// A folder with config.json "{}" and weights of 2.5 pieces of 'x'.
  std::shared_ptr<ModelFiles> make_model() {
    write("m/config.json", "{}");
    write("m/model.safetensors", std::string(5 * kPieceBytes / 2, 'x'));
    return *open_model((folder_ / "m").string(), {});
  }
};

// Hashes from `printf '{}' | sha256sum` and `head -c N /dev/zero | tr '\0' x | sha256sum`.
constexpr auto kConfigHash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
constexpr auto kWeightsHash = "8cdc524a0e8319aad10e40d6beaf80db9f2acdd168be5f2015367f04713c00ff";
constexpr auto kPieceHash = "8f990ba0b577b51cf009ea049368c16bbda1b21e1b93be07a824758bb253c39b";
constexpr auto kHalfPieceHash = "ec8bb338811bbf800a8b5e507d06e08a1d9d05bde74294f6f7388f3bbfba82e5";

TEST_F(ManifestTest, HashesFilesAndPieces) {
  const auto model = make_model();
  Progress last;
  const auto manifest = make_manifest(*model, {}, [&](const Progress& progress) { last = progress; });
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->files.size(), 2u);
  const ManifestFile& config = manifest->files[0];
  EXPECT_EQ(config.name, "config.json");
  EXPECT_EQ(config.sha256.hex(), kConfigHash);
  ASSERT_EQ(config.pieces.size(), 1u);
  EXPECT_EQ(config.pieces[0], config.sha256);
  const ManifestFile& weights = manifest->files[1];
  EXPECT_EQ(weights.size, 5 * kPieceBytes / 2);
  EXPECT_EQ(weights.sha256.hex(), kWeightsHash);
  ASSERT_EQ(weights.pieces.size(), 3u);
  EXPECT_EQ(weights.pieces[0].hex(), kPieceHash);
  EXPECT_EQ(weights.pieces[1].hex(), kPieceHash);
  EXPECT_EQ(weights.pieces[2].hex(), kHalfPieceHash);
  EXPECT_EQ(last.bytes_done, 5 * kPieceBytes / 2 + 2);
  EXPECT_EQ(last.bytes_total, last.bytes_done);
  EXPECT_EQ(manifest->find("model.safetensors"), &weights);
  EXPECT_EQ(manifest->find("other"), nullptr);
}

// The lines of the definition, hashed with sha256sum.
TEST_F(ManifestTest, IdentityFollowsItsDefinition) {
  const auto model = make_model();
  const auto manifest = make_manifest(*model, {});
  EXPECT_EQ(identity_of(*manifest, "bfloat16", "float32").hex(),
            "64837661e5670fb94524aeefe9a0a7a2e63a953e08c05e4af0df4adc864750e5");
  EXPECT_NE(identity_of(*manifest, "bfloat16", "float32"), identity_of(*manifest, "bfloat16", "bfloat16"));
  EXPECT_NE(identity_of(*manifest, "bfloat16", "float32"), identity_of(*manifest, "nf4", "float32"));
}

TEST_F(ManifestTest, KeepsHashesUntilAFileChanges) {
  const auto model = make_model();
  const auto first = make_manifest(*model, folder_ / "cache");
  ASSERT_TRUE(first.ok());
  std::uint64_t hashed = 99;
  const auto count = [&](const Progress& progress) { hashed = progress.bytes_total; };
  EXPECT_EQ(*make_manifest(*model, folder_ / "cache", count), *first);
  EXPECT_EQ(hashed, 0u);

  // Same size, another time: read again.
  write("m/config.json", "[]");
  fs::last_write_time(folder_ / "m/config.json", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const auto second = make_manifest(*model, folder_ / "cache", count);
  EXPECT_EQ(hashed, 2u);
  EXPECT_NE(second->files[0].sha256, first->files[0].sha256);
  EXPECT_EQ(second->files[1], first->files[1]);

  // A damaged kept result is made anew.
  for (const auto& entry : fs::directory_iterator(folder_ / "cache/hashes")) fs::resize_file(entry, 40);
  EXPECT_EQ(*make_manifest(*model, folder_ / "cache", count), *second);
  EXPECT_EQ(hashed, 5 * kPieceBytes / 2 + 2);
}

TEST_F(ManifestTest, NoticesAFileOfAnotherSize) {
  const auto model = make_model();
  write("m/config.json", "{ }");
  EXPECT_EQ(make_manifest(*model, {}).status().code(), StatusCode::kAborted);
}

TEST_F(ManifestTest, SurvivesJson) {
  const auto model = make_model();
  const auto manifest = make_manifest(*model, {});
  const auto again = parse_manifest(manifest_json(*manifest));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *manifest);
}

TEST_F(ManifestTest, RefusesHostileJson) {
  const std::string hash(64, '0');
  const auto with_files = [&](const std::string& files) {
    return fmt::format(R"({{"version":1,"piece_bytes":1048576,"files":[{}]}})", files);
  };
  const auto file = [&](const std::string& name, const std::string& size, const std::string& pieces) {
    return fmt::format(R"({{"name":"{}","size":{},"sha256":"{}","pieces":"{}"}})", name, size, hash, pieces);
  };
  const auto refused = [&](const std::string& files, const std::string& because) {
    const auto manifest = parse_manifest(with_files(files));
    ASSERT_FALSE(manifest.ok()) << files;
    EXPECT_EQ(manifest.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(message_of(manifest.status())), HasSubstr(because));
  };
  EXPECT_TRUE(parse_manifest(with_files(file("a", "1048577", hash + hash))).ok());
  EXPECT_TRUE(parse_manifest(with_files(file("a", "0", ""))).ok());
  refused(file("../a", "1", hash), "named");
  refused(file("a/b", "1", hash), "named");
  refused(file("a", "1048577", hash), "pieces");
  refused(file("a", "18446744073709551615", hash), "pieces");
  refused(file("a", "-1", hash), "size");
  refused(file("a", "1", hash.substr(1)), "pieces");
  refused(file("a", "1", std::string(64, 'g')), "hex");
  refused(file("b", "1", hash) + "," + file("a", "1", hash), "sorted");
  refused(file("a", "1", hash) + "," + file("a", "1", hash), "sorted");
  refused("7", "files");
  EXPECT_FALSE(parse_manifest("").ok());
  EXPECT_FALSE(parse_manifest(R"({"version":2,"piece_bytes":1048576,"files":[]})").ok());
  EXPECT_FALSE(parse_manifest(R"({"version":1,"piece_bytes":1,"files":[]})").ok());
}

}  // namespace
}  // namespace mesh::hub
