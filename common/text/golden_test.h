#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/json/json.h"

namespace mesh {

/// Contents of a file under tests/golden.
inline std::string golden_text(const std::string& name) {
  std::ifstream file(std::string(MESH_SOURCE_DIR) + "/tests/golden/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline json::Value golden_json(const std::string& name) {
  auto parsed =
      json::parse(golden_text(name), {.max_bytes = 64u << 20, .max_depth = 64, .max_values = 1u << 22});
  EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status();
  return parsed.ok() ? *std::move(parsed) : json::Value();
}

/// What transformers encodes and decodes, by tokenizer.
inline const json::Array& tokenizer_cases() {
  static const json::Value cases = golden_json("tokenizers/cases.json");
  return cases.as_array();
}

inline std::string text_of(const json::Value& value) {
  return std::string(value.as_string());
}

inline std::vector<TokenId> ids_of(const json::Value& list) {
  std::vector<TokenId> ids;
  for (const json::Value& id : list.as_array()) ids.push_back(id.to_number<TokenId>());
  return ids;
}

}  // namespace mesh
