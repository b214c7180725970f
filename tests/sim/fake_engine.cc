#include "tests/sim/fake_engine.h"

#include <algorithm>
#include <cstring>

#include "tests/sim/random.h"

namespace mesh::sim {
namespace {

std::uint64_t whole_blocks(std::uint64_t tokens) {
  return kv_blocks(tokens) * kKvBlockTokens;
}

}  // namespace

std::uint64_t FakeEngine::embedded(TokenId id) {
  return mix(static_cast<std::uint64_t>(id) + 1'000'003);
}
std::uint64_t FakeEngine::layer_output(std::uint32_t layer, std::uint64_t before, std::uint64_t input) {
  return mix(mix(before ^ (std::uint64_t{layer} << 32)) + input);
}
TokenId FakeEngine::sampled(std::uint64_t output) {
  return static_cast<TokenId>(mix(output) % kVocabulary);
}

std::uint64_t FakeEngine::device_tokens() const {
  std::uint64_t tokens = blocks_.size() * kKvBlockTokens;
  for (const auto& [cache, reserved] : reserved_) tokens += reserved;
  return tokens;
}

std::uint64_t FakeEngine::host_tokens() const {
  std::uint64_t tokens = 0;
  for (const pipeline::CacheId cache : on_host_) tokens += whole_blocks(caches_.at(cache).size());
  return tokens;
}

void FakeEngine::carry_out(const pipeline::CacheOrder& order) {
  constexpr std::size_t kBlock = kKvBlockTokens;
  if (const auto* begins = std::get_if<pipeline::BeginCache>(&order)) {
    Cache& cache = caches_[begins->cache];
    if (!begins->range.empty())
      reserved_[begins->cache] = static_cast<std::uint32_t>(whole_blocks(begins->max_tokens));
    for (const pipeline::PrefixBlockId id : begins->blocks) {
      const auto block = blocks_.find(id);
      if (block == blocks_.end()) {
        cache.clear();
        not_begun_.insert(begins->cache);
        return;
      }
      cache.insert(cache.end(), block->second.begin(), block->second.end());
    }
    if (begins->range.empty()) cache.resize(begins->tokens);
  } else if (const auto* shared = std::get_if<pipeline::ShareBlock>(&order)) {
    const Cache& cache = caches_.at(shared->cache);
    const auto first = cache.begin() + static_cast<std::ptrdiff_t>(shared->index * kBlock);
    blocks_[shared->id] = Cache(first, first + kBlock);
  } else if (const auto* dropped = std::get_if<pipeline::DropBlock>(&order)) {
    blocks_.erase(dropped->id);
  } else if (const auto* spilled = std::get_if<pipeline::SpillCache>(&order)) {
    on_host_.insert(spilled->cache);
    const auto reserved = reserved_.extract(spilled->cache);
    if (!reserved.empty()) left_.insert({spilled->cache, reserved.mapped()});
  } else if (const auto* restored = std::get_if<pipeline::RestoreCache>(&order)) {
    on_host_.erase(restored->cache);
    const auto reserved = left_.extract(restored->cache);
    if (!reserved.empty()) reserved_.insert({restored->cache, reserved.mapped()});
  } else {
    const pipeline::CacheId cache = std::get<pipeline::FreeCache>(order).cache;
    caches_.erase(cache);
    reserved_.erase(cache);
    left_.erase(cache);
    on_host_.erase(cache);
    not_begun_.erase(cache);
  }
}

pipeline::StepOutput FakeEngine::run(const pipeline::StepWork& work) {
  pipeline::StepOutput output{work.id, {}};
  for (const pipeline::StepSegment& s : work.segments) {
    pipeline::SegmentOutput& out = output.segments.emplace_back();
    if (fail_next_) {
      out.status = error(StatusCode::kInternal, "hidden states are not finite");
      continue;
    }
    Cache& cache = caches_[s.cache];
    if (on_host_.contains(s.cache)) {
      out.status = error(StatusCode::kFailedPrecondition, "the cache is in host memory");
      misused_ = true;
      continue;
    }
    if (s.start > 0 && not_begun_.contains(s.cache)) {
      out.status = error(StatusCode::kDataLoss, "the cache could not begin as ordered");
      out.cache_lost = true;
      continue;
    }
    not_begun_.erase(s.cache);
    if (s.start < cache.size()) cache.resize(s.start);
    std::string hidden;
    std::uint64_t x = 0;
    for (std::uint32_t row = 0; row < s.rows; ++row) {
      if (work.takes_ids) {
        x = embedded(s.ids.at(row));
      } else {
        std::memcpy(&x, s.hidden->data() + row * sizeof x, sizeof x);
      }
      std::vector<std::uint64_t> states;
      for (std::uint32_t i = 0; i < work.range.size(); ++i) {
        // A mesh with a planted bug may bring another range to a cache: that changes the text, no more.
        const bool known = !cache.empty() && i < cache.back().size();
        x = layer_output(work.range.begin + i, known ? cache.back()[i] : 0, x);
        states.push_back(x);
      }
      cache.push_back(std::move(states));
      hidden.append(reinterpret_cast<const char*>(&x), sizeof x);
    }
    if (!work.ends_model) {
      out.hidden = std::make_shared<const std::string>(std::move(hidden));
    } else if (s.sample) {
      out.token = pipeline::SampledToken{sampled(x), -1.0f};
    }
  }
  fail_next_ = false;
  return output;
}

std::vector<TokenId> FakeEngine::expected(std::uint32_t layers, std::vector<TokenId> ids, std::size_t count,
                                          const std::vector<TokenId>& eos) {
  std::vector<std::uint64_t> before(layers, 0);
  std::vector<TokenId> answer;
  for (std::size_t p = 0; answer.size() < count; ++p) {
    std::uint64_t x = embedded(ids[p]);
    for (std::uint32_t l = 0; l < layers; ++l) x = before[l] = layer_output(l, before[l], x);
    if (p + 1 < ids.size()) continue;
    answer.push_back(sampled(x));
    ids.push_back(answer.back());
    if (std::find(eos.begin(), eos.end(), answer.back()) != eos.end()) break;
  }
  return answer;
}

}  // namespace mesh::sim
