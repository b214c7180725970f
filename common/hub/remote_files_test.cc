#include "common/hub/remote_files.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "common/hub/checkpoint.h"
#include "common/hub/open_model.h"
#include "common/hub/piece_fetch.h"
#include "common/hub/test_folder.h"
#include "common/identity/sha256.h"
#include "common/safetensors/writer.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using testing::HasSubstr;

constexpr std::uint64_t kWeightBytes = 18 * kPieceBytes + 123;

/// Serves a local model's bytes, with faults.
class FakeSource final : public RangeSource {
 public:
  explicit FakeSource(std::shared_ptr<ModelFiles> model) : model_(std::move(model)) {}

  Status fetch(std::string_view file, std::uint64_t offset, std::uint64_t length,
               const std::function<Status(std::string_view)>& sink) override {
    ++requests;
    MESH_ASSIGN_OR_RETURN(std::string bytes, model_->read(file, {offset, length}));
    if (corrupt_piece >= 0) {
      const std::uint64_t at = static_cast<std::uint64_t>(corrupt_piece) * kPieceBytes;
      if (at >= offset && at < offset + length && corruptions-- > 0) bytes[at - offset] ^= 1;
    }
    if (extra) bytes += "x";
    if (cut > 0) bytes.resize(bytes.size() - cut);
    for (std::size_t at = 0; at < bytes.size(); at += 300'000) {
      if (fail_after == 0) return error(StatusCode::kUnavailable, "the link broke");
      if (fail_after > 0) --fail_after;
      if (on_chunk) on_chunk();
      const std::string_view chunk = std::string_view(bytes).substr(at, 300'000);
      MESH_RETURN_IF_ERROR(sink(chunk));
      sent += chunk.size();
    }
    return absl::OkStatus();
  }

  std::atomic<std::uint64_t> requests = 0;
  std::atomic<std::uint64_t> sent = 0;
  int corrupt_piece = -1;  // of the weights
  int corruptions = 0;
  std::uint64_t cut = 0;
  bool extra = false;
  int fail_after = -1;  // chunks
  std::function<void()> on_chunk;

 private:
  const std::shared_ptr<ModelFiles> model_;
};

class Remote : public TestFolder {
 protected:
  void SetUp() override {
    write("m/config.json", "{}");
    std::string block(1 << 16, '\0');
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761u >> 13);
    while (weights_.size() < kWeightBytes) weights_ += block;
    weights_.resize(kWeightBytes);
    for (std::size_t piece = 0; piece * kPieceBytes < kWeightBytes; ++piece) {
      weights_[piece * kPieceBytes] = static_cast<char>(piece);  // no two pieces are equal
    }
    write("m/model.safetensors", weights_);
    model_ = *open_folder(folder_ / "m");
    manifest_ = *make_manifest(*model_, {});
    source_ = std::make_shared<FakeSource>(model_);
  }

  std::shared_ptr<ModelFiles> open(std::vector<fs::path> roots = {}, std::uint64_t reserve = 0) {
    auto files = open_remote(manifest_, source_,
                             {.cache_folder = folder_ / "cache",
                              .extra_roots = std::move(roots),
                              .description = "the model",
                              .disk_reserve = reserve});
    EXPECT_TRUE(files.ok()) << files.status();
    return *files;
  }
  Status ensure_weights(ModelFiles& files, ByteRange range, const ProgressFn& progress = {}) {
    return files.ensure({{"model.safetensors", {range}}}, progress);
  }
  fs::path mirror() const { return folder_ / "cache" / manifest_.find("model.safetensors")->sha256.hex(); }
  bool marked(std::uint64_t piece) const {
    return (read_file(mirror() / "data.pieces")[piece / 8] >> (piece % 8) & 1) != 0;
  }
  std::string mirrored(std::uint64_t piece) const {
    return read_file(mirror() / "data").substr(piece * kPieceBytes, piece_size(kWeightBytes, piece));
  }
  std::string original(std::uint64_t piece) const {
    return weights_.substr(piece * kPieceBytes, piece_size(kWeightBytes, piece));
  }

  std::string weights_;
  std::shared_ptr<ModelFiles> model_;
  Manifest manifest_;
  std::shared_ptr<FakeSource> source_;
};

