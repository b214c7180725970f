#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/wire/frame.h"

/// Any body as a frame: parsing, the MAC check and decoding neither crash nor make more than the header
/// implies, and what was accepted is written back as the same bytes when it is not compressed.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::wire;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  auto segments = parse_frame(body);
  if (!segments.ok()) return 0;
  static HiddenCodec codec;
  const mesh::SessionSecret secret{};
  FrameWriter writer;
  bool plain = true;
  for (ReceivedSegment& received : *segments) {
    (void)mac_fits(received, secret);
    if (!decode_hidden(received, codec).ok()) return 0;
    plain = plain && received.codec == Codec::kIdentity;
    writer.add(received.segment, secret, received.codec, codec);
  }
  const std::string again = writer.finish();
  MESH_CHECK(parse_frame(again).ok());
  MESH_CHECK(!plain || again.size() == body.size());
  return 0;
}
