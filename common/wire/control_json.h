#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/json/view.h"
#include "common/wire/control_fields.h"

// Writes and reads what control_fields.h lists. Private to common/wire.
namespace mesh::wire {

template <class T>
concept Listed = requires { Fields<T>::list; };

// Declared first: templates find these for types of std only here.
inline json::Value value_of(const LayerRange& layers);
inline json::Value value_of(const std::string& text);
inline json::Value value_of(const SignedDirective& directive);
template <class T>
json::Value value_of(const std::vector<T>& items);
template <class T>
json::Value value_of(const std::optional<T>& value);
template <class T>
json::Value value_of(const T& value);

template <Listed Message>
json::Object object_of(const Message& message) {
  json::Object out;
  const auto add = [&](const auto& field) { out[field.name] = value_of(message.*field.member); };
  std::apply([&](const auto&... field) { (add(field), ...); }, Fields<Message>::list);
  return out;
}

inline json::Value value_of(const LayerRange& layers) {
  return json::Array{layers.begin, layers.end};
}
inline json::Value value_of(const std::string& text) {
  return boost::json::string(json::as_utf8(text));
}
inline json::Value value_of(const SignedDirective& directive) {
  return json::Object{{"body", directive.body}, {"signature", to_hex(directive.signature)}};
}
template <class T>
json::Value value_of(const std::vector<T>& items) {
  json::Array list;
  list.reserve(items.size());
  for (const T& item : items) list.push_back(value_of(item));
  return list;
}
template <class T>
json::Value value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : json::Value();
}
template <class T>
json::Value value_of(const T& value) {
  if constexpr (Listed<T>) {
    return object_of(value);
  } else if constexpr (std::is_enum_v<T>) {
    return json::Value(EnumNames<T>::names.at(static_cast<std::size_t>(value)));
  } else if constexpr (json::detail::IsOpaqueId<T>::value) {
    return json::Value(value.hex());
  } else if constexpr (json::detail::IsOrdinal<T>::value) {
    return json::Value(value.value);
  } else {
    static_assert(std::is_arithmetic_v<T>, "no JSON writing for this type");
    return json::Value(value);
  }
}

inline Status read_into(const json::View& view, LayerRange& layers);
inline Status read_into(const json::View& view, double& value);
inline Status read_into(const json::View& view, SignedDirective& directive);
template <class T>
Status read_into(const json::View& view, std::vector<T>& list);
template <class T>
Status read_into(const json::View& view, std::optional<T>& value);
template <class T>
Status read_into(const json::View& view, T& value);

template <Listed Message, class Member>
Status read_field(const json::View& view, const Field<Message, Member>& field, Message& message) {
  if (field.may_miss) {
    MESH_ASSIGN_OR_RETURN(const std::optional<json::View> found, view.find(field.name));
    return found ? read_into(*found, message.*field.member) : absl::OkStatus();
  }
  MESH_ASSIGN_OR_RETURN(const json::View found, view.field(field.name));
  return read_into(found, message.*field.member);
}

/// In the order of the list, up to the first field that is missing or wrong.
template <Listed Message>
Status read_message(const json::View& view, Message& message) {
  Status status;
  const auto read = [&](const auto& field) {
    status = read_field(view, field, message);
    return status.ok();
  };
  std::apply([&](const auto&... field) { (read(field) && ...); }, Fields<Message>::list);
  return status;
}

inline Status read_into(const json::View& view, LayerRange& layers) {
  std::vector<std::uint32_t> pair;
  MESH_RETURN_IF_ERROR(read_into(view, pair));
  if (pair.size() != 2 || pair[0] > pair[1]) return view.error("expected [begin, end] with begin ≤ end");
  layers = {pair[0], pair[1]};
  return absl::OkStatus();
}
/// All of them are measures.
inline Status read_into(const json::View& view, double& value) {
  MESH_ASSIGN_OR_RETURN(value, view.as<double>());
  return value >= 0 ? absl::OkStatus() : view.error("expected a number that is not negative");
}
inline Status read_into(const json::View& view, SignedDirective& directive) {
  MESH_ASSIGN_OR_RETURN(directive.body, view.get<std::string>("body"));
  MESH_ASSIGN_OR_RETURN(const json::View signature, view.field("signature"));
  MESH_ASSIGN_OR_RETURN(const std::string hex, signature.as<std::string>());
  const auto raw = from_hex(hex);
  if (!raw || raw->size() != 64) return signature.error("expected 128 hex digits");
  directive.signature = *raw;
  return absl::OkStatus();
}
template <class T>
Status read_into(const json::View& view, std::vector<T>& list) {
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> items, view.elements());
  list.clear();
  list.reserve(items.size());
  for (const json::View& item : items) MESH_RETURN_IF_ERROR(read_into(item, list.emplace_back()));
  return absl::OkStatus();
}
template <class T>
Status read_into(const json::View& view, std::optional<T>& value) {
  return read_into(view, value.emplace());
}
template <class T>
Status read_into(const json::View& view, T& value) {
  if constexpr (Listed<T>) {
    return read_message(view, value);
  } else if constexpr (std::is_enum_v<T>) {
    MESH_ASSIGN_OR_RETURN(const std::string text, view.as<std::string>());
    constexpr auto& names = EnumNames<T>::names;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (text != names[i]) continue;
      value = static_cast<T>(i);
      return absl::OkStatus();
    }
    return view.error(fmt::format("expected one of {}", fmt::join(names, ", ")));
  } else {
    MESH_ASSIGN_OR_RETURN(value, view.as<T>());
    return absl::OkStatus();
  }
}

}  // namespace mesh::wire
