#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/json/view.h"
#include "common/wire/control.h"

// Pieces that control messages share. Private to common/wire.
namespace mesh::wire {

template <class T>
json::Array list_of(const std::vector<T>& items) {
  json::Array list;
  list.reserve(items.size());
  for (const T& item : items) list.emplace_back(item);
  return list;
}

template <class T, class Writer>
json::Array list_of(const std::vector<T>& items, const Writer& write) {
  json::Array list;
  list.reserve(items.size());
  for (const T& item : items) list.emplace_back(write(item));
  return list;
}

template <class Reader>
auto read_list(const json::View& view, std::string_view key, const Reader& read)
    -> StatusOr<std::vector<std::decay_t<decltype(*read(view))>>> {
  MESH_ASSIGN_OR_RETURN(const json::View list, view.field(key));
  MESH_ASSIGN_OR_RETURN(const std::vector<json::View> items, list.elements());
  std::vector<std::decay_t<decltype(*read(view))>> result;
  result.reserve(items.size());
  for (const json::View& item : items) {
    MESH_ASSIGN_OR_RETURN(auto element, read(item));
    result.push_back(std::move(element));
  }
  return result;
}

/// `names[i]` is the text of the enumerator with value i.
template <class Enum, std::size_t N>
std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
  return names.at(static_cast<std::size_t>(value));
}

template <class Enum, std::size_t N>
StatusOr<Enum> read_enum(const json::View& view, std::string_view key,
                         const std::array<std::string_view, N>& names) {
  MESH_ASSIGN_OR_RETURN(const json::View field, view.field(key));
  MESH_ASSIGN_OR_RETURN(const std::string text, field.as<std::string>());
  for (std::size_t i = 0; i < N; ++i) {
    if (text == names[i]) return static_cast<Enum>(i);
  }
  std::string known;
  for (const std::string_view name : names) known += (known.empty() ? "" : ", ") + std::string(name);
  return field.error("expected one of " + known);
}

json::Object stamp_object(const Stamp& stamp);
StatusOr<Stamp> read_stamp(const json::View& view, std::string_view key);
/// [begin, end]
json::Array layers_array(const LayerRange& layers);
StatusOr<LayerRange> read_layers(const json::View& view, std::string_view key);
json::Object shard_object(const ShardStatus& shard);
StatusOr<ShardStatus> read_shard(const json::View& view);

}  // namespace mesh::wire
