#pragma once

#include "common/net/limits.h"

// Included by exchange.cc, connection_stream.h and client.cc alone, which are compiled as one object. What
// the build sets for the library is checked here against limits.h.
#define CPPHTTPLIB_REQUEST_URI_MAX_LENGTH ::mesh::net::limits::kMaxTargetBytes
#define CPPHTTPLIB_HEADER_MAX_LENGTH ::mesh::net::limits::kMaxHeaderLineBytes
#define CPPHTTPLIB_HEADER_MAX_COUNT ::mesh::net::limits::kMaxHeaderCount
#define CPPHTTPLIB_REDIRECT_MAX_COUNT 0

#include <httplib.h>

static_assert(CPPHTTPLIB_LISTEN_BACKLOG == mesh::net::limits::kListenBacklog);
static_assert(CPPHTTPLIB_TCP_NODELAY, "small messages must not wait for acknowledgements");
