#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/wire/token_codec.h"

/// Any body as a token message and as either kind of answers; what was accepted is written back as the same
/// bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::wire;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto tokens = parse_tokens(body); tokens.ok()) {
    for (const ReceivedToken& token : *tokens) (void)mac_fits(token, mesh::SessionSecret{});
  }
  if (const auto answers = parse_segment_answers(body); answers.ok()) {
    MESH_CHECK(encode_segment_answers(*answers) == body);
  }
  if (const auto answers = parse_token_answers(body); answers.ok())
    MESH_CHECK(encode_token_answers(*answers) == body);
  return 0;
}
