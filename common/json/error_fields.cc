#include "common/json/error_fields.h"

#include "absl/strings/cord.h"

namespace mesh::json {
namespace {

constexpr const char* kParam = "meshnet/param";
constexpr const char* kCode = "meshnet/code";

Status with(Status status, const char* type, std::string_view text) {
  // From a C string: the constructor from std::string is a template that clang and g++ name differently.
  if (!status.ok()) status.SetPayload(type, absl::Cord(std::string(text).c_str()));
  return status;
}

std::optional<std::string> read(const Status& status, const char* type) {
  const auto payload = status.GetPayload(type);
  if (!payload) return std::nullopt;
  return std::string(*payload);
}

}  // namespace

Status with_param(Status status, std::string_view param) {
  return with(std::move(status), kParam, param);
}
Status with_code(Status status, std::string_view code) {
  return with(std::move(status), kCode, code);
}
std::optional<std::string> param_of(const Status& status) {
  return read(status, kParam);
}
std::optional<std::string> code_of(const Status& status) {
  return read(status, kCode);
}

}  // namespace mesh::json
