#include "common/wire/frame.h"

#include <gtest/gtest.h>

#include <random>

#include "common/wire/vectors_for_test.h"

namespace mesh::wire {
namespace {

Payload payload(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

/// The vectors' row: 0.5, 1, −2, 3, 1, 1, −1, 3 in bf16.
std::string row() {
  return std::string("\x00\x3f\x80\x3f\x00\xc0\x40\x40\x80\x3f\x80\x3f\x80\xbf\x40\x40", 16);
}

Segment identity_segment() {
  Segment s;
  s.session = kVectorSession;
  s.identity = kVectorIdentity;
  s.generation = {2};
  s.seq = {9};
  s.range = {3, 6};
  s.start = 7;
  s.rows = 1;
  s.hidden_size = 8;
  s.sample = true;
  s.deadline_ms = 1500;
  s.hidden = payload(row());
  return s;
}

std::string written(const Segment& segment, Codec codec = Codec::kIdentity) {
  HiddenCodec coder;
  FrameWriter writer;
  writer.add(segment, kVectorSecret, codec, coder);
  return writer.finish();
}

TEST(Frame, WritesTheGoldenBytes) {
  EXPECT_EQ(written(identity_segment()), read_vector("frame_identity.bin"));
}

TEST(Frame, ReadsTheGoldenBytes) {
  const std::string body = read_vector("frame_identity.bin");
  auto segments = parse_frame(body);
  ASSERT_TRUE(segments.ok()) << segments.status();
  ASSERT_EQ(segments->size(), 1u);
  ReceivedSegment& received = segments->front();
  EXPECT_TRUE(mac_fits(received, kVectorSecret));
  HiddenCodec coder;
  ASSERT_TRUE(decode_hidden(received, coder).ok());
  const Segment& s = received.segment;
  EXPECT_EQ(s.session, kVectorSession);
  EXPECT_EQ(s.identity, kVectorIdentity);
  EXPECT_EQ(s.generation.value, 2u);
  EXPECT_EQ(s.seq.value, 9u);
  EXPECT_EQ(s.range, (LayerRange{3, 6}));
  EXPECT_EQ(s.start, 7u);
  EXPECT_EQ(s.end(), 8u);
  EXPECT_TRUE(s.sample);
  EXPECT_EQ(s.lane, Lane::kDecode);
  EXPECT_EQ(s.deadline_ms, 1500u);
  EXPECT_EQ(*s.hidden, row());
}

TEST(Frame, DecodesGoldenFramesOfBothCodecs) {
  std::string expected;
  for (int i = 0; i < 64; ++i) expected += row();
  HiddenCodec coder;
  for (const char* name : {"frame_zstd.bin", "frame_split.bin"}) {
    const std::string body = read_vector(name);
    auto segments = parse_frame(body);
    ASSERT_TRUE(segments.ok()) << name << segments.status();
    EXPECT_TRUE(mac_fits(segments->front(), kVectorSecret)) << name;
    const Status decoded = decode_hidden(segments->front(), coder);
    ASSERT_TRUE(decoded.ok()) << name << decoded;
    EXPECT_EQ(*segments->front().segment.hidden, expected) << name;
    EXPECT_EQ(segments->front().segment.lane, Lane::kBulk);
  }
}

TEST(Frame, CarriesEveryOptionalPart) {
  const std::string body = read_vector("frame_all_parts.bin");
  auto segments = parse_frame(body);
  ASSERT_TRUE(segments.ok()) << segments.status();
  ASSERT_EQ(segments->size(), 2u);
  HiddenCodec coder;
  FrameWriter writer;
  for (ReceivedSegment& received : *segments) {
    ASSERT_TRUE(decode_hidden(received, coder).ok());
    writer.add(received.segment, kVectorSecret, Codec::kIdentity, coder);
  }
  const Segment& s = (*segments)[0].segment;
  EXPECT_EQ(s.ids, (std::vector<TokenId>{11, -1}));
  EXPECT_EQ(s.positions.axes, 3);
  EXPECT_EQ(s.positions.values, (std::vector<std::int32_t>{5, 6, 5, 5, 5, 6}));
  EXPECT_EQ(s.spans, (std::vector<MaskSpan>{{5, 7}}));
  ASSERT_EQ(s.sides.size(), 1u);
  EXPECT_EQ(s.sides[0].name, "cross");
  EXPECT_EQ(*s.sides[0].data, std::string("\1\0\2\0\3\0\4\0", 8));
  EXPECT_EQ((*segments)[1].segment.ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(s.raw_bytes(), 16u + 8 + 24 + 8 + 8);
  EXPECT_EQ(writer.finish(), body);
}

TEST(Frame, EveryChangedByteOfASegmentBreaksItsMacOrTheFrame) {
  const std::string good = read_vector("frame_all_parts.bin");
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 0x41);
    const auto segments = parse_frame(changed);
    if (!segments.ok()) continue;
    const bool all_fit = std::all_of(segments->begin(), segments->end(),
                                     [](const auto& s) { return mac_fits(s, kVectorSecret); });
    EXPECT_FALSE(all_fit) << "byte " << i;
  }
}

TEST(Frame, AnotherSecretsMacDoesNotFit) {
  const std::string body = read_vector("frame_identity.bin");
  EXPECT_FALSE(mac_fits(parse_frame(body)->front(), counting_id<SessionSecret>(101)));
}

TEST(Frame, EveryTruncationAndExtensionIsRefused) {
  const std::string good = read_vector("frame_all_parts.bin");
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(parse_frame(good.substr(0, size)).ok()) << size;
  EXPECT_FALSE(parse_frame(good + '\0').ok());
}

/// The golden frame with `bytes` at `offset` of its segment.
std::string with(std::size_t offset, std::string_view bytes) {
  std::string body = read_vector("frame_identity.bin");
  return body.replace(kFrameHeaderBytes + offset, bytes.size(), bytes);
}

TEST(Frame, HeadersThatLieAreRefusedByName) {
  const std::string_view huge("\xff\xff\xff\xff", 4);
  const struct {
    std::size_t offset;
    std::string_view bytes, message;
  } cases[] = {
      {0, huge, "longer than what is left"},
      {4, {"\4\0", 2}, "unknown flags"},
      {6, {"\3", 1}, "unknown codec"},
      {7, {"\2", 1}, "rotary axes"},
      {56, {"\0", 1}, "begin with 1"},
      {72, {"\7", 1}, "ends before it begins"},
      {80, huge, "positions beyond"},
      {84, {"\0", 1}, "rows must be"},
      {84, huge, "rows must be"},
      {88, huge, "hidden size above"},
      {96, huge, "ids must be"},
      {96, {"\1", 1}, "differs from what its header implies"},
      {100, {"\xff\xff", 2}, "spans"},
      {102, {"\xff\xff", 2}, "too many side tensors"},
      {104, huge, "differs from what"},
      {108, {"\1", 1}, "reserved"},
  };
  for (const auto& c : cases) {
    const auto result = parse_frame(with(c.offset, c.bytes));
    ASSERT_FALSE(result.ok()) << "offset " << c.offset;
    EXPECT_NE(message_of(result.status()).find(c.message), std::string_view::npos) << result.status();
  }
  EXPECT_FALSE(parse_frame("MSHF").ok());
  EXPECT_FALSE(parse_frame(std::string("MSHF\2\0\1\0\x0c\0\0\0", 12)).ok()) << "version 2";
  EXPECT_FALSE(parse_frame(std::string("MSHF\1\0\0\0\x0c\0\0\0", 12)).ok()) << "no segments";
}

TEST(Frame, AHiddenSizeThatDoesNotFitThePayloadIsRefusedWhenDecoding) {
  const std::string body = with(88, {"\x10", 1});  // 16 values a row, 8 came
  auto segments = parse_frame(body);
  ASSERT_TRUE(segments.ok());
  HiddenCodec coder;
  EXPECT_FALSE(decode_hidden(segments->front(), coder).ok());
}

TEST(Frame, RandomBytesNeverPass) {
  std::mt19937 random(7);
  const std::string good = read_vector("frame_all_parts.bin");
  for (int round = 0; round < 2000; ++round) {
    std::string body = good;
    for (std::size_t i = 12 + random() % 100; i < body.size(); i += 1 + random() % 40) {
      body[i] = static_cast<char>(random());
    }
    auto segments = parse_frame(body);
    if (!segments.ok()) continue;
    HiddenCodec coder;
    for (ReceivedSegment& s : *segments) {
      if (mac_fits(s, kVectorSecret)) continue;
      (void)decode_hidden(s, coder);
    }
  }
}

TEST(Frame, CountsRawAndCodedBytes) {
  Segment s = identity_segment();
  std::string raw;
  for (int i = 0; i < 512; ++i) raw += row();
  s.rows = 512;
  s.hidden = payload(raw);
  HiddenCodec coder;
  FrameWriter writer;
  writer.add(s, kVectorSecret, Codec::kSplit, coder);
  writer.add(s, kVectorSecret, Codec::kIdentity, coder);
  EXPECT_EQ(writer.raw_bytes(), 2 * raw.size());
  EXPECT_LT(writer.coded_bytes(), 2 * raw.size());
  EXPECT_GE(writer.coded_bytes(), raw.size());
  EXPECT_EQ(parse_frame(writer.finish())->size(), 2u);
}

}  // namespace
}  // namespace mesh::wire
