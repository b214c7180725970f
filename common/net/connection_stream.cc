#include "common/net/connection_stream.h"

#include <algorithm>
#include <cstring>

namespace mesh::net {
namespace {

/// Answers up to this size leave in one packet with their headers.
constexpr std::size_t kOutputBuffer = 16384;

TimePoint now() {
  return std::chrono::steady_clock::now();
}

}  // namespace

void ConnectionStream::begin_body() {
  body_begun_ = last_received_ = now();
  body_received_ = 0;
}

void ConnectionStream::end_body() {
  if (std::exchange(holds_slot_, false)) context_.slots.give_back();
}

TimePoint ConnectionStream::body_deadline() const {
  const auto earned = std::chrono::milliseconds(body_received_ * 1000 / limits::kMinBodyBytesPerSecond);
  return std::min<TimePoint>(body_begun_ + context_.options.body_deadline + earned,
                             last_received_ + context_.options.body_rest);
}

bool ConnectionStream::wait_for_input() {
  const TimePoint deadline = body_deadline();
  if (!holds_slot_) {
    if (connection_.wait_to_receive(std::min(deadline, now() + limits::kBodyPatience))) return true;
    if (now() < deadline && !(holds_slot_ = context_.slots.try_take())) {
      trouble_ = Trouble::kNoSlot;
      return false;
    }
  }
  if (connection_.wait_to_receive(deadline)) return true;
  trouble_ = now() >= deadline ? Trouble::kTooSlow : Trouble::kClosed;
  return false;
}

ssize_t ConnectionStream::read(char* out, std::size_t size) {
  const std::string& input = connection_.input;
  if (used_ < input.size()) {
    const std::size_t count = std::min(size, input.size() - used_);
    std::memcpy(out, input.data() + used_, count);
    used_ += count;
    return static_cast<ssize_t>(count);
  }
  // The client may wait for "100 Continue" before it sends more.
  if (!flush()) return -1;
  while (true) {
    const long count = connection_.receive(out, size);
    if (count > 0) {
      body_received_ += static_cast<std::size_t>(count);
      last_received_ = now();
      return count;
    }
    if (count != Connection::kWouldBlock) {
      trouble_ = Trouble::kClosed;
      return -1;
    }
    if (!wait_for_input()) return -1;
  }
}

void ConnectionStream::settle() {
  connection_.input.erase(0, used_);
  used_ = 0;
}

ssize_t ConnectionStream::write(const char* bytes, std::size_t size) {
  const auto count = static_cast<ssize_t>(size);
  if (output_.size() + size <= kOutputBuffer) {
    output_.append(bytes, size);
    return write_failed_ ? -1 : count;
  }
  return flush() && send_all({bytes, size}) ? count : -1;
}

bool ConnectionStream::flush() {
  const bool sent = send_all(output_);
  output_.clear();
  return sent;
}

bool ConnectionStream::send_all(std::string_view bytes) {
  while (!bytes.empty() && !write_failed_) {
    const long count = connection_.send(bytes);
    if (count > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (count == Connection::kFailed ||
               !connection_.wait_to_send(now() + context_.options.write_timeout)) {
      write_failed_ = true;
      connection_.mark_gone();
    }
  }
  return !write_failed_;
}

void ConnectionStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = connection_.remote_ip;
  port = connection_.remote_port;
}

void ConnectionStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace mesh::net
