#include "common/net/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/net/error_response.h"
#include "common/net/head.h"

namespace mesh::net {
namespace {

constexpr std::uint64_t kListenId = 0;
constexpr std::uint64_t kWakeId = 1;
constexpr std::uint32_t kReadable = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
constexpr std::uint32_t kLeaving = EPOLLRDHUP | EPOLLONESHOT;
/// How often deadlines of waiting connections are looked at.
constexpr int kTickMilliseconds = 100;

TimePoint now() {
  return std::chrono::steady_clock::now();
}

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

std::size_t open_files_share() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return limits::kMaxConnections;
  return std::max<std::size_t>(static_cast<std::size_t>(limit.rlim_cur) / limits::kShareOfOpenFiles, 1);
}

}  // namespace

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

StatusOr<std::unique_ptr<Server>> Listener::start(ListenSocket socket,
                                                  std::unique_ptr<ExchangeContext> context) {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (epoll.get() < 0 || wake.get() < 0) {
    return error(StatusCode::kResourceExhausted, "cannot make an epoll: {}", std::strerror(errno));
  }
  std::size_t& connections = context->options.max_connections;
  connections = std::min(connections, open_files_share());
  return std::unique_ptr<Server>(
      new Listener(std::move(socket), std::move(context), std::move(epoll), std::move(wake)));
}

Listener::Listener(ListenSocket socket, std::unique_ptr<ExchangeContext> context, Descriptor epoll,
                   Descriptor wake)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      workers_(context_->options.threads, limits::kQueuedRequests),
      last_id_(kWakeId) {
  for (const auto& [id, descriptor] :
       {std::pair{kListenId, socket_.descriptor.get()}, std::pair{kWakeId, wake_.get()}}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event);
  }
  thread_ = std::thread([this] { loop(); });
}

std::size_t Listener::active_requests() const {
  const std::lock_guard lock(mutex_);
  return active_;
}

std::size_t Listener::open_connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

std::vector<Listener::ConnectionPtr> Listener::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<ConnectionPtr> list;
  list.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) list.push_back(connection);
  return list;
}

void Listener::loop() {
  std::array<epoll_event, 256> events;
  TimePoint next_look = now();
  while (!ended_) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), kTickMilliseconds);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == kListenId) {
        if (!stopping_) accept_all();
      } else if (event.data.u64 == kWakeId) {
        std::uint64_t ignored;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
      } else {
        on_event(event.data.u64, event.events);
      }
    }
    if (stopping_ && accepting_) rest();
    if (pause_ends_ && now() >= *pause_ends_) accept_from(std::nullopt);
    if (now() < next_look) continue;
    next_look = now() + std::chrono::milliseconds(kTickMilliseconds);
    expire();
  }
}

void Listener::accept_all() {
  while (true) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    const int socket = ::accept4(socket_.descriptor.get(), reinterpret_cast<sockaddr*>(&peer), &length,
                                 SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE) return;
      if (make_room()) continue;
      // What waits to be accepted would wake the thread again at once, and again.
      return accept_from(now() + limits::kAcceptPause);
    }
    char ip[NI_MAXHOST] = "";
    char service[NI_MAXSERV] = "0";
    ::getnameinfo(reinterpret_cast<sockaddr*>(&peer), length, ip, sizeof ip, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV);
    add(socket, ip, std::atoi(service));
  }
}

void Listener::accept_from(std::optional<TimePoint> pause_ends) {
  pause_ends_ = pause_ends;
  epoll_event event{};
  if (!pause_ends) event.events = EPOLLIN;
  event.data.u64 = kListenId;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_.descriptor.get(), &event);
}

