#include "node/pipeline/segment_rows.h"

#include <algorithm>

#include "common/base/check.h"

namespace mesh::pipeline {
namespace {

wire::Payload cut(const wire::Payload& payload, std::size_t row_bytes, std::size_t first, std::size_t count) {
  if (!payload) return nullptr;
  return std::make_shared<const std::string>(*payload, first * row_bytes, count * row_bytes);
}

bool plain(const wire::Segment& s) {
  return s.ids.empty() && s.positions.axes == 0 && s.spans.empty() && s.sides.empty();
}

}  // namespace

wire::Segment slice_rows(const wire::Segment& s, Position from, Position to) {
  MESH_CHECK(s.start <= from && from < to && to <= s.end());
  if (from == s.start && to == s.end()) return s;
  const std::size_t first = from - s.start;
  const std::size_t count = to - from;
  wire::Segment part = s;
  part.start = from;
  part.rows = static_cast<std::uint32_t>(count);
  part.sample = s.sample && to == s.end();
  part.hidden = cut(s.hidden, std::size_t{2} * s.hidden_size, first, count);
  if (!s.ids.empty()) part.ids.assign(s.ids.begin() + first, s.ids.begin() + first + count);
  part.positions.values.clear();
  for (std::size_t axis = 0; axis < s.positions.axes; ++axis) {
    const auto begin = s.positions.values.begin() + static_cast<std::ptrdiff_t>(axis * s.rows + first);
    part.positions.values.insert(part.positions.values.end(), begin,
                                 begin + static_cast<std::ptrdiff_t>(count));
  }
  part.spans.clear();
  for (const wire::MaskSpan& span : s.spans) {
    if (span.begin < to) part.spans.push_back({span.begin, std::min<Position>(span.end, to)});
  }
  for (wire::SideTensor& side : part.sides)
    side.data = cut(side.data, std::size_t{2} * side.width, first, count);
  return part;
}

bool can_merge(const wire::Segment& first, const wire::Segment& next, std::uint32_t max_rows) {
  return plain(first) && plain(next) && next.start == first.end() && first.hidden_size == next.hidden_size &&
         first.rows + next.rows <= max_rows;
}

}  // namespace mesh::pipeline
