// Files written by the reference implementation (tests/golden/safetensors/make.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/safetensors/mapped_file.h"

namespace mesh::safetensors {
namespace {

using testing::ElementsAre;

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = MappedFile::open(MESH_SOURCE_DIR "/tests/golden/safetensors/dtypes.safetensors");
    ASSERT_TRUE(opened.ok()) << opened.status();
    file_ = *std::move(opened);
  }

  template <class T>
  std::vector<T> values(std::string_view name, Dtype dtype) {
    const auto info = file_->info(name);
    if (!info.ok()) return {};
    EXPECT_EQ((*info)->dtype, dtype) << name;
    EXPECT_THAT((*info)->shape, ElementsAre(2, 3)) << name;
    const std::string_view bytes = *file_->map(**info);
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  std::shared_ptr<MappedFile> file_;
};

TEST_F(Golden, EveryTensorIsFound) {
  EXPECT_EQ(file_->header().tensors.size(), 17u);
  EXPECT_EQ(file_->header().metadata.at("format"), "pt");
}

TEST_F(Golden, IntegersAndFloatsHaveTheirValues) {
  EXPECT_THAT(values<std::uint8_t>("bool", Dtype::kBool), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(values<std::uint8_t>("uint8", Dtype::kU8), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::int8_t>("int8", Dtype::kI8), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::int16_t>("int16", Dtype::kI16), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::uint16_t>("uint16", Dtype::kU16), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::int32_t>("int32", Dtype::kI32), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::uint32_t>("uint32", Dtype::kU32), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::int64_t>("int64", Dtype::kI64), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<std::uint64_t>("uint64", Dtype::kU64), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<float>("float32", Dtype::kF32), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<double>("float64", Dtype::kF64), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values<float>("complex64", Dtype::kC64), ElementsAre(1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0));
}

// 1 … 6 in each encoding, from its sign, exponent and fraction bits by hand.
TEST_F(Golden, SmallFloatsHaveTheirBits) {
  EXPECT_THAT(values<std::uint16_t>("bfloat16", Dtype::kBF16),
              ElementsAre(0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0));
  EXPECT_THAT(values<std::uint16_t>("float16", Dtype::kF16),
              ElementsAre(0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600));
  EXPECT_THAT(values<std::uint8_t>("float8_e4m3fn", Dtype::kF8E4M3),
              ElementsAre(0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c));
  EXPECT_THAT(values<std::uint8_t>("float8_e5m2", Dtype::kF8E5M2),
              ElementsAre(0x3c, 0x40, 0x42, 0x44, 0x45, 0x46));
  EXPECT_THAT(values<std::uint8_t>("float8_e8m0fnu", Dtype::kF8E8M0),
              ElementsAre(127, 128, 129, 130, 131, 132));
}

}  // namespace
}  // namespace mesh::safetensors
