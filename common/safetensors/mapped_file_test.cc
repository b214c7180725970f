#include "common/safetensors/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/safetensors/writer.h"

namespace mesh::safetensors {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() : folder_(fs::temp_directory_path() / ("mapped_file_test." + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  /// A file of `count` U8 tensors t0, t1, … of `bytes` each; tensor i is filled with the byte i.
  fs::path write_file(int count, std::size_t bytes) const {
    std::vector<std::string> data;
    std::vector<NewTensor> tensors;
    for (int i = 0; i < count; ++i) data.emplace_back(bytes, static_cast<char>(i));
    for (int i = 0; i < count; ++i)
      tensors.push_back({"t" + std::to_string(i), Dtype::kU8, {bytes}, data[i]});
    const fs::path path = folder_ / "model.safetensors";
    EXPECT_TRUE(write_safetensors(path, tensors).ok());
    return path;
  }

  static std::uint64_t touch(std::string_view span) {
    return std::accumulate(span.begin(), span.end(), std::uint64_t{0},
                           [](std::uint64_t sum, char c) { return sum + static_cast<unsigned char>(c); });
  }

  const fs::path folder_;
};

TEST_F(MappedFileTest, GivesEachTensorsBytes) {
  const auto file = MappedFile::open(write_file(5, 10'001));
  ASSERT_TRUE(file.ok()) << file.status();
  for (int i = 0; i < 5; ++i) {
    const auto info = (*file)->info("t" + std::to_string(i));
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(*(*file)->map(**info), std::string(10'001, static_cast<char>(i)));
    EXPECT_EQ(*(*file)->map(**info, 5000, 3), std::string(3, static_cast<char>(i)));
    EXPECT_EQ(*(*file)->map(**info, 10'001, 0), "");
    EXPECT_EQ((*file)->map(**info, 10'000, 2).status().code(), StatusCode::kOutOfRange);
    EXPECT_EQ((*file)->map(**info, ~std::uint64_t{0}, 2).status().code(), StatusCode::kOutOfRange);
  }
  EXPECT_EQ((*file)->info("t5").status().code(), StatusCode::kNotFound);
}

// Many small scattered tensors are the worst case: each edge could pull in its neighbours.
TEST_F(MappedFileTest, ReadingSomeTensorsLeavesTheOthersOut) {
  constexpr std::size_t kBytes = 200'000;
  const auto file = MappedFile::open(write_file(200, kBytes));
  ASSERT_TRUE(file.ok()) << file.status();
  std::uint64_t read = 0;
  for (int i = 0; i < 200; i += 4) {
    const auto info = (*file)->info("t" + std::to_string(i));
    EXPECT_EQ(touch(*(*file)->map(**info)), static_cast<std::uint64_t>(i) * kBytes);
    read += kBytes;
  }
  const auto resident = (*file)->resident_bytes();
  ASSERT_TRUE(resident.ok());
  EXPECT_GE(*resident, read);
  EXPECT_LE(*resident, read + (*file)->header().data_offset + (1 << 20));
}

// Spans of odd sizes in random order: each gap is mapped, whatever is mapped around it.
TEST_F(MappedFileTest, PiecesOfATensorCanBeMappedInAnyOrder) {
  std::string data(3'000'000, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i >> 9);
  const fs::path path = folder_ / "one.safetensors";
  ASSERT_TRUE(write_safetensors(path, {{"t", Dtype::kU8, {data.size()}, data}}).ok());
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::size_t begin = random() % data.size();
    const std::size_t length = random() % std::min<std::size_t>(data.size() - begin, 50'000);
    const auto span = (*file)->map(**(*file)->info("t"), begin, length);
    ASSERT_TRUE(span.ok()) << span.status();
    ASSERT_EQ(*span, std::string_view(data).substr(begin, length));
  }
  EXPECT_EQ(*(*file)->map(**(*file)->info("t")), data);
}

TEST_F(MappedFileTest, ReleaseDropsPagesAndTheSpanStaysReadable) {
  const auto file = MappedFile::open(write_file(4, 1 << 20));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto info = (*file)->info("t2");
  const auto span = (*file)->map(**info);
  ASSERT_TRUE(span.ok());
  const std::uint64_t sum = touch(*span);
  EXPECT_GE(*(*file)->resident_bytes(), 1u << 20);
  (*file)->release(*span);
  EXPECT_EQ(*(*file)->resident_bytes(), 0u);
  EXPECT_EQ(touch(*span), sum);
  (*file)->release(**info);
  EXPECT_EQ(*(*file)->resident_bytes(), 0u);
}

TEST_F(MappedFileTest, TensorsNobodyAskedForCannotBeRead) {
  const auto file = MappedFile::open(write_file(3, 1 << 16));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto span = (*file)->map(**(*file)->info("t0"));
  ASSERT_TRUE(span.ok());
  EXPECT_DEATH({ std::fprintf(stderr, "%d", *(span->data() + (2 << 16))); }, "");
}

TEST_F(MappedFileTest, ThreadsMapAndReleaseNeighboursAtOnce) {
  const auto file = MappedFile::open(write_file(64, 5000));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        for (int i = t; i < 64; i += 4) {
          const auto span = (*file)->map(**(*file)->info("t" + std::to_string(i)));
          ASSERT_EQ(touch(*span), static_cast<std::uint64_t>(i) * 5000);
          if (round % 3 == 0) (*file)->release(*span);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(MappedFileTest, RefusesWhatIsNoWholeFile) {
  EXPECT_EQ(MappedFile::open(folder_ / "absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::open(folder_).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(folder_ / "pipe").status().code(), StatusCode::kInvalidArgument);
  std::ofstream(folder_ / "empty").close();
  EXPECT_EQ(MappedFile::open(folder_ / "empty").status().code(), StatusCode::kInvalidArgument);

  const fs::path path = write_file(3, 1000);
  for (const std::uintmax_t size : {fs::file_size(path) - 1, std::uintmax_t{20}, std::uintmax_t{5}}) {
    fs::resize_file(path, size);
    EXPECT_EQ(MappedFile::open(path).status().code(), StatusCode::kInvalidArgument) << size;
  }
}

TEST_F(MappedFileTest, RefusesToMapAFileThatShrank) {
  const fs::path path = write_file(3, 100'000);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  fs::resize_file(path, 150'000);
  EXPECT_EQ((*file)->map(**(*file)->info("t2")).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(MappedFileTest, ReadsPastThePageCacheWhatItDoesNotHave) {
  constexpr std::size_t kBytes = 3'000'001;
  const fs::path path = write_file(3, kBytes);
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ReadBuffer buffer;
  for (int i = 0; i < 3; ++i) {
    const TensorInfo& info = **(*file)->info("t" + std::to_string(i));
    for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{4'097}, kBytes - 1}) {
      const std::uint64_t length = std::min<std::uint64_t>(1'000'000, kBytes - begin);
      const auto bytes = (*file)->read(info, begin, length, buffer);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(*bytes, std::string(length, static_cast<char>(i)));
      if ((*file)->contains(*bytes)) (*file)->release(*bytes);
    }
    EXPECT_EQ((*file)->read(info, kBytes, 1, buffer).status().code(), StatusCode::kOutOfRange);
  }
  EXPECT_EQ(*(*file)->resident_bytes(), 0u);
}

TEST_F(MappedFileTest, RefusesToReadAFileThatShrank) {
  const fs::path path = write_file(3, 100'000);
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  fs::resize_file(path, 150'000);
  ReadBuffer buffer;
  EXPECT_EQ((*file)->read(**(*file)->info("t2"), 0, 100'000, buffer).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(MappedFileTest, WriterRefusesWrongSizes) {
  EXPECT_FALSE(write_safetensors(folder_ / "x", {{"a", Dtype::kF32, {2}, "1234"}}).ok());
  EXPECT_FALSE(
      write_safetensors(folder_ / "x", {{"a", Dtype::kU8, {1}, "1"}, {"a", Dtype::kU8, {1}, "1"}}).ok());
}

}  // namespace
}  // namespace mesh::safetensors
