#include "tests/sim/world.h"

namespace mesh::sim {

Plan Plan::random(std::uint64_t seed) {
  Random r(mix(seed));
  Plan plan;
  plan.seed = seed;
  plan.nodes = r.between(3, 6);
  plan.layers = static_cast<std::uint32_t>(r.between(4, 10));
  plan.head_layers = static_cast<std::uint32_t>(r.between(0, 2));
  plan.sessions = r.between(1, 4);
  const auto maybe = [&](double most) {
    return r.chance(0.5) ? most * static_cast<double>(r.between(1, 100)) / 100 : 0;
  };
  plan.network = {maybe(0.05), maybe(0.05), maybe(0.1), maybe(0.03), maybe(0.1)};
  plan.restarts_per_minute = maybe(4);
  plan.freezes_per_minute = maybe(2);
  plan.step_failures_per_minute = maybe(2);
  plan.cancels = maybe(0.3);
  plan.cuts_per_minute = maybe(4);
  if (r.chance(0.3)) plan.hop_options.kept_bytes = 64 * r.between(1, 40);
  plan.head_options.head_url = kHeadUrl;
  return plan;
}

Plan Plan::repeating(std::uint64_t seed) {
  Plan plan = random(seed);
  Random r(mix(seed) ^ 0x5e5510);
  plan.repeats = 0.8;
  plan.sessions = r.between(4, 12);
  // A block takes 2,048 bytes; a session of 900 tokens reserves 8.
  plan.hop_options.prefix_bytes = 2048 * r.between(2, 24);
  if (r.chance(0.3)) plan.hop_options.cache_bytes = 2048 * r.between(60, 160);
  return plan;
}

Plan Plan::pressed(std::uint64_t seed) {
  Plan plan = repeating(seed);
  Random r(mix(seed) ^ 0x9e55ed);
  plan.sessions = r.between(6, 14);
  plan.restarts_per_minute /= 4;
  plan.cuts_per_minute /= 4;
  plan.freezes_per_minute /= 4;
  // A block takes 2,048 bytes; most sessions reserve 1 to 13.
  plan.hop_options.cache_bytes = 2048 * r.between(14, 30);
  plan.hop_options.spill_bytes = 2048 * r.between(30, 200);
  plan.hop_options.prefix_bytes = r.chance(0.5) ? 2048 * r.between(1, 8) : 0;
  constexpr std::chrono::nanoseconds kPerByte[] = {std::chrono::nanoseconds(1), std::chrono::microseconds(1),
                                                   std::chrono::microseconds(20)};
  plan.copy_time_per_byte = kPerByte[r.between(0, 2)];
  return plan;
}

}  // namespace mesh::sim
