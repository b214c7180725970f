#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace mesh::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };
enum class Format { kText, kJson };
StatusOr<Level> parse_level(std::string_view text);
StatusOr<Format> parse_format(std::string_view text);

/// Where finished lines go (without line end); called from many threads at once, one call a line.
using Sink = std::function<void(std::string_view line)>;

struct Options {
  Level level = Level::kInfo;
  Format format = Format::kText;
  /// stderr when empty.
  Sink sink;
};

/// Writes lines with fields; handed over, never global. Cheap to copy; copies share the sink. Thread-safe.
/// Fields and messages hold ids, sizes, times and states; never prompts, tokens, keys or texts of clients.
class Logger {
 public:
  explicit Logger(const Options& options = {});
  /// Drops all: for tests.
  static Logger silent();

  /// A logger whose lines carry one more field.
  Logger with(std::string_view key, std::string_view value) const;
  Logger with_request(std::string_view request_id) const { return with("request", request_id); }
  Logger with_session(const SessionId& session) const { return with("session", session.hex()); }

  bool enabled(Level level) const;
  void write(Level level, std::string_view message) const;

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(Level::kWarning)) write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(Level::kError)) write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  class Output;
  std::shared_ptr<Output> output_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace mesh::log