TEST_F(Remote, FetchesThePiecesThatRangesTouchAndNoMore) {
  const auto files = open();
  Progress last;
  ASSERT_TRUE(files
                  ->ensure({{"model.safetensors", {{5 * kPieceBytes + 7, 1}, {7 * kPieceBytes - 1, 2}}},
                            {"config.json", {{0, 2}}}},
                           [&](const Progress& progress) { last = progress; })
                  .ok());
  EXPECT_EQ(source_->sent, 3 * kPieceBytes + 2);
  EXPECT_EQ(last.bytes_total, 3 * kPieceBytes + 2);
  EXPECT_EQ(last.bytes_done, last.bytes_total);
  for (const std::uint64_t piece : {5, 6, 7}) EXPECT_EQ(mirrored(piece), original(piece));
  EXPECT_EQ(*files->path("model.safetensors"), mirror() / "data");
  EXPECT_EQ(fs::file_size(mirror() / "data"), kWeightBytes);
  struct stat info{};
  ASSERT_EQ(::stat((mirror() / "data").c_str(), &info), 0);
  EXPECT_LE(static_cast<std::uint64_t>(info.st_blocks) * 512, 4 * kPieceBytes) << "the mirror is not sparse";

  EXPECT_TRUE(ensure_weights(*files, {5 * kPieceBytes, 3 * kPieceBytes}).ok());
  EXPECT_TRUE(ensure_weights(*open(), {5 * kPieceBytes, 3 * kPieceBytes}).ok())
      << "a restart keeps the pieces";
  EXPECT_EQ(source_->sent, 3 * kPieceBytes + 2);
  EXPECT_EQ(*files->read("model.safetensors", {kWeightBytes - 5, 5}), weights_.substr(kWeightBytes - 5));
  EXPECT_EQ(*files->read_small("config.json"), "{}");
}

