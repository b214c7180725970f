#include "tracker/gateway/answer_text.h"

namespace mesh::gateway {

AnswerText::AnswerText(std::shared_ptr<const Tokenizer> tokenizer, std::vector<std::string> stops)
    : decoder_(std::move(tokenizer), SkipSpecial::kYes), matcher_(std::move(stops)) {}

StatusOr<std::string> AnswerText::push(const Token& token) {
  ++tokens_;
  if (token.is_eos) return std::string();
  MESH_ASSIGN_OR_RETURN(const std::string piece, decoder_.push(token.id));
  return matcher_.push(piece);
}

StatusOr<std::string> AnswerText::finish() {
  if (matcher_.stopped()) return std::string();
  MESH_ASSIGN_OR_RETURN(const std::string rest, decoder_.finish());
  std::string text = matcher_.push(rest);
  return text + matcher_.finish();
}

}  // namespace mesh::gateway
