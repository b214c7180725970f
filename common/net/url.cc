#include "common/net/url.h"

#include <charconv>

#include "common/base/ids.h"

namespace mesh::net {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

bool is_host(std::string_view host) {
  if (host.empty() || host.size() > 253) return false;
  for (const char c : host) {
    if (!is_unreserved(c) && c != ':' && c != '%') return false;
  }
  return true;
}

StatusOr<int> parse_port(std::string_view text, std::string_view whole) {
  int port = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (failure != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) {
    return error(StatusCode::kInvalidArgument, "'{:.200}': the port should be a number from 0 to 65535",
                 whole);
  }
  return port;
}

/// `default_port` < 0: a port must be given.
StatusOr<HostPort> parse_authority(std::string_view text, int default_port) {
  HostPort result;
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) {
      return error(StatusCode::kInvalidArgument, "'{:.200}': missing ]", text);
    }
    result.host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (result.host.find(':') == std::string::npos) result.host.clear();  // brackets are for IPv6 alone
  } else {
    const std::size_t colon = text.find(':');
    result.host = text.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
    if (result.host.find('%') != std::string::npos) result.host.clear();
  }
  if (!is_host(result.host) || (!port.empty() && port.front() != ':') || (port.empty() && default_port < 0)) {
    return error(StatusCode::kInvalidArgument, "'{:.200}' should be HOST:PORT, for example 127.0.0.1:8080",
                 text);
  }
  result.port = default_port;
  if (!port.empty()) {
    MESH_ASSIGN_OR_RETURN(result.port, parse_port(port.substr(1), text));
  }
  return result;
}

}  // namespace

StatusOr<HostPort> HostPort::parse(std::string_view text) {
  return parse_authority(text, -1);
}

std::string HostPort::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

StatusOr<Url> Url::parse(std::string_view text) {
  Url url;
  std::string_view rest = text;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    url.https = true;
    rest.remove_prefix(8);
  } else {
    return error(StatusCode::kInvalidArgument, "'{:.200}' should begin with http:// or https://", text);
  }
  const std::size_t slash = rest.find_first_of("/?#");
  const std::string_view authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) url.path = rest.substr(slash);
  if (url.path.find('#') != std::string::npos || (!url.path.empty() && url.path.front() != '/')) {
    return error(StatusCode::kInvalidArgument, "'{:.200}' should have a path that begins with /, and no #",
                 text);
  }
  for (const char c : url.path) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      return error(StatusCode::kInvalidArgument, "a URL's path should be percent-encoded");
    }
  }
  MESH_ASSIGN_OR_RETURN(url.at, parse_authority(authority, url.https ? 443 : 80));
  if (url.at.port == 0)
    return error(StatusCode::kInvalidArgument, "'{:.200}': port 0 cannot be connected to", text);
  return url;
}

std::string Url::origin() const {
  return (https ? "https://" : "http://") + at.text();
}

std::string percent_encode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (is_unreserved(c)) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

StatusOr<std::string> percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' && text[i] != '\0') {
      decoded += text[i];
      continue;
    }
    const auto byte = text[i] == '%' ? from_hex(text.substr(i + 1, 2)) : std::nullopt;
    if (!byte || byte->size() != 1 || byte->front() == '\0') {
      return error(StatusCode::kInvalidArgument, "bad percent-encoding in the request's path or query");
    }
    decoded += *byte;
    i += 2;
  }
  return decoded;
}

}  // namespace mesh::net