void Listener::add(int socket, const std::string& ip, int port) {
  if (open_connections() >= context_->options.max_connections && !make_room()) {
    ::close(socket);
    return;
  }
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  const auto patience =
      std::chrono::duration_cast<std::chrono::milliseconds>(context_->options.write_timeout);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(patience.count()));
  ConnectionPtr connection = std::make_shared<Connection>(++last_id_, socket, ip, port);
  connection->deadline = now() + context_->options.head_deadline;
  {
    const std::lock_guard lock(mutex_);
    connections_.emplace(connection->id, connection);
  }
  epoll_event event{};
  event.events = kReadable;
  event.data.u64 = connection->id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event);
}

bool Listener::make_room() {
  ConnectionPtr oldest;
  TimePoint earliest = TimePoint::max();
  for (const ConnectionPtr& connection : all()) {
    const std::lock_guard lock(connection->mutex);
    const bool waits =
        connection->state == Connection::State::kParked || connection->state == Connection::State::kLingering;
    if (waits && connection->deadline < earliest) {
      earliest = connection->deadline;
      oldest = connection;
    }
  }
  if (oldest == nullptr) return false;
  close(oldest);
  return true;
}

void Listener::on_event(std::uint64_t id, std::uint32_t events) {
  ConnectionPtr connection;
  {
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    connection = found->second;
  }
  Connection::State state;
  {
    const std::lock_guard lock(connection->mutex);
    state = connection->state;
  }
  // Only this thread takes a connection out of these two states, so they still hold.
  if (state == Connection::State::kParked) read_head(connection);
  if (state == Connection::State::kLingering) drain(connection);
  if (state == Connection::State::kRunning && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
    connection->mark_gone();
}

void Listener::read_head(const ConnectionPtr& connection) {
  std::array<char, 16384> buffer;
  std::string& input = connection->input;
  while (!head_size(input, connection->searched)) {
    connection->searched = input.size();
    if (input.size() > limits::kMaxHeadBytes) return refuse(connection, check_head(input));
    const long count = connection->receive(buffer.data(), buffer.size());
    if (count == Connection::kWouldBlock) {
      const std::lock_guard lock(connection->mutex);
      if (!connection->head_begun && !input.empty()) {
        connection->head_begun = true;
        connection->deadline = now() + context_->options.head_deadline;
      }
      return watch(connection, kReadable);
    }
    if (count <= 0) return close(connection);
    input.append(buffer.data(), static_cast<std::size_t>(count));
  }
  dispatch(connection);
}

void Listener::dispatch(const ConnectionPtr& connection) {
  connection->searched = 0;
  {
    const std::lock_guard lock(connection->mutex);
    connection->state = Connection::State::kRunning;
    watch(connection, kLeaving);
  }
  {
    const std::lock_guard lock(mutex_);
    ++active_;
  }
  if (workers_.submit([this, connection] { serve(connection); })) return;
  {
    const std::lock_guard lock(mutex_);
    --active_;
  }
  refuse(connection, error(StatusCode::kUnavailable, "too many requests wait; try again"));
}

void Listener::serve(const ConnectionPtr& connection) {
  bool keep = true;
  while (keep && !stopping_) {
    auto head = head_size(connection->input);
    if (!head && connection->served > 0 && next_comes_soon(connection)) head = head_size(connection->input);
    if (!head) break;
    if (const Status fits = check_head(std::string_view(connection->input).substr(0, *head)); !fits.ok()) {
      connection->send(refusal_bytes(*context_, fits, *connection));
      keep = false;
      break;
    }
    keep = run_exchange(*context_, connection);
    ++connection->served;
  }
  if (connection->gone() || stopping_) {
    close(connection);
  } else {
    const std::lock_guard lock(connection->mutex);
    if (keep) {
      connection->state = Connection::State::kParked;
      connection->head_begun = !connection->input.empty();
      connection->deadline =
          now() + (connection->head_begun ? context_->options.head_deadline : context_->options.idle_timeout);
      watch(connection, kReadable);
    } else {
      linger(connection);
    }
  }
  const std::lock_guard lock(mutex_);
  --active_;
  all_done_.notify_all();
}

bool Listener::next_comes_soon(const ConnectionPtr& connection) {
  if (active_requests() > context_->options.threads / 2) return false;
  const TimePoint deadline = now() + limits::kStay;
  std::array<char, 16384> buffer;
  while (!stopping_ && connection->input.size() <= limits::kMaxHeadBytes) {
    if (head_size(connection->input)) return true;
    const bool came = connection->input.empty() ? connection->wait_for_request(deadline)
                                                : connection->wait_to_receive(deadline);
    if (!came) return false;
    const long count = connection->receive(buffer.data(), buffer.size());
    if (count == Connection::kWouldBlock) continue;
    if (count <= 0) return false;  // parked, where the listener's thread sees the end
    connection->input.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return false;
}

void Listener::refuse(const ConnectionPtr& connection, const Status& status) {
  connection->send(refusal_bytes(*context_, status, *connection));
  const std::lock_guard lock(connection->mutex);
  linger(connection);
}

void Listener::linger(const ConnectionPtr& connection) {
  ::shutdown(connection->socket, SHUT_WR);
  connection->state = Connection::State::kLingering;
  connection->deadline = now() + limits::kLinger;
  connection->input.clear();
  watch(connection, EPOLLIN | EPOLLONESHOT);
}

void Listener::drain(const ConnectionPtr& connection) {
  std::array<char, 16384> buffer;
  for (int round = 0; round < 64; ++round) {
    const long count = connection->receive(buffer.data(), buffer.size());
    if (count == Connection::kWouldBlock) break;
    if (count <= 0) return close(connection);
  }
  const std::lock_guard lock(connection->mutex);
  watch(connection, EPOLLIN | EPOLLONESHOT);
}

void Listener::watch(const ConnectionPtr& connection, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = connection->id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection->socket, &event);
}

void Listener::close(const ConnectionPtr& connection) {
  {
    const std::lock_guard lock(connection->mutex);
    if (connection->state == Connection::State::kClosed) return;
    connection->state = Connection::State::kClosed;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket, nullptr);
    ::shutdown(connection->socket, SHUT_RDWR);
  }
  connection->mark_gone();
  const std::lock_guard lock(mutex_);
  connections_.erase(connection->id);
}

