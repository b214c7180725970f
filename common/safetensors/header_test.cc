#include "common/safetensors/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace mesh::safetensors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string length_field(std::uint64_t length) {
  std::string field;
  for (int i = 0; i < 8; ++i) field.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  return field;
}

std::string file_start(std::string_view json) {
  return length_field(json.size()) + std::string(json);
}

/// Parses a header whose file has `data_bytes` behind it.
StatusOr<Header> parse(std::string_view json, std::uint64_t data_bytes) {
  return parse_header(file_start(json), 8 + json.size() + data_bytes);
}

void expect_refused(std::string_view json, std::uint64_t data_bytes, std::string_view because) {
  const auto header = parse(json, data_bytes);
  ASSERT_FALSE(header.ok()) << json;
  EXPECT_EQ(header.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(message_of(header.status())), HasSubstr(std::string(because)));
}

TEST(Header, ReadsTensorsMetadataAndPadding) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
      R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}   )";
  const auto header = parse(json, 16);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_offset, 8 + json.size());
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->tensors.size(), 2u);
  const TensorInfo& a = header->tensors.at("a");
  EXPECT_EQ(a.dtype, Dtype::kBF16);
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.offset, header->data_offset);
  EXPECT_EQ(a.bytes, 12u);
  EXPECT_EQ(header->tensors.at("b").offset, header->data_offset + 12);
}

TEST(Header, EmptyTensorsTakeNoRoomAnywhere) {
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
                    R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                    8)
                  .ok());
  EXPECT_TRUE(parse("{}", 0).ok());
}

TEST(Header, SubByteTypesNeedWholeBytes) {
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F4","shape":[6],"data_offsets":[0,3]}})", 3).ok());
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3).ok());
  expect_refused(R"({"a":{"dtype":"F4","shape":[5],"data_offsets":[0,3]}})", 3, "no possible size");
}

TEST(Header, ElementSizesAreTheFormats) {
  const std::pair<const char*, int> sizes[] = {
      {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"I16", 2}, {"F8_E4M3", 1},
      {"F8_E8M0", 1}, {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4}, {"U32", 4},
      {"F32", 4},     {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [name, bytes] : sizes) {
    const auto json =
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", name, 3 * bytes);
    const auto header = parse(json, 3 * bytes);
    ASSERT_TRUE(header.ok()) << name << header.status();
    EXPECT_EQ(dtype_name(header->tensors.at("a").dtype), name);
  }
}

TEST(Header, RefusesLyingLengths) {
  EXPECT_FALSE(header_bytes("1234567", 7).ok());
  EXPECT_FALSE(header_bytes(length_field(~std::uint64_t{0}), ~std::uint64_t{0}).ok());
  EXPECT_FALSE(header_bytes(length_field(93), 100).ok());
  EXPECT_EQ(*header_bytes(length_field(92), 100), 100u);
  EXPECT_FALSE(header_bytes(length_field(kMaxHeaderBytes + 1), std::uint64_t{1} << 40).ok());
  EXPECT_TRUE(header_bytes(length_field(kMaxHeaderBytes), std::uint64_t{1} << 40).ok());
  EXPECT_FALSE(parse_header(length_field(50) + "{}", 1000).ok());
  EXPECT_FALSE(parse_header("", 0).ok());
}

TEST(Header, RefusesTensorsThatDoNotTileTheFile) {
  constexpr auto kPair = R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                         R"("b":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})";
  EXPECT_TRUE(parse(fmt::format(kPair, 4, 8), 8).ok());
  expect_refused(fmt::format(kPair, 3, 7), 7, "overlaps");
  expect_refused(fmt::format(kPair, 5, 9), 9, "belong to no tensor");
  expect_refused(fmt::format(kPair, 4, 8), 9, "at the file's end");
  expect_refused(fmt::format(kPair, 4, 8), 7, "outside");
  expect_refused(fmt::format(kPair, 8, 4), 8, "outside");
  expect_refused("{}", 1, "at the file's end");
}

TEST(Header, RefusesSizesThatContradictTheShape) {
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "dtype × shape is 8");
  expect_refused(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "size");
  expect_refused(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0, "size");
  expect_refused(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "size");
  expect_refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "shape");
}

TEST(Header, RefusesDoubledNames) {
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                 1, "a");
  expect_refused(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1, "dtype");
}

TEST(Header, RefusesWrongJson) {
  expect_refused("", 0, "{");
  expect_refused("[]", 0, "{");
  expect_refused(" {}", 0, "{");
  expect_refused("{", 0, "");
  expect_refused("{}x", 0, "");
  expect_refused(R"({"a":7})", 0, "a");
  expect_refused(R"({"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})", 1, "F7");
  expect_refused(R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1, "dtype");
  expect_refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "shape");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "data_offsets");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1, "data_offsets");
  expect_refused(R"({"__metadata__":{"x":1}})", 0, "__metadata__");
  expect_refused("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0, "");
}

TEST(Header, MessagesStayShortAndPrintable) {
  const auto header =
      parse("{\"" + std::string(5000, 'n') + R"(\n":{"dtype":"F7","shape":[],"data_offsets":[0,0]}})", 0);
  ASSERT_FALSE(header.ok());
  EXPECT_LT(message_of(header.status()).size(), 400u);
  EXPECT_EQ(message_of(header.status()).find('\n'), std::string_view::npos);
}

}  // namespace
}  // namespace mesh::safetensors
