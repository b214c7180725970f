#pragma once

#include <boost/json/value.hpp>

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace mesh::json {

using Value = boost::json::value;
using Object = boost::json::object;
using Array = boost::json::array;

/// What parse() takes from a stranger. Callers raise them for a format that needs more, never for
/// convenience.
struct Limits {
  std::size_t max_bytes = std::size_t{1} << 20;
  std::size_t max_depth = 32;
  std::size_t max_values = std::size_t{1} << 18;
};

/// Strict JSON (RFC 8259, valid UTF-8, finite numbers). Refuses text over the limits, duplicate keys in one
/// object and anything after the value; errors are kInvalidArgument with the byte offset.
StatusOr<Value> parse(std::string_view text, const Limits& limits = {});

/// Compact JSON text.
std::string serialize(const Value& value);

/// `bytes` when they are UTF-8, else with ? for each byte that is not ASCII: for bytes of strangers in
/// messages.
std::string as_utf8(std::string_view bytes);

}  // namespace mesh::json
