// JSON of strangers: what was accepted is written and read back as the same document.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/json/view.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = parse(text, {.max_bytes = 1 << 16, .max_depth = 16, .max_values = 1 << 12});
  if (!value.ok()) return 0;
  const auto again = parse(serialize(*value), {.max_bytes = 1 << 20, .max_depth = 16, .max_values = 1 << 12});
  if (!again.ok() || *again != *value) std::abort();
  const View view(*value);
  if (view.find("n").ok() && view.get<std::int32_t>("n").ok() && !view.get<std::int64_t>("n").ok())
    std::abort();
  (void)view.as<double>();
  (void)view.elements();
  (void)view.unknown_fields({"n"});
  return 0;
}
