#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/json/json.h"

namespace mesh::json {

/// A value of a parsed document and the path that leads to it. Every error is kInvalidArgument, begins with
/// that path
/// ("messages[2].content: expected a string, got a number") and carries it as the status's param
/// (error_fields.h). The document must outlive its views.
class View {
 public:
  explicit View(const Value& value, std::string path = "") : value_(&value), path_(std::move(path)) {}

  const Value& value() const { return *value_; }
  /// "" for the whole document.
  const std::string& path() const { return path_; }

  /// The value as T: bool, std::string, float, double, any integer (range-checked; 3.0 counts as 3), OpaqueId
  /// (hex), Ordinal, json::Object, json::Array.
  template <class T>
  StatusOr<T> as() const;

  /// Object field that must be there.
  StatusOr<View> field(std::string_view key) const;
  /// Object field or nothing; null counts as absent.
  StatusOr<std::optional<View>> find(std::string_view key) const;
  /// Elements of an array.
  StatusOr<std::vector<View>> elements() const;

  /// field(key) as T.
  template <class T>
  StatusOr<T> get(std::string_view key) const {
    MESH_ASSIGN_OR_RETURN(const View view, field(key));
    return view.as<T>();
  }
  /// find(key) as T, or `fallback` when absent.
  template <class T>
  StatusOr<T> get_or(std::string_view key, T fallback) const {
    MESH_ASSIGN_OR_RETURN(const std::optional<View> view, find(key));
    if (!view) return fallback;
    return view->as<T>();
  }
  /// find(key) as T, or nothing when absent.
  template <class T>
  StatusOr<std::optional<T>> get_optional(std::string_view key) const {
    MESH_ASSIGN_OR_RETURN(const std::optional<View> view, find(key));
    if (!view) return std::optional<T>{};
    MESH_ASSIGN_OR_RETURN(T result, view->as<T>());
    return std::optional<T>(std::move(result));
  }
  /// field(key), an array, each element as T.
  template <class T>
  StatusOr<std::vector<T>> get_list(std::string_view key) const {
    MESH_ASSIGN_OR_RETURN(const View view, field(key));
    MESH_ASSIGN_OR_RETURN(const std::vector<View> items, view.elements());
    std::vector<T> list;
    list.reserve(items.size());
    for (const View& item : items) {
      MESH_ASSIGN_OR_RETURN(T element, item.as<T>());
      list.push_back(std::move(element));
    }
    return list;
  }

  /// Paths of the object's fields that are not in `known`.
  std::vector<std::string> unknown_fields(std::initializer_list<std::string_view> known) const;
  /// An error that names the first unknown field, or OK.
  Status only_fields(std::initializer_list<std::string_view> known) const;

  /// kInvalidArgument "PATH: what", with the path as its param.
  Status error(std::string_view what) const;
  /// error("expected `wanted`, got …").
  Status mismatch(std::string_view wanted) const;

 private:
  std::string path_of(std::string_view key) const;
  StatusOr<std::int64_t> as_signed(std::int64_t low, std::int64_t high) const;
  StatusOr<std::uint64_t> as_unsigned(std::uint64_t high) const;
  StatusOr<std::string> as_text() const;
  StatusOr<bool> as_bool() const;
  StatusOr<double> as_double() const;
  StatusOr<Object> as_object() const;
  StatusOr<Array> as_array() const;

  const Value* value_;
  std::string path_;
};

namespace detail {
template <class T>
struct IsOpaqueId : std::false_type {};
template <class Tag, std::size_t N>
struct IsOpaqueId<OpaqueId<Tag, N>> : std::true_type {};
template <class T>
struct IsOrdinal : std::false_type {};
template <class Tag>
struct IsOrdinal<Ordinal<Tag>> : std::true_type {};
}  // namespace detail

template <class T>
StatusOr<T> View::as() const {
  if constexpr (std::same_as<T, bool>) {
    return as_bool();
  } else if constexpr (std::same_as<T, std::string>) {
    return as_text();
  } else if constexpr (std::same_as<T, Object>) {
    return as_object();
  } else if constexpr (std::same_as<T, Array>) {
    return as_array();
  } else if constexpr (std::floating_point<T>) {
    MESH_ASSIGN_OR_RETURN(const double number, as_double());
    constexpr double kLargest = std::numeric_limits<T>::max();
    if (number < -kLargest || number > kLargest) return error("number is out of range");
    return static_cast<T>(number);
  } else if constexpr (std::signed_integral<T>) {
    MESH_ASSIGN_OR_RETURN(const std::int64_t number,
                          as_signed(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    return static_cast<T>(number);
  } else if constexpr (std::unsigned_integral<T>) {
    MESH_ASSIGN_OR_RETURN(const std::uint64_t number, as_unsigned(std::numeric_limits<T>::max()));
    return static_cast<T>(number);
  } else if constexpr (detail::IsOrdinal<T>::value) {
    MESH_ASSIGN_OR_RETURN(const std::uint64_t number, as_unsigned(std::numeric_limits<std::uint64_t>::max()));
    return T{number};
  } else {
    static_assert(detail::IsOpaqueId<T>::value, "no JSON reading for this type");
    MESH_ASSIGN_OR_RETURN(const std::string hex, as_text());
    const auto id = T::parse(hex);
    if (!id) return error(fmt::format("expected {} hex digits", 2 * T::kSize));
    return *id;
  }
}

}  // namespace mesh::json
