#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mesh {

/// RFC 4648, section 4, padding required; nothing when `text` is not that.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace mesh
