#pragma once

#include "common/net/message.h"

/// Who may count as this machine where that alone opens a route.
namespace mesh::net {

/// Whether a program of this machine calls of its own accord: over loopback, not passed on by a proxy
/// (Forwarded, X-Forwarded-For, Via), and not sent by a browser for a web page of elsewhere (Origin is
/// another host's, or Host is a name, as after DNS rebinding).
bool is_local_caller(const Request& request);

}  // namespace mesh::net
