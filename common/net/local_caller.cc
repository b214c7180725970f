#include "common/net/local_caller.h"

#include <algorithm>
#include <array>

#include "common/net/address.h"
#include "common/net/url.h"

namespace mesh::net {
namespace {

/// HOST or HOST:PORT.
bool host_is_no_name(std::string_view header) {
  const bool has_port = header.find(':') != std::string_view::npos && !header.ends_with(']');
  const auto at = HostPort::parse(has_port ? std::string(header) : std::string(header) + ":80");
  return at.ok() && classify_host(at->host).ok();
}

}  // namespace

bool is_local_caller(const Request& request) {
  if (!is_loopback(request.remote_ip)) return false;
  constexpr std::array kPassedOn = {"Forwarded", "X-Forwarded-For", "Via"};
  if (std::ranges::any_of(kPassedOn, [&](const char* name) { return request.headers.count(name) > 0; }))
    return false;
  const std::string_view host = request.headers.get("Host");
  if (!host.empty() && !host_is_no_name(host)) return false;
  const std::string_view origin = request.headers.get("Origin");
  if (origin.empty()) return true;
  const auto page = Url::parse(origin);
  return page.ok() && is_loopback(page->at.host);
}

}  // namespace mesh::net
