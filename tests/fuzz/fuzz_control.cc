#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/wire/control.h"

/// Any text as each message between agent and tracker; what was accepted means the same after writing and
/// reading again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::wire;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto m = parse_join(body); m.ok()) MESH_CHECK(*parse_join(to_json(*m)) == *m);
  if (const auto m = parse_join_reply(body); m.ok()) MESH_CHECK(*parse_join_reply(to_json(*m)) == *m);
  if (const auto m = parse_heartbeat(body); m.ok()) MESH_CHECK(*parse_heartbeat(to_json(*m)) == *m);
  if (const auto m = parse_heartbeat_reply(body); m.ok())
    MESH_CHECK(*parse_heartbeat_reply(to_json(*m)) == *m);
  if (const auto m = parse_leave(body); m.ok()) MESH_CHECK(*parse_leave(to_json(*m)) == *m);
  if (const auto m = parse_directive(body); m.ok()) MESH_CHECK(*parse_directive(to_json(*m)) == *m);
  if (const auto m = parse_control_error(body); m.ok()) MESH_CHECK(*parse_control_error(to_json(*m)) == *m);
  return 0;
}
