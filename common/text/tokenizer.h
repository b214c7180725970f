#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

struct MeshTokenizer;

namespace mesh {

/// Whether the tokenizer's own template may add tokens (usually <s>). A rendered chat template already holds
/// them.
enum class AddSpecial { kNo, kYes };
enum class SkipSpecial { kNo, kYes };

/// One model's tokenizer: immutable, and safe to use from any number of threads at once.
class Tokenizer {
 public:
  /// From the contents of tokenizer.json and, where the model has it, tokenizer_config.json (special tokens
  /// that the first lacks), as transformers reads them. kInvalidArgument: a file that is broken, too large (>
  /// 128 MiB) or asks for a component that does not exist.
  static StatusOr<std::shared_ptr<const Tokenizer>> load(std::string_view tokenizer_json,
                                                         std::string_view tokenizer_config_json = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of `text`. kInvalidArgument: `text` is not UTF-8 or exceeds 16 MiB.
  StatusOr<std::vector<TokenId>> encode(std::string_view text, AddSpecial add_special) const;
  /// Text of `ids`; ids without a token (vocabularies are padded) give nothing, broken UTF-8 gives U+FFFD.
  StatusOr<std::string> decode(std::span<const TokenId> ids, SkipSpecial skip_special) const;

  /// Tokens, added ones included: the highest id is below it unless the vocabulary has holes.
  std::size_t vocab_size() const;
  /// The token as the vocabulary spells it ("Ġthe", "<0x0A>"); kNotFound when `id` has none.
  StatusOr<std::string> token(TokenId id) const;
  /// The bytes that `id` adds in the middle of a text; need not be whole characters. kNotFound: `id` has no
  /// token.
  StatusOr<std::string> token_bytes(TokenId id) const;
  /// The id of the token spelled `token`; kNotFound when there is none.
  StatusOr<TokenId> id_of(std::string_view token) const;
  bool is_special(TokenId id) const;

  const MeshTokenizer* handle() const { return handle_; }

 private:
  explicit Tokenizer(MeshTokenizer* handle) : handle_(handle) {}
  MeshTokenizer* handle_;
};

}  // namespace mesh
