#include "node/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "node/engine/ops/elementwise.h"
#include "node/engine/sampling/philox.h"

namespace mesh::engine {
namespace {

/// The ids by logit, best first (the lower id first among equals), sorted only as far as asked for.
class Ranking {
 public:
  explicit Ranking(std::span<const float> logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), TokenId{0});
  }
  TokenId operator[](std::size_t rank) {
    if (rank >= sorted_) sort_to(std::min(ids_.size(), std::max<std::size_t>(rank + 1, 8 * sorted_ + 64)));
    return ids_[rank];
  }

 private:
  void sort_to(std::size_t count) {
    const auto better = [&](TokenId a, TokenId b) {
      const float left = logits_[static_cast<std::size_t>(a)];
      const float right = logits_[static_cast<std::size_t>(b)];
      return left != right ? left > right : a < b;
    };
    const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    const auto last = ids_.begin() + static_cast<std::ptrdiff_t>(count);
    if (last != ids_.end()) std::nth_element(first, last, ids_.end(), better);
    std::sort(first, last, better);
    sorted_ = count;
  }

  std::span<const float> logits_;
  std::vector<TokenId> ids_;
  std::size_t sorted_ = 0;
};

TokenId draw(std::span<const float> logits, Ranking& ranking, const SamplingParams& params, float uniform) {
  const std::size_t count =
      params.top_k == 0 ? logits.size() : std::min<std::size_t>(params.top_k, logits.size());
  const double best = logits[static_cast<std::size_t>(ranking[0])];
  const auto weight = [&](float logit) { return std::exp((logit - best) / params.temperature); };
  const auto ranked = [&](std::size_t rank) {
    return weight(logits[static_cast<std::size_t>(ranking[rank])]);
  };
  double total = 0;
  if (params.top_k == 0) {
    for (const float logit : logits) total += weight(logit);
  } else {
    for (std::size_t rank = 0; rank < count; ++rank) total += ranked(rank);
  }
  std::size_t kept = count;
  if (params.top_p < 1) {
    const double wanted = params.top_p * total;
    double mass = 0;
    for (kept = 0; kept < count && (kept == 0 || mass < wanted); ++kept) mass += ranked(kept);
    total = mass;
  }
  const double target = uniform * total;
  double mass = 0;
  for (std::size_t rank = 0; rank < kept; ++rank) {
    mass += ranked(rank);
    if (mass > target) return ranking[rank];
  }
  return ranking[kept - 1];
}

}  // namespace

Status check_sampling(const SamplingParams& params) {
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return error(StatusCode::kInvalidArgument, "temperature must be finite and at least 0, is {}",
                 params.temperature);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return error(StatusCode::kInvalidArgument, "top_p must lie in (0, 1], is {}", params.top_p);
  }
  return absl::OkStatus();
}

SampledToken sample(std::span<const float> logits, const SamplingParams& params, Position position,
                    std::uint32_t top) {
  const auto count = static_cast<std::int64_t>(logits.size());
  const double normaliser = ops::log_sum_exp(logits.data(), count);
  const auto logprob = [&](TokenId id) {
    return static_cast<float>(logits[static_cast<std::size_t>(id)] - normaliser);
  };
  SampledToken token;
  if (params.temperature == 0 && top == 0) {
    token.id = static_cast<TokenId>(ops::argmax(logits.data(), count));
    token.logprob = logprob(token.id);
    return token;
  }
  Ranking ranking(logits);
  token.id = params.temperature == 0
                 ? ranking[0]
                 : draw(logits, ranking, params, uniform_for(params.seed, params.choice, position));
  token.logprob = logprob(token.id);
  for (std::size_t rank = 0; rank < std::min<std::size_t>(top, logits.size()); ++rank) {
    token.top.push_back({ranking[rank], logprob(ranking[rank])});
  }
  return token;
}

}  // namespace mesh::engine
