// What strangers write in requests: ranges, paths, URLs, heads. The first byte chooses the file's size for
// ranges.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/net/address.h"
#include "common/net/head.h"
#include "common/net/range.h"
#include "common/net/router.h"
#include "common/net/url.h"

namespace {

const mesh::net::Router& router() {
  static const mesh::net::Router kRouter =
      *mesh::net::Router::make({{"GET", "/v1/models/{name}", mesh::net::Access::kAnyone,
                                 [](mesh::net::Request&) { return mesh::net::Response(); }},
                                {"GET", "/files/{path...}", mesh::net::Access::kAnyone,
                                 [](mesh::net::Request&) { return mesh::net::Response(); }}});
  return kRouter;
}

void check_ranges(std::string_view text, std::uint64_t file_size) {
  const auto range = mesh::net::parse_range(text, file_size);
  if (range.ok() && *range && ((*range)->begin >= (*range)->end || (*range)->end > file_size)) std::abort();
  const auto content = mesh::net::parse_content_range(text);
  if (content && content->range.begin >= content->range.end) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mesh::net;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_ranges(text, data[0] * std::uint64_t{40});
  const auto decoded = percent_decode(text);
  if (decoded.ok() && *percent_decode(percent_encode(*decoded)) != *decoded) std::abort();
  if (const auto url = Url::parse(text); url.ok() && !Url::parse(url->origin() + url->path).ok())
    std::abort();
  if (const auto at = HostPort::parse(text); at.ok() && *HostPort::parse(at->text()) != *at) std::abort();
  (void)classify_address(text);
  (void)router().find("GET", text);
  if (const auto head = head_size(text)) (void)check_head(text.substr(0, *head));
  Headers headers;
  headers.add("Content-Length", text);
  (void)body_framing(headers);
  return 0;
}
