#pragma once

#include "common/wire/segment.h"

namespace mesh::pipeline {

/// Rows [from, to) of `segment`, from and to inside it; `sample` stays only with its last row.
wire::Segment slice_rows(const wire::Segment& segment, Position from, Position to);

/// Whether `next` may be appended to `first`: it follows at once, and neither carries optional parts.
bool can_merge(const wire::Segment& first, const wire::Segment& next, std::uint32_t max_rows);

}  // namespace mesh::pipeline
