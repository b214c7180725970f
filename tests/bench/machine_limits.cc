#include "tests/bench/machine_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace mesh::bench {

LimitMeter::LimitMeter(unsigned threads) : threads_(threads) {
  auto read = tools::ReadRate::create(threads, std::size_t{1} << 30);
  if (!read.ok()) {
    fmt::print(stderr, "the read limit: {}\n", message_of(read.status()));
    std::exit(1);
  }
  read_ = *std::move(read);
}

void LimitMeter::pass() {
  read_->pass();
  matrix_flops_ = std::max(matrix_flops_, matrix_rate_pass(static_cast<int>(threads_)));
}

MachineLimits LimitMeter::best() const {
  return {read_->bytes_per_second(), matrix_flops_};
}

MachineLimits measure_limits(int threads) {
  LimitMeter meter(static_cast<unsigned>(threads));
  for (int pass = 0; pass < 10; ++pass) meter.pass();
  return meter.best();
}

std::string to_string(const MachineLimits& limits) {
  return fmt::format("limits of this run: read {:.1f} GB/s, float32 products {:.0f} GFLOP/s",
                     limits.read_bytes_per_s * 1e-9, limits.matrix_flops * 1e-9);
}

}  // namespace mesh::bench
