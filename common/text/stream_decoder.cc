#include "common/text/stream_decoder.h"

#include <utility>

#include "common/text/abi_call.h"

namespace mesh {

using text::Buffer;
using text::to_status;

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, SkipSpecial skip_special) {
  Buffer message;
  const std::int32_t code =
      mesh_text_stream_new(tokenizer->handle(), skip_special == SkipSpecial::kYes, &handle_, message.raw());
  creation_ = to_status(code, message);
}

StreamDecoder::~StreamDecoder() {
  mesh_text_stream_free(handle_);
}

StreamDecoder::StreamDecoder(StreamDecoder&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      creation_(std::exchange(other.creation_, absl::FailedPreconditionError("the decoder was moved from"))) {
}

StreamDecoder& StreamDecoder::operator=(StreamDecoder&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(creation_, other.creation_);
  return *this;
}

StatusOr<std::string> StreamDecoder::push(TokenId id) {
  MESH_RETURN_IF_ERROR(creation_);
  Buffer out;
  Buffer message;
  MESH_RETURN_IF_ERROR(to_status(
      mesh_text_stream_push(handle_, static_cast<std::uint32_t>(id), out.raw(), message.raw()), message));
  return out.str();
}

StatusOr<std::string> StreamDecoder::finish() {
  MESH_RETURN_IF_ERROR(creation_);
  Buffer out;
  Buffer message;
  MESH_RETURN_IF_ERROR(to_status(mesh_text_stream_finish(handle_, out.raw(), message.raw()), message));
  return out.str();
}

}  // namespace mesh
