#include "common/json/view.h"

#include <algorithm>
#include <cmath>

#include "common/json/error_fields.h"

namespace mesh::json {
namespace {

std::string_view name_of(const Value& value) {
  switch (value.kind()) {
    case boost::json::kind::null:
      return "null";
    case boost::json::kind::bool_:
      return "a boolean";
    case boost::json::kind::string:
      return "a string";
    case boost::json::kind::array:
      return "an array";
    case boost::json::kind::object:
      return "an object";
    default:
      return "a number";
  }
}

/// 2^63 and 2^64: doubles below them convert without loss of range.
constexpr double kTwo63 = 9223372036854775808.0;
constexpr double kTwo64 = 18446744073709551616.0;

}  // namespace

Status View::error(std::string_view what) const {
  const std::string_view where = path_.empty() ? "the document" : std::string_view(path_);
  Status status = mesh::error(StatusCode::kInvalidArgument, "{}: {}", where, what);
  return path_.empty() ? status : with_param(std::move(status), path_);
}

Status View::mismatch(std::string_view wanted) const {
  return error(fmt::format("expected {}, got {}", wanted, name_of(*value_)));
}

std::string View::path_of(std::string_view key) const {
  const std::string shown(key.substr(0, 80));
  return path_.empty() ? shown : path_ + "." + shown;
}

StatusOr<std::optional<View>> View::find(std::string_view key) const {
  const Object* object = value_->if_object();
  if (object == nullptr) return mismatch("an object");
  const Value* value = object->if_contains({key.data(), key.size()});
  if (value == nullptr || value->is_null()) return std::optional<View>{};
  return std::optional<View>(View(*value, path_of(key)));
}

StatusOr<View> View::field(std::string_view key) const {
  const Object* object = value_->if_object();
  if (object == nullptr) return mismatch("an object");
  const Value* value = object->if_contains({key.data(), key.size()});
  if (value == nullptr) return View(*value_, path_of(key)).error("missing");
  return View(*value, path_of(key));
}

StatusOr<std::vector<View>> View::elements() const {
  const Array* array = value_->if_array();
  if (array == nullptr) return mismatch("an array");
  std::vector<View> views;
  views.reserve(array->size());
  for (std::size_t i = 0; i < array->size(); ++i)
    views.emplace_back((*array)[i], fmt::format("{}[{}]", path_, i));
  return views;
}

std::vector<std::string> View::unknown_fields(std::initializer_list<std::string_view> known) const {
  std::vector<std::string> unknown;
  if (const Object* object = value_->if_object()) {
    for (const auto& field : *object) {
      const std::string_view key(field.key().data(), field.key().size());
      if (std::find(known.begin(), known.end(), key) == known.end()) unknown.push_back(path_of(key));
    }
  }
  return unknown;
}

Status View::only_fields(std::initializer_list<std::string_view> known) const {
  const std::vector<std::string> unknown = unknown_fields(known);
  if (unknown.empty()) return absl::OkStatus();
  return View(*value_, unknown.front()).error("unknown field");
}

StatusOr<std::int64_t> View::as_signed(std::int64_t low, std::int64_t high) const {
  std::int64_t number = 0;
  bool fits = true;
  if (value_->is_int64()) {
    number = value_->get_int64();
  } else if (value_->is_uint64()) {
    fits = value_->get_uint64() <= static_cast<std::uint64_t>(high);
    number = fits ? static_cast<std::int64_t>(value_->get_uint64()) : 0;
  } else if (value_->is_double()) {
    const double real = value_->get_double();
    if (real != std::trunc(real)) return error("expected an integer, got a fraction");
    fits = real >= -kTwo63 && real < kTwo63;
    number = fits ? static_cast<std::int64_t>(real) : 0;
  } else {
    return mismatch("an integer");
  }
  if (!fits || number < low || number > high) return error(fmt::format("should be from {} to {}", low, high));
  return number;
}

StatusOr<std::uint64_t> View::as_unsigned(std::uint64_t high) const {
  std::uint64_t number = 0;
  bool fits = true;
  if (value_->is_uint64()) {
    number = value_->get_uint64();
  } else if (value_->is_int64()) {
    fits = value_->get_int64() >= 0;
    number = static_cast<std::uint64_t>(value_->get_int64());
  } else if (value_->is_double()) {
    const double real = value_->get_double();
    if (real != std::trunc(real)) return error("expected an integer, got a fraction");
    fits = real >= 0 && real < kTwo64;
    number = fits ? static_cast<std::uint64_t>(real) : 0;
  } else {
    return mismatch("an integer");
  }
  if (!fits || number > high) return error(fmt::format("should be from 0 to {}", high));
  return number;
}

StatusOr<std::string> View::as_text() const {
  const auto* text = value_->if_string();
  if (text == nullptr) return mismatch("a string");
  return std::string(text->data(), text->size());
}

StatusOr<bool> View::as_bool() const {
  if (!value_->is_bool()) return mismatch("a boolean");
  return value_->get_bool();
}

StatusOr<double> View::as_double() const {
  if (value_->is_double()) return value_->get_double();
  if (value_->is_int64()) return static_cast<double>(value_->get_int64());
  if (value_->is_uint64()) return static_cast<double>(value_->get_uint64());
  return mismatch("a number");
}

StatusOr<Object> View::as_object() const {
  if (!value_->is_object()) return mismatch("an object");
  return value_->get_object();
}

StatusOr<Array> View::as_array() const {
  if (!value_->is_array()) return mismatch("an array");
  return value_->get_array();
}

}  // namespace mesh::json