TEST_F(Remote, RefusesRangesAndNamesOutsideTheModel) {
  const auto files = open();
  EXPECT_EQ(ensure_weights(*files, {kWeightBytes, 1}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(ensure_weights(*files, {~std::uint64_t{0}, 2}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(files->ensure({{"other", {{0, 1}}}}).code(), StatusCode::kNotFound);
  EXPECT_EQ(files->path("../x").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(source_->requests, 0u);
}

TEST_F(Remote, GoesOnWhereABrokenFetchEnded) {
  const auto files = open();
  source_->fail_after = 20;  // 6,000,000 bytes: five whole pieces
  const Status broken = ensure_weights(*files, {0, kWeightBytes});
  EXPECT_EQ(broken.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(message_of(broken)), HasSubstr("the link broke"));
  EXPECT_TRUE(marked(4));
  EXPECT_FALSE(marked(5));
  source_->fail_after = -1;
  source_->sent = 0;
  ASSERT_TRUE(ensure_weights(*open(), {0, kWeightBytes}).ok());
  EXPECT_EQ(source_->sent, kWeightBytes - 5 * kPieceBytes);
  EXPECT_EQ(read_file(mirror() / "data"), weights_);
}

TEST_F(Remote, AFetchIsCancelledByItsProgress) {
  const auto files = open();
  // Reports come ten times a second, so the fetch has to last longer than that.
  source_->on_chunk = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  const Status status = ensure_weights(*files, {0, kWeightBytes}, [](const Progress& progress) {
    EXPECT_GT(progress.bytes_done, 0u);
    return false;
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_LT(source_->sent, kWeightBytes);
  EXPECT_TRUE(marked(0)) << "what was fetched stays";
}

TEST_F(Remote, AsksAgainForAPieceWithAWrongHash) {
  source_->corrupt_piece = 3;
  source_->corruptions = kTries - 1;
  ASSERT_TRUE(ensure_weights(*open(), {0, kWeightBytes}).ok());
  EXPECT_EQ(source_->sent, kWeightBytes + (kTries - 1) * kPieceBytes);
  EXPECT_EQ(read_file(mirror() / "data"), weights_);
}

TEST_F(Remote, GivesUpOnAPieceThatStaysWrong) {
  source_->corrupt_piece = 3;
  source_->corruptions = 1000;
  const Status status = ensure_weights(*open(), {0, kWeightBytes});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("piece 3 of model.safetensors"));
  EXPECT_FALSE(marked(3));
  EXPECT_TRUE(marked(2));
}

TEST_F(Remote, RefusesASourceThatGivesTooMuchOrTooLittle) {
  source_->extra = true;
  EXPECT_EQ(ensure_weights(*open(), {0, 1}).code(), StatusCode::kDataLoss);
  source_->extra = false;
  source_->cut = 1;
  EXPECT_EQ(ensure_weights(*open(), {kPieceBytes, 1}).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(marked(1));
}

TEST_F(Remote, SaysWhatADiskLacksBeforeItFetches) {
  const Status status = ensure_weights(*open({}, ~std::uint64_t{0} >> 1), {0, 1});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("1048576 bytes to fetch"));
  EXPECT_THAT(std::string(message_of(status)), HasSubstr("free"));
  EXPECT_EQ(source_->requests, 0u);
}

TEST_F(Remote, AKillLeavesNoMarkWithoutItsBytes) {
  for (int chunks = 1; chunks < 63; chunks += 9) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int left = chunks;
      source_->on_chunk = [&left] {
        if (--left == 0) ::raise(SIGKILL);
      };
      (void)ensure_weights(*open(), {0, kWeightBytes});
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (!fs::exists(mirror() / "data.pieces")) continue;
    const std::string data = read_file(mirror() / "data");
    for (std::uint64_t piece = 0; piece < piece_count(kWeightBytes); ++piece) {
      if (!marked(piece)) continue;
      ASSERT_EQ(data.compare(piece * kPieceBytes, piece_size(kWeightBytes, piece), original(piece)), 0)
          << piece;
    }
  }
  ASSERT_TRUE(ensure_weights(*open(), {0, kWeightBytes}).ok());
  EXPECT_EQ(read_file(mirror() / "data"), weights_);
}

TEST_F(Remote, AMirrorOfAnotherSizeCountsForNothing) {
  ASSERT_TRUE(ensure_weights(*open(), {0, kPieceBytes}).ok());
  fs::resize_file(mirror() / "data", 100);
  ASSERT_TRUE(ensure_weights(*open(), {0, kPieceBytes}).ok());
  EXPECT_EQ(mirrored(0), original(0));
}

TEST_F(Remote, ThreadsFetchEachPieceOnce) {
  const auto files = open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(ensure_weights(*files, {0, kWeightBytes}).ok()); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(source_->sent, kWeightBytes);
  EXPECT_EQ(read_file(mirror() / "data"), weights_);
}

TEST_F(Remote, ProcessesShareACacheFolder) {
  void* const shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const chunks = new (shared) std::atomic<std::uint64_t>(0);
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      source_->on_chunk = [&] { ++*chunks; };
      ::_exit(ensure_weights(*open(), {0, kWeightBytes}).ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(read_file(mirror() / "data"), weights_);
  // Requests of 16 and 3 pieces in chunks of 300,000 bytes: ⌈16,777,216 ÷ 300,000⌉ and ⌈2,097,275 ÷ 300,000⌉.
  EXPECT_EQ(*chunks, 56u + 7);
  ::munmap(shared, 4096);
}

TEST_F(Remote, UsesALocalCopyWithTheRightHash) {
  const std::string hash = manifest_.find("model.safetensors")->sha256.hex();
  const fs::path blob = write("hf/models--a--b/blobs/" + hash, weights_);
  const auto files = open({folder_ / "hf"});
  Progress last;
  ASSERT_TRUE(
      ensure_weights(*files, {0, kWeightBytes}, [&](const Progress& progress) { last = progress; }).ok());
  EXPECT_EQ(last.bytes_done, kWeightBytes) << "checking the copy is work, too";
  EXPECT_EQ(*files->path("model.safetensors"), blob);
  EXPECT_EQ(source_->requests, 0u);
}

TEST_F(Remote, DropsALocalCopyThatProvesWrong) {
  std::string wrong = weights_;
  wrong[9 * kPieceBytes] ^= 1;
  const fs::path copy = write("models/tuned/model.safetensors", wrong);
  const auto files = open({folder_ / "models"});
  ASSERT_TRUE(ensure_weights(*files, {0, kPieceBytes}).ok());
  EXPECT_EQ(*files->path("model.safetensors"), copy);
  EXPECT_EQ(*files->read("model.safetensors", {9 * kPieceBytes, 5}), weights_.substr(9 * kPieceBytes, 5));
  EXPECT_EQ(*files->path("model.safetensors"), mirror() / "data");
  EXPECT_EQ(*files->read("model.safetensors", {0, 5}), weights_.substr(0, 5));
}

TEST_F(Remote, ACheckpointFetchesItsTensorsOnly) {
  const std::string big(4 * kPieceBytes, 'b');
  const std::string last(100, 'l');
  fs::create_directories(folder_ / "t");
  write("t/config.json", "{}");
  ASSERT_TRUE(
      safetensors::write_safetensors(folder_ / "t/model.safetensors", {{"a", Dtype::kU8, {big.size()}, big},
                                                                       {"b", Dtype::kU8, {big.size()}, big},
                                                                       {"c", Dtype::kU8, {100}, last}})
          .ok());
  model_ = *open_folder(folder_ / "t");
  manifest_ = *make_manifest(*model_, {});
  source_ = std::make_shared<FakeSource>(model_);
  const auto checkpoint = Checkpoint::open(open());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(source_->sent, kPieceBytes) << "the header's piece";
  ASSERT_TRUE((*checkpoint)->ensure({"c"}).ok());
  EXPECT_EQ(*(*checkpoint)->tensor("c"), last);
  EXPECT_LE(source_->sent, 2 * kPieceBytes);
  EXPECT_EQ(*(*checkpoint)->slice("b", 3 * kPieceBytes, 10), "bbbbbbbbbb");
  EXPECT_LE(source_->sent, 4 * kPieceBytes);
}

}  // namespace
}  // namespace mesh::hub
