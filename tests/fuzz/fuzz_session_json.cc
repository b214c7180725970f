#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/wire/session_json.h"

/// Any text as each of a session's control messages; what was accepted means the same after writing and
/// reading again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::wire;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto m = read_open(body); m.ok()) {
    const auto again = read_open(write_open(m->request, m->sealed_secret, m->fresh));
    MESH_CHECK(again.ok() && again->request == m->request && again->fresh == m->fresh);
  }
  if (const auto m = read_open_reply(body); m.ok()) MESH_CHECK(*read_open_reply(write_open_reply(*m)) == *m);
  if (const auto m = read_close(body); m.ok()) MESH_CHECK(*read_close(write_close(*m)) == *m);
  if (const auto m = read_cursors(body); m.ok()) MESH_CHECK(*read_cursors(write_cursors(*m)) == *m);
  if (const auto m = read_cursors_reply(body); m.ok())
    MESH_CHECK(*read_cursors_reply(write_cursors_reply(*m)) == *m);
  if (const auto m = read_renew(body); m.ok()) {
    const auto again = read_renew(write_renew(m->request, m->fresh));
    MESH_CHECK(again.ok() && again->request == m->request && again->fresh == m->fresh);
  }
  if (const auto m = read_renew_reply(body); m.ok())
    MESH_CHECK(*read_renew_reply(write_renew_reply(*m)) == *m);
  if (const auto m = read_report(body); m.ok()) MESH_CHECK(*read_report(write_report(*m)) == *m);
  return 0;
}
