#include "common/wire/frame.h"

#include "common/base/check.h"
#include "common/base/checked.h"
#include "common/wire/bytes.h"

namespace mesh::wire {
namespace {

constexpr std::string_view kMagic = "MSHF";
constexpr std::string_view kMacDomain = "meshnet/1 segment";
constexpr std::uint16_t kFlagSample = 1;
constexpr std::uint16_t kFlagBulk = 2;

Status bad(std::size_t index, std::string_view what) {
  return error(StatusCode::kInvalidArgument, "frame: segment {}: {}", index, what);
}

Payload make_payload(std::string_view bytes) {
  return std::make_shared<const std::string>(bytes);
}

std::uint64_t size_of(const Payload& payload) {
  return payload ? payload->size() : 0;
}

/// Header fields that only tell how to read the rest.
struct Shape {
  std::uint32_t ids = 0;
  std::uint16_t spans = 0;
  std::uint16_t sides = 0;
  std::uint32_t coded = 0;
};

StatusOr<Shape> take_header(ByteReader& in, std::size_t index, ReceivedSegment& out) {
  Segment& s = out.segment;
  Shape shape;
  const auto flags = in.take<std::uint16_t>();
  const auto codec = in.take<std::uint8_t>();
  s.positions.axes = in.take<std::uint8_t>();
  s.session = in.take_id<SessionId>();
  s.identity = in.take_id<ModelIdentity>();
  s.generation.value = in.take<std::uint64_t>();
  s.seq.value = in.take<std::uint64_t>();
  s.range.begin = in.take<std::uint32_t>();
  s.range.end = in.take<std::uint32_t>();
  s.start = in.take<std::uint32_t>();
  s.rows = in.take<std::uint32_t>();
  s.hidden_size = in.take<std::uint32_t>();
  s.deadline_ms = in.take<std::uint32_t>();
  shape.ids = in.take<std::uint32_t>();
  shape.spans = in.take<std::uint16_t>();
  shape.sides = in.take<std::uint16_t>();
  shape.coded = in.take<std::uint32_t>();
  const auto reserved = in.take<std::uint32_t>();
  if (!in.ok()) return bad(index, "shorter than its header");
  if ((flags & ~(kFlagSample | kFlagBulk)) != 0) return bad(index, "unknown flags");
  if (codec > static_cast<std::uint8_t>(Codec::kSplit)) return bad(index, "unknown codec");
  if (reserved != 0) return bad(index, "reserved bytes are not zero");
  if (s.generation.value == 0 || s.seq.value == 0) return bad(index, "generation and seq begin with 1");
  if (s.range.begin > s.range.end) return bad(index, "the range ends before it begins");
  if (s.rows == 0 || s.rows > kMaxSegmentRows)
    return bad(index, fmt::format("rows must be 1 to {}", kMaxSegmentRows));
  if (s.hidden_size > kMaxHidden) return bad(index, fmt::format("hidden size above {}", kMaxHidden));
  if (s.start > kMaxSessionTokens - s.rows) return bad(index, "positions beyond the longest session");
  if (s.positions.axes != 0 && s.positions.axes != 1 && s.positions.axes != 3) {
    return bad(index, "rotary axes must be 0, 1 or 3");
  }
  if (shape.ids != 0 && shape.ids != s.rows) return bad(index, "ids must be none or one per row");
  if (shape.spans > kMaxMaskSpans) return bad(index, "too many mask spans");
  if (shape.sides > kMaxSideTensors) return bad(index, "too many side tensors");
  if (s.hidden_size == 0 && (shape.coded != 0 || codec != 0))
    return bad(index, "coded bytes without hidden states");
  if (s.hidden_size == 0 && shape.ids == 0) return bad(index, "neither hidden states nor ids");
  s.sample = (flags & kFlagSample) != 0;
  s.lane = (flags & kFlagBulk) != 0 ? Lane::kBulk : Lane::kDecode;
  out.codec = static_cast<Codec>(codec);
  return shape;
}

Status take_sides(ByteReader& in, std::size_t index, std::uint16_t count, Segment& s) {
  for (std::uint16_t i = 0; i < count; ++i) {
    SideTensor side;
    side.name = in.take_bytes(in.take<std::uint8_t>());
    side.width = in.take<std::uint32_t>();
    if (side.name.empty() || side.name.size() > kMaxSideTensorName)
      return bad(index, "side tensor's name length");
    if (side.width == 0 || side.width > kMaxHidden) return bad(index, "side tensor's width");
    const std::string_view data = in.take_bytes(std::uint64_t{2} * s.rows * side.width);
    if (!in.ok()) return bad(index, "shorter than its side tensors");
    side.data = make_payload(data);
    s.sides.push_back(std::move(side));
  }
  return absl::OkStatus();
}

/// The uncoded parts behind the header. take_bytes() checks each length before its vector is made.
Status take_plain(ByteReader& in, std::size_t index, const Shape& shape, Segment& s) {
  ByteReader ids(in.take_bytes(std::uint64_t{4} * shape.ids));
  ByteReader positions(in.take_bytes(std::uint64_t{4} * s.rows * s.positions.axes));
  ByteReader spans(in.take_bytes(std::uint64_t{8} * shape.spans));
  if (!in.ok()) return bad(index, "shorter than its ids, positions and spans");
  while (ids.left() > 0) s.ids.push_back(ids.take<std::int32_t>());
  while (positions.left() > 0) s.positions.values.push_back(positions.take<std::int32_t>());
  while (spans.left() > 0) {
    MaskSpan span;
    span.begin = spans.take<std::uint32_t>();
    span.end = spans.take<std::uint32_t>();
    if (span.begin >= span.end || span.end > s.end())
      return bad(index, "mask span empty or beyond the segment");
    s.spans.push_back(span);
  }
  return take_sides(in, index, shape.sides, s);
}

StatusOr<ReceivedSegment> parse_segment(std::string_view bytes, std::size_t index) {
  ReceivedSegment received;
  ByteReader in(bytes.substr(4));  // behind the length, which the caller has read
  MESH_ASSIGN_OR_RETURN(const Shape shape, take_header(in, index, received));
  MESH_RETURN_IF_ERROR(take_plain(in, index, shape, received.segment));
  received.coded = in.take_bytes(shape.coded);
  received.mac = in.take_id<Mac>();
  if (!in.ok() || in.left() != 0) return bad(index, "its length differs from what its header implies");
  received.covered = bytes.substr(0, bytes.size() - Mac::kSize);
  return received;
}

}  // namespace

std::uint64_t Segment::raw_bytes() const {
  std::uint64_t bytes = size_of(hidden) + 4 * ids.size() + 4 * positions.values.size() + 8 * spans.size();
  for (const SideTensor& side : sides) bytes += size_of(side.data);
  return bytes;
}

StatusOr<std::vector<ReceivedSegment>> parse_frame(std::string_view body) {
  ByteReader in(body);
  if (in.take_bytes(4) != kMagic)
    return error(StatusCode::kInvalidArgument, "not a frame: it must begin with MSHF");
  const auto version = in.take<std::uint16_t>();
  const auto count = in.take<std::uint16_t>();
  const auto length = in.take<std::uint32_t>();
  if (!in.ok()) return error(StatusCode::kInvalidArgument, "frame: shorter than its header");
  if (version != kWireVersion) {
    return error(StatusCode::kInvalidArgument, "frame: version {}, this program speaks {}", version,
                 kWireVersion);
  }
  if (length != body.size()) {
    return error(StatusCode::kInvalidArgument, "frame: {} bytes came, its header says {}", body.size(),
                 length);
  }
  if (count == 0 || count > kMaxSegmentsPerFrame) {
    return error(StatusCode::kInvalidArgument, "frame: {} segments, expected 1 to {}", count,
                 kMaxSegmentsPerFrame);
  }
  std::vector<ReceivedSegment> segments;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = body.size() - in.left();
    const auto size = in.take<std::uint32_t>();
    if (!in.ok() || size < 4 + Mac::kSize) return bad(i, "truncated");
    in.take_bytes(size - 4);
    if (!in.ok()) return bad(i, "longer than what is left of the frame");
    MESH_ASSIGN_OR_RETURN(ReceivedSegment segment, parse_segment(body.substr(at, size), i));
    segments.push_back(std::move(segment));
  }
  if (in.left() != 0)
    return error(StatusCode::kInvalidArgument, "frame: {} bytes behind its last segment", in.left());
  return segments;
}

