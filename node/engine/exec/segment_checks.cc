#include "node/engine/exec/segment_checks.h"

#include <cmath>
#include <cstring>

#include "node/engine/sampling/sampler.h"

namespace mesh::engine {
namespace {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

/// Whether no value has an exponent of ones only (infinity, NaN).
template <class Bits>
bool finite_bits(const std::string& bytes, Bits exponent) {
  bool finite = true;
  for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof(Bits));
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

Status check_ids(const Segment& segment, const Shard& shard, const LayerRange& range) {
  if (!shard.spec().embedding || range.begin != 0) {
    return invalid("token ids need the embedding and a range from layer 0; this step runs {} of a shard {}",
                   to_string(range), to_string(shard.spec()));
  }
  if (segment.ids.size() != segment.rows)
    return invalid("{} ids for {} rows", segment.ids.size(), segment.rows);
  for (const TokenId id : segment.ids) {
    if (id < 0 || static_cast<std::uint32_t>(id) >= shard.profile().vocab) {
      return invalid("token id {} is outside of the vocabulary of {}", id, shard.profile().vocab);
    }
  }
  return absl::OkStatus();
}

Status check_hidden(const Segment& segment, const Shard& shard) {
  const bool narrow = segment.hidden_type == HiddenType::kBfloat16;
  const std::size_t needed = std::size_t{segment.rows} * shard.profile().hidden * (narrow ? 2 : 4);
  if (segment.hidden.size() != needed) {
    return invalid("{} bytes of hidden states, needed {} for {} rows of {} values", segment.hidden.size(),
                   needed, segment.rows, shard.profile().hidden);
  }
  const bool finite = narrow ? finite_bits<std::uint16_t>(segment.hidden, 0x7f80)
                             : finite_bits<std::uint32_t>(segment.hidden, 0x7f800000);
  return finite ? absl::OkStatus() : invalid("the hidden states have values that are not finite");
}

Status check_mask(const Segment& segment) {
  const std::vector<float>& mask = segment.mask->additive;
  const std::size_t keys = std::size_t{segment.start} + segment.rows;
  if (mask.size() != segment.rows * keys) {
    return invalid("a mask of {} values, needed {} rows of {}", mask.size(), segment.rows, keys);
  }
  for (std::size_t row = 0; row < segment.rows; ++row) {
    bool sees = false;
    for (std::size_t key = 0; key < keys; ++key) {
      const float value = mask[row * keys + key];
      if (std::isnan(value) || value == INFINITY) return invalid("mask row {} has a NaN or +infinity", row);
      sees |= value != -INFINITY;
    }
    if (!sees) return invalid("mask row {} hides every key", row);
  }
  return absl::OkStatus();
}

Status check_wanted(const Segment& segment, const Shard& shard, const LayerRange& range) {
  if (segment.want != Want::kTokens) return absl::OkStatus();
  if (!shard.spec().head || range.end != shard.profile().layer_count()) {
    return invalid("tokens need the head and a range to layer {}; this step runs {} of a shard {}",
                   shard.profile().layer_count(), to_string(range), to_string(shard.spec()));
  }
  for (const std::uint32_t row : segment.sample_rows) {
    if (row >= segment.rows) return invalid("row {} is to be sampled, the segment has {}", row, segment.rows);
  }
  if (segment.sample_rows.size() > segment.rows) return invalid("more rows to sample than the segment has");
  if (segment.top > kMaxTop) return invalid("top is {}, at most {} are reported", segment.top, kMaxTop);
  return check_sampling(segment.sampling);
}

}  // namespace

Status check_segment(const Segment& segment, const Shard& shard, const LayerRange& range,
                     bool learned_positions) {
  if (segment.rows < 1 || segment.rows > kMaxSegmentRows) {
    return invalid("a segment has 1 … {} rows, not {}", kMaxSegmentRows, segment.rows);
  }
  const Position limit = shard.profile().max_positions;
  if (std::uint64_t{segment.start} + segment.rows > limit) {
    return error(StatusCode::kOutOfRange, "the segment ends at token {}, the model takes {}",
                 std::uint64_t{segment.start} + segment.rows, limit);
  }
  const int inputs = !segment.ids.empty() + !segment.hidden.empty() + (segment.from != nullptr);
  if (inputs != 1) return invalid("a segment has either ids or hidden states");
  if (!segment.ids.empty()) {
    MESH_RETURN_IF_ERROR(check_ids(segment, shard, range));
  } else if (segment.from == nullptr) {
    MESH_RETURN_IF_ERROR(check_hidden(segment, shard));
  } else if (segment.hidden_type != HiddenType::kBfloat16) {
    return invalid("the hidden states of another step are bfloat16");
  }
  if (!segment.rotary_positions.empty()) {
    if (segment.rotary_positions.size() != segment.rows) {
      return invalid("{} rotary positions for {} rows", segment.rotary_positions.size(), segment.rows);
    }
    for (const Position position : segment.rotary_positions) {
      if (learned_positions && position >= limit)
        return invalid("position {} is beyond the model's {}", position, limit);
    }
  }
  if (segment.mask) MESH_RETURN_IF_ERROR(check_mask(segment));
  return check_wanted(segment, shard, range);
}

std::vector<std::uint32_t> sampled_rows(const Segment& segment) {
  if (segment.sample_rows.empty()) return {segment.rows - 1};
  return segment.sample_rows;
}

}  // namespace mesh::engine
