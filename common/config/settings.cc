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

Settings& Settings::add(Setting setting) {
  settings_.push_back(std::move(setting));
  return *this;
}

Settings& Settings::text(std::string name, std::string& target, std::string help) {
  return custom(
      std::move(name), target,
      [&target](std::string_view value) {
        target = value;
        return absl::OkStatus();
      },
      std::move(help));
}

Settings& Settings::secret(std::string name, std::string& target, std::string help) {
  text(std::move(name), target, std::move(help));
  settings_.back().is_secret = true;
  return *this;
}

Settings& Settings::flag(std::string name, bool& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.help = std::move(help);
  setting.is_flag = true;
  setting.assign = [&target](const Values& values) -> Status {
    MESH_ASSIGN_OR_RETURN(target, parse_flag(values.front()));
    return absl::OkStatus();
  };
  setting.show = [&target] { return std::string(target ? "true" : "false"); };
  return add(std::move(setting));
}

Settings& Settings::integer(std::string name, std::int64_t& target, std::int64_t low, std::int64_t high,
                            std::string help) {
  custom(
      std::move(name), "",
      [&target, low, high](std::string_view value) -> Status {
        MESH_ASSIGN_OR_RETURN(target, parse_number(value, low, high));
        return absl::OkStatus();
      },
      std::move(help));
  settings_.back().kind = "INTEGER";
  settings_.back().show = [&target] { return fmt::format("{}", target); };
  return *this;
}

Settings& Settings::number(std::string name, double& target, double low, double high, std::string help) {
  custom(
      std::move(name), "",
      [&target, low, high](std::string_view value) -> Status {
        MESH_ASSIGN_OR_RETURN(target, parse_number(value, low, high));
        return absl::OkStatus();
      },
      std::move(help));
  settings_.back().kind = "NUMBER";
  settings_.back().show = [&target] { return fmt::format("{}", target); };
  return *this;
}

Settings& Settings::size(std::string name, std::uint64_t& target, std::string help) {
  custom(
      std::move(name), "",
      [&target](std::string_view value) -> Status {
        MESH_ASSIGN_OR_RETURN(target, parse_size(value));
        return absl::OkStatus();
      },
      std::move(help));
  settings_.back().kind = "SIZE";
  settings_.back().show = [&target] { return toml_text(format_size(target)); };
  return *this;
}

Settings& Settings::optional_size(std::string name, std::optional<std::uint64_t>& target, std::string help) {
  custom(
      std::move(name), "",
      [&target](std::string_view value) -> Status {
        target.reset();
        if (value == "auto") return absl::OkStatus();
        MESH_ASSIGN_OR_RETURN(target, parse_size(value));
        return absl::OkStatus();
      },
      std::move(help));
  settings_.back().kind = "SIZE|auto";
  settings_.back().show = [&target] { return toml_text(target ? format_size(*target) : "auto"); };
  return *this;
}

Settings& Settings::duration(std::string name, Duration& target, std::string help) {
  custom(
      std::move(name), "",
      [&target](std::string_view value) -> Status {
        MESH_ASSIGN_OR_RETURN(target, parse_duration(value));
        return absl::OkStatus();
      },
      std::move(help));
  settings_.back().kind = "DURATION";
  settings_.back().show = [&target] { return toml_text(format_duration(target)); };
  return *this;
}

Settings& Settings::choice(std::string name, std::string& target, std::vector<std::string> choices,
                           std::string help) {
  const std::string kind = fmt::format("{}", fmt::join(choices, "|"));
  custom(
      std::move(name), target,
      [&target, choices = std::move(choices)](std::string_view value) -> Status {
        if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
          return wanted(fmt::format("one of {}", fmt::join(choices, ", ")), value);
        }
        target = value;
        return absl::OkStatus();
      },
      std::move(help));
  settings_.back().kind = kind;
  return *this;
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
