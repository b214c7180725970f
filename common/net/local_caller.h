#pragma once

#include <string_view>

#include "common/net/message.h"

/// Who may count as this machine where that alone opens a route.
namespace mesh::net {

/// OK when the numeric address is of this machine.
bool is_loopback(std::string_view ip);

/// Whether a program of this machine calls of its own accord: over loopback, not passed on by a proxy
/// (Forwarded, X-Forwarded-For, Via), and not sent by a browser for a web page of elsewhere (Origin is
/// another host's, or Host is a name, as after DNS rebinding).
bool is_local_caller(const Request& request);

}  // namespace mesh::net
