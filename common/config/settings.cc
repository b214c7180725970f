#include "common/config/settings.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <sstream>

#include "common/config/units.h"
#include "common/json/json.h"

namespace mesh::config {
namespace {

std::string toml_text(std::string_view text) {
  return json::serialize(json::Value(boost::json::string(json::as_utf8(text))));
}

Status wanted(std::string_view what, std::string_view got) {
  return error(StatusCode::kInvalidArgument, "expected {}, got '{:.100}'", what, got);
}

template <class T>
StatusOr<T> parse_number(std::string_view text, T low, T high) {
  T number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() || !(number >= low && number <= high)) {
    return wanted(fmt::format("a number from {} to {}", low, high), text);
  }
  return number;
}

template <class T>
std::string shown(const T& value) {
  return fmt::format("{}", value);
}

StatusOr<bool> parse_flag(std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return wanted("true or false", text);
}

/// Elements between commas; empty ones are dropped.
std::vector<std::string> split_list(const std::vector<std::string>& values) {
  std::vector<std::string> elements;
  for (const std::string& value : values) {
    std::istringstream stream(value);
    for (std::string element; std::getline(stream, element, ',');) {
      if (!element.empty()) elements.push_back(element);
    }
  }
  return elements;
}

}  // namespace

Settings::Settings(std::string name, std::string description, std::string version_text)
    : name_(std::move(name)), description_(std::move(description)), version_text_(std::move(version_text)) {}

Settings& Settings::group(std::string title) {
  group_ = std::move(title);
  return *this;
}

Settings& Settings::footer(std::string text) {
  footer_ = std::move(text);
  return *this;
}

Settings& Settings::add(Setting setting) {
  setting.group = group_;
  settings_.push_back(std::move(setting));
  return *this;
}

template <class T>
Settings& Settings::value(std::string name, std::string kind, T& target,
                          std::function<StatusOr<T>(std::string_view)> parse,
                          std::function<std::string(const T&)> show, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.help = std::move(help);
  setting.kind = std::move(kind);
  setting.assign = [&target, parse = std::move(parse)](const Values& values) -> Status {
    MESH_ASSIGN_OR_RETURN(target, parse(values.front()));
    return absl::OkStatus();
  };
  setting.show = [&target, show = std::move(show)] { return show(target); };
  return add(std::move(setting));
}

Settings& Settings::text(std::string name, std::string& target, std::string help) {
  return value<std::string>(
      std::move(name), "TEXT", target, [](std::string_view text) { return std::string(text); }, toml_text,
      std::move(help));
}

Settings& Settings::secret(std::string name, std::string& target, std::string help) {
  text(std::move(name), target, std::move(help));
  settings_.back().is_secret = true;
  return *this;
}

Settings& Settings::flag(std::string name, bool& target, std::string help) {
  value<bool>(std::move(name), "", target, parse_flag, shown<bool>, std::move(help));
  settings_.back().is_flag = true;
  return *this;
}

Settings& Settings::integer(std::string name, std::int64_t& target, std::int64_t low, std::int64_t high,
                            std::string help) {
  return value<std::int64_t>(
      std::move(name), "INTEGER", target,
      [low, high](std::string_view text) { return parse_number(text, low, high); }, shown<std::int64_t>,
      std::move(help));
}

Settings& Settings::number(std::string name, double& target, double low, double high, std::string help) {
  return value<double>(
      std::move(name), "NUMBER", target,
      [low, high](std::string_view text) { return parse_number(text, low, high); }, shown<double>,
      std::move(help));
}

Settings& Settings::size(std::string name, std::uint64_t& target, std::string help) {
  return value<std::uint64_t>(
      std::move(name), "SIZE", target, parse_size,
      [](std::uint64_t bytes) { return toml_text(format_size(bytes)); }, std::move(help));
}

Settings& Settings::optional_size(std::string name, std::optional<std::uint64_t>& target, std::string help) {
  using Size = std::optional<std::uint64_t>;
  return value<Size>(
      std::move(name), "SIZE|auto", target,
      [](std::string_view text) -> StatusOr<Size> {
        if (text == "auto") return Size();
        return parse_size(text);
      },
      [](const Size& bytes) { return toml_text(bytes ? format_size(*bytes) : "auto"); }, std::move(help));
}

Settings& Settings::duration(std::string name, Duration& target, std::string help) {
  return value<Duration>(
      std::move(name), "DURATION", target, parse_duration,
      [](Duration time) { return toml_text(format_duration(time)); }, std::move(help));
}

Settings& Settings::choice(std::string name, std::string& target, std::vector<std::string> choices,
                           std::string help) {
  const std::string kind = fmt::format("{}", fmt::join(choices, "|"));
  return value<std::string>(
      std::move(name), kind, target,
      [choices = std::move(choices)](std::string_view text) -> StatusOr<std::string> {
        if (std::find(choices.begin(), choices.end(), text) != choices.end()) return std::string(text);
        return wanted(fmt::format("one of {}", fmt::join(choices, ", ")), text);
      },
      toml_text, std::move(help));
}

Settings& Settings::list(std::string name, std::vector<std::string>& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.help = std::move(help);
  setting.kind = "LIST";
  setting.is_list = true;
  setting.assign = [&target](const Values& values) {
    target = split_list(values);
    return absl::OkStatus();
  };
  setting.show = [&target] {
    Values elements;
    for (const std::string& element : target) elements.push_back(toml_text(element));
    return fmt::format("[{}]", fmt::join(elements, ", "));
  };
  return add(std::move(setting));
}

Settings& Settings::custom(std::string name, std::string current,
                           std::function<Status(std::string_view)> parse, std::string help) {
  const auto shown = std::make_shared<std::string>(std::move(current));
  Setting setting;
  setting.name = std::move(name);
  setting.help = std::move(help);
  setting.kind = "TEXT";
  setting.assign = [parse = std::move(parse), shown](const Values& values) -> Status {
    MESH_RETURN_IF_ERROR(parse(values.front()));
    *shown = values.front();
    return absl::OkStatus();
  };
  setting.show = [shown] { return toml_text(*shown); };
  return add(std::move(setting));
}

}  // namespace mesh::config
