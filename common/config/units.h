#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace mesh::config {

/// "8GiB", "512 MB", "1.5GiB", "4096": bytes. Units B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB
/// (of 1024).
StatusOr<std::uint64_t> parse_size(std::string_view text);
std::string format_size(std::uint64_t bytes);

/// "250ms", "2s", "1.5m", "2h"; a bare number is refused but for 0.
StatusOr<Duration> parse_duration(std::string_view text);
std::string format_duration(Duration duration);

}  // namespace mesh::config
