#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

struct MeshStream;

namespace mesh {

/// Turns a stream of token ids into text, piece by piece. The pieces joined are the tokenizer's decode of all
/// ids, and each piece is valid UTF-8: bytes of an unfinished character wait. Cost per token does not grow
/// with the text. One exception to the equality: when bytes of a byte-fallback run turn out not to be UTF-8,
/// characters of that run already given out stay, where decode would replace them too. For one thread at a
/// time.
class StreamDecoder {
 public:
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, SkipSpecial skip_special);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&& other) noexcept;
  StreamDecoder& operator=(StreamDecoder&& other) noexcept;

  /// The text that `id` completes; often empty. kInvalidArgument: the tokenizer's decoder cannot be streamed
  /// (CTC).
  StatusOr<std::string> push(TokenId id);
  /// What still waits, at the end of the stream: U+FFFD for an unfinished character. The decoder is then as
  /// new.
  StatusOr<std::string> finish();

 private:
  MeshStream* handle_ = nullptr;
  Status creation_;  ///< why there is no handle
};

}  // namespace mesh
