#pragma once

#include <chrono>
#include <cstddef>

/// Every bound of the HTTP server and client; limits_test.cc and server_limits_test.cc hold the code to them.
namespace mesh::net::limits {

using namespace std::chrono_literals;

// What a client may send.
inline constexpr std::size_t kMaxTargetBytes = 8192;
inline constexpr std::size_t kMaxHeaderLineBytes = 8192;
inline constexpr std::size_t kMaxHeaderCount = 64;
/// Request line and all headers together; they are gathered before a thread is taken.
inline constexpr std::size_t kMaxHeadBytes = std::size_t{48} << 10;
/// Body of a route that says nothing else.
inline constexpr std::size_t kDefaultBodyBytes = std::size_t{1} << 20;

/// Of the bodies of a listener's requests that are under way, together, what is over kDefaultBodyBytes in
/// each.
inline constexpr std::size_t kBodiesBytes = std::size_t{512} << 20;

// How slowly it may do so.
/// From the connection's (or the last answer's) first byte to the end of the headers.
inline constexpr auto kHeadDeadline = 10s;
/// A body's time: this much, and a second more for each kMinBodyBytesPerSecond received.
inline constexpr auto kBodyDeadline = 10s;
inline constexpr std::size_t kMinBodyBytesPerSecond = std::size_t{16} << 10;
/// And however fast it came before, it may not rest for longer than this.
inline constexpr auto kBodyRest = 30s;
/// A worker waits this long for a body's next bytes; longer only as one of the long-lived.
inline constexpr auto kBodyPatience = 200ms;
/// One write to a client that does not read.
inline constexpr auto kWriteTimeout = 30s;
inline constexpr auto kIdleTimeout = 75s;
/// After an answer, that its worker waits for the connection's next request; longer than most decode steps.
inline constexpr auto kStay = 50ms;
/// After an answer that ends the connection, for the client to read it while what it still sends is thrown
/// away.
inline constexpr auto kLinger = 2s;

// Connections.
inline constexpr int kListenBacklog = 1024;
inline constexpr std::size_t kMaxConnections = 4096;
/// And no more than this share of what the process may have open: a program has up to three listeners, and
/// calls of its own, files and a store need the rest.
inline constexpr std::size_t kShareOfOpenFiles = 4;
/// How long a listener accepts nothing after it found no descriptor free.
inline constexpr auto kAcceptPause = 100ms;
inline constexpr std::size_t kRequestsPerConnection = 100'000;
inline constexpr std::size_t kQueuedRequests = 1024;
inline constexpr std::size_t kDefaultThreads = 32;
/// Of a listener's threads, those that long-lived answers never take.
inline constexpr std::size_t kReservedThreads = 8;

/// Most that is written in one go when others may have to pass.
inline constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

// What the client takes from a server.
inline constexpr std::size_t kMaxResponseBytes = std::size_t{16} << 20;
inline constexpr auto kConnectTimeout = 5s;
inline constexpr auto kRequestTimeout = 30s;

}  // namespace mesh::net::limits