void Listener::expire() {
  const TimePoint time = now();
  for (const ConnectionPtr& connection : all()) {
    bool late = false;
    bool amid_head = false;
    {
      const std::lock_guard lock(connection->mutex);
      late = connection->deadline < time && (connection->state == Connection::State::kParked ||
                                             connection->state == Connection::State::kLingering);
      amid_head = connection->state == Connection::State::kParked && connection->head_begun;
    }
    if (!late) continue;
    if (amid_head) {
      refuse(connection,
             with_http_status(error(StatusCode::kDeadlineExceeded, "the headers came too slowly"), 408));
    } else {
      close(connection);
    }
  }
}

void Listener::rest() {
  accepting_ = false;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket_.descriptor.get(), nullptr);
  socket_.descriptor = Descriptor();
  for (const ConnectionPtr& connection : all()) {
    bool waits;
    {
      const std::lock_guard lock(connection->mutex);
      waits = connection->state == Connection::State::kParked ||
              connection->state == Connection::State::kLingering;
    }
    if (waits) close(connection);
  }
}

void Listener::wake_up() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void Listener::stop(Duration grace) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_called_, true)) return;
  }
  stopping_ = true;
  wake_up();
  {
    std::unique_lock lock(mutex_);
    all_done_.wait_for(lock, grace, [&] { return active_ == 0; });
  }
  for (const ConnectionPtr& connection : all()) {
    connection->mark_gone();
    ::shutdown(connection->socket, SHUT_RDWR);
  }
  workers_.stop();
  ended_ = true;
  wake_up();
  thread_.join();
  for (const ConnectionPtr& connection : all()) close(connection);
}

}  // namespace mesh::net