bool mac_fits(const ReceivedSegment& received, const SessionSecret& secret) {
  return verify_mac(secret, {kMacDomain, received.covered}, received.mac);
}

Status decode_hidden(ReceivedSegment& received, HiddenCodec& codec) {
  Segment& s = received.segment;
  if (s.hidden_size == 0) return absl::OkStatus();
  const std::size_t raw_size = std::size_t{2} * s.rows * s.hidden_size;  // ≤ 128 MiB by the limits
  MESH_ASSIGN_OR_RETURN(std::string raw, codec.decode(received.codec, received.coded, raw_size));
  s.hidden = std::make_shared<const std::string>(std::move(raw));
  return absl::OkStatus();
}

void FrameWriter::add(const Segment& s, const SessionSecret& secret, Codec codec, HiddenCodec& coder) {
  MESH_CHECK(count_ < kMaxSegmentsPerFrame);
  MESH_CHECK(s.rows >= 1 && s.rows <= kMaxSegmentRows && s.hidden_size <= kMaxHidden);
  MESH_CHECK(size_of(s.hidden) == std::uint64_t{2} * s.rows * s.hidden_size);
  MESH_CHECK(s.ids.empty() || s.ids.size() == s.rows);
  MESH_CHECK(s.positions.values.size() == std::size_t{s.positions.axes} * s.rows);
  MESH_CHECK(s.spans.size() <= kMaxMaskSpans && s.sides.size() <= kMaxSideTensors);
  if (s.hidden_size == 0) codec = Codec::kIdentity;
  const std::size_t at = body_.size();
  ByteWriter out(body_);
  out.put(std::uint32_t{0});  // length, known at the end
  out.put(static_cast<std::uint16_t>((s.sample ? kFlagSample : 0) | (s.lane == Lane::kBulk ? kFlagBulk : 0)));
  out.put(static_cast<std::uint8_t>(codec));
  out.put(s.positions.axes);
  out.put_bytes(s.session.view());
  out.put_bytes(s.identity.view());
  out.put(s.generation.value);
  out.put(s.seq.value);
  out.put(s.range.begin);
  out.put(s.range.end);
  out.put(s.start);
  out.put(s.rows);
  out.put(s.hidden_size);
  out.put(s.deadline_ms);
  out.put(static_cast<std::uint32_t>(s.ids.size()));
  out.put(static_cast<std::uint16_t>(s.spans.size()));
  out.put(static_cast<std::uint16_t>(s.sides.size()));
  const std::size_t coded_size_at = body_.size();
  out.put(std::uint32_t{0});  // coded bytes, known after coding
  out.put(std::uint32_t{0});
  for (const TokenId id : s.ids) out.put(id);
  for (const std::int32_t position : s.positions.values) out.put(position);
  for (const MaskSpan& span : s.spans) {
    out.put(span.begin);
    out.put(span.end);
  }
  for (const SideTensor& side : s.sides) {
    MESH_CHECK(!side.name.empty() && side.name.size() <= kMaxSideTensorName);
    MESH_CHECK(size_of(side.data) == std::uint64_t{2} * s.rows * side.width);
    out.put(static_cast<std::uint8_t>(side.name.size()));
    out.put_bytes(side.name);
    out.put(side.width);
    out.put_bytes(*side.data);
  }
  const std::size_t coded_at = body_.size();
  if (s.hidden_size != 0) coder.encode(codec, *s.hidden, body_);
  const std::size_t coded = body_.size() - coded_at;
  const auto patch = [&](std::size_t where, std::size_t value) {
    std::string bytes;
    ByteWriter(bytes).put(static_cast<std::uint32_t>(value));
    body_.replace(where, bytes.size(), bytes);
  };
  patch(coded_size_at, coded);
  patch(at, body_.size() - at + Mac::kSize);
  const Mac mac = compute_mac(secret, {kMacDomain, std::string_view(body_).substr(at)});
  body_.append(mac.view());
  raw_bytes_ += size_of(s.hidden);
  coded_bytes_ += coded;
  ++count_;
}

std::string FrameWriter::finish() {
  MESH_CHECK(count_ > 0);
  std::string header;
  ByteWriter out(header);
  out.put_bytes(kMagic);
  out.put(kWireVersion);
  out.put(static_cast<std::uint16_t>(count_));
  out.put(static_cast<std::uint32_t>(body_.size()));
  body_.replace(0, header.size(), header);
  return std::move(body_);
}

}  // namespace mesh::wire
