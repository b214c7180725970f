#include "common/text/tokenizer.h"

#include <cstring>

#include "common/text/abi_call.h"

namespace mesh {

using text::Buffer;
using text::bytes;
using text::to_status;

StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::load(std::string_view tokenizer_json,
                                                           std::string_view tokenizer_config_json) {
  MeshTokenizer* handle = nullptr;
  Buffer message;
  const std::int32_t code =
      mesh_text_tokenizer_new(bytes(tokenizer_json), tokenizer_json.size(), bytes(tokenizer_config_json),
                              tokenizer_config_json.size(), &handle, message.raw());
  MESH_RETURN_IF_ERROR(to_status(code, message));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
}

Tokenizer::~Tokenizer() {
  mesh_text_tokenizer_free(handle_);
}

StatusOr<std::vector<TokenId>> Tokenizer::encode(std::string_view text, AddSpecial add_special) const {
  Buffer ids;
  Buffer message;
  const std::int32_t code = mesh_text_encode(handle_, bytes(text), text.size(),
                                             add_special == AddSpecial::kYes, ids.raw(), message.raw());
  MESH_RETURN_IF_ERROR(to_status(code, message));
  std::vector<TokenId> result(ids.view().size() / sizeof(TokenId));
  if (!result.empty()) std::memcpy(result.data(), ids.view().data(), result.size() * sizeof(TokenId));
  return result;
}

StatusOr<std::string> Tokenizer::decode(std::span<const TokenId> ids, SkipSpecial skip_special) const {
  static_assert(sizeof(TokenId) == sizeof(std::uint32_t));
  Buffer out;
  Buffer message;
  // A negative id becomes one that no vocabulary has.
  const std::int32_t code =
      mesh_text_decode(handle_, reinterpret_cast<const std::uint32_t*>(ids.data()), ids.size(),
                       skip_special == SkipSpecial::kYes, out.raw(), message.raw());
  MESH_RETURN_IF_ERROR(to_status(code, message));
  return out.str();
}

std::size_t Tokenizer::vocab_size() const {
  return mesh_text_vocab_size(handle_);
}

StatusOr<std::string> Tokenizer::token(TokenId id) const {
  Buffer out;
  Buffer message;
  MESH_RETURN_IF_ERROR(
      to_status(mesh_text_token(handle_, static_cast<std::uint32_t>(id), out.raw(), message.raw()), message));
  return out.str();
}

StatusOr<std::string> Tokenizer::token_bytes(TokenId id) const {
  Buffer out;
  Buffer message;
  MESH_RETURN_IF_ERROR(to_status(
      mesh_text_token_bytes(handle_, static_cast<std::uint32_t>(id), out.raw(), message.raw()), message));
  return out.str();
}

StatusOr<TokenId> Tokenizer::id_of(std::string_view token) const {
  std::uint32_t id = 0;
  Buffer message;
  MESH_RETURN_IF_ERROR(
      to_status(mesh_text_token_id(handle_, bytes(token), token.size(), &id, message.raw()), message));
  return static_cast<TokenId>(id);
}

bool Tokenizer::is_special(TokenId id) const {
  return mesh_text_is_special(handle_, static_cast<std::uint32_t>(id));
}

}  // namespace mesh
