#include "common/log/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <mutex>

#include "common/json/json.h"

namespace mesh::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(Sink sink) : sink_(std::move(sink)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    sink_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  Sink sink_;
};

std::string json_quoted(std::string_view text) {
  return json::serialize(json::Value(boost::json::string(json::as_utf8(text))));
}

/// As it is when it is one plain word, else quoted.
std::string word(std::string_view text) {
  const bool plain = !text.empty() && text.find_first_of(" =\"\\") == std::string_view::npos;
  const std::string quoted_text = json_quoted(text);
  return plain && quoted_text.size() == text.size() + 2 ? std::string(text) : quoted_text;
}

/// Readable, on one line.
std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : json::as_utf8(text)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

class Logger::Output {
 public:
  explicit Output(const Options& options)
      : format_(options.format), logger_("meshnet", make_sink(options.sink)) {
    const std::string pattern = format_ == Format::kJson
                                    ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})"
                                    : "%Y-%m-%dT%H:%M:%S.%eZ %l %v";
    const std::string line_end = options.sink ? "" : "\n";
    logger_.set_formatter(
        std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc, line_end));
    logger_.set_level(spdlog_level(options.level));
  }

  bool enabled(Level level) const { return logger_.should_log(spdlog_level(level)); }

  void write(Level level, std::string_view message,
             const std::vector<std::pair<std::string, std::string>>& fields) {
    std::string line;
    if (format_ == Format::kJson) {
      line = "\"message\":" + json_quoted(message);
      for (const auto& [key, value] : fields) line += "," + json_quoted(key) + ":" + json_quoted(value);
    } else {
      line = escaped(message);
      for (const auto& [key, value] : fields) line += " " + key + "=" + word(value);
    }
    logger_.log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
  }

 private:
  static spdlog::sink_ptr make_sink(const Sink& sink) {
    if (sink) return std::make_shared<FunctionSink>(sink);
    return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }

  Format format_;
  spdlog::logger logger_;
};

Logger::Logger(const Options& options) : output_(std::make_shared<Output>(options)) {}

Logger Logger::silent() {
  return Logger({.level = Level::kOff, .format = Format::kText, .sink = {}});
}

Logger Logger::with(std::string_view key, std::string_view value) const {
  Logger logger = *this;
  logger.fields_.emplace_back(key, value);
  return logger;
}

bool Logger::enabled(Level level) const {
  return output_->enabled(level);
}

void Logger::write(Level level, std::string_view message) const {
  output_->write(level, message, fields_);
}

StatusOr<Level> parse_level(std::string_view text) {
  if (text == "debug") return Level::kDebug;
  if (text == "info") return Level::kInfo;
  if (text == "warning") return Level::kWarning;
  if (text == "error") return Level::kError;
  if (text == "off") return Level::kOff;
  return error(StatusCode::kInvalidArgument,
               "'{:.40}' is no log level: use debug, info, warning, error or off", text);
}

StatusOr<Format> parse_format(std::string_view text) {
  if (text == "text") return Format::kText;
  if (text == "json") return Format::kJson;
  return error(StatusCode::kInvalidArgument, "'{:.40}' is no log format: use text or json", text);
}

}  // namespace mesh::log
