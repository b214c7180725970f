#pragma once

#include <string_view>

namespace mesh::hub {

inline constexpr std::string_view kConfig = "config.json";
inline constexpr std::string_view kGenerationConfig = "generation_config.json";
inline constexpr std::string_view kTokenizer = "tokenizer.json";
inline constexpr std::string_view kTokenizerConfig = "tokenizer_config.json";
inline constexpr std::string_view kChatTemplate = "chat_template.jinja";
inline constexpr std::string_view kWeights = "model.safetensors";
inline constexpr std::string_view kWeightsIndex = "model.safetensors.index.json";
inline constexpr std::string_view kWeightsSuffix = ".safetensors";

/// A file name that a model may have: 1–255 of [A-Za-z0-9._-], not starting with a dot, no folder.
bool is_file_name(std::string_view name);
/// A HuggingFace id: ^[\w.-]{1,96}/[\w.-]{1,96}$, neither part "." or "..".
bool is_model_id(std::string_view id);
/// A branch, tag or commit: at most 255 of [\w./-], no part empty, "." or "..".
bool is_revision(std::string_view revision);

}  // namespace mesh::hub
