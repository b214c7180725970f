#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cctype>
#include <fstream>

#include "common/config/settings.h"
#include "common/config/toml.h"

namespace mesh::config {
namespace {

std::string environment_name(std::string_view name) {
  std::string upper = "MESHNET_";
  for (const char c : name)
    upper += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

/// What --help shows of a default: nothing where it means that nothing was given.
std::string shown_default(const std::string& value) {
  return value == "\"\"" || value == "[]" || value == "-1" ? "" : " [" + value + "]";
}

}  // namespace

std::string Settings::sources_help(std::string_view name) {
  return fmt::format(
      "Each setting is also MESHNET_NAME in the environment ({} for --log-level) and `name = value` in the "
      "file of --config, else in\n/etc/meshnet/{}.toml or ~/.config/meshnet/{}.toml. A flag wins over the "
      "environment, that over the file.",
      environment_name("log-level"), name, name);
}

Status Settings::apply(Setting& setting, const Values& values, std::string origin) {
  const auto refused = [&](const Status& why) {
    return with_context(why, fmt::format("{} ({})", setting.name, origin));
  };
  if (!setting.is_list && values.size() != 1) {
    return refused(error(StatusCode::kInvalidArgument, "expected one value, got {}", values.size()));
  }
  if (const Status status = setting.assign(values); !status.ok()) return refused(status);
  setting.origin = std::move(origin);
  return absl::OkStatus();
}

Status Settings::apply_file(const std::string& path, bool must_exist) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (!must_exist) return absl::OkStatus();
    return error(StatusCode::kInvalidArgument, "cannot read settings file {}", path);
  }
  std::string text(kMaxTomlBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  const auto entries = parse_toml(text);
  if (!entries.ok()) return with_context(entries.status(), path);
  for (const TomlEntry& entry : *entries) {
    const std::string place = fmt::format("{}:{}", path, entry.line);
    const auto known = std::find_if(settings_.begin(), settings_.end(),
                                    [&](const Setting& s) { return s.name == entry.key; });
    if (known == settings_.end()) {
      return error(StatusCode::kInvalidArgument, "{}: unknown key '{:.80}'; --help lists the settings", place,
                   entry.key);
    }
    MESH_RETURN_IF_ERROR(apply(*known, entry.values, place));
  }
  return absl::OkStatus();
}

Status Settings::apply_all(const Sources& sources, const CommandLine& line) {
  if (!line.config_file.empty()) {
    MESH_RETURN_IF_ERROR(apply_file(line.config_file, true));
  } else {
    for (const std::string& path : sources.default_files) {
      if (!std::ifstream(path)) continue;
      MESH_RETURN_IF_ERROR(apply_file(path, false));
      break;
    }
  }
  for (Setting& setting : settings_) {
    const std::string variable = environment_name(setting.name);
    const auto found = sources.environment.find(variable);
    if (found != sources.environment.end()) {
      MESH_RETURN_IF_ERROR(apply(setting, {found->second}, "environment " + variable));
    }
    const auto given = line.values.find(setting.name);
    if (given != line.values.end())
      MESH_RETURN_IF_ERROR(apply(setting, given->second, "flag --" + setting.name));
  }
  return absl::OkStatus();
}

Settings::CommandLine Settings::read_command_line(const Values& arguments) const {
  CommandLine line;
  CLI::App app(description_, "meshnet-" + name_);
  if (!footer_.empty()) app.footer(footer_ + "\n");
  bool version = false;
  app.add_flag("--version", version, "Print the version and exit");
  app.add_option("--config", line.config_file, "Settings file in TOML")->type_name("FILE");
  app.add_flag("--print-config", line.print_config, "Print each setting and where it came from, and exit");
  std::map<std::string, Values> given;
  std::map<std::string, CLI::Option*> options;
  for (const Setting& setting : settings_) {
    const std::string flag = "--" + setting.name;
    Values& values = given[setting.name];
    const std::string help = setting.help + (setting.is_secret ? "" : shown_default(setting.show()));
    CLI::Option* option = setting.is_flag ? app.add_flag(flag, help) : app.add_option(flag, values, help);
    if (!setting.group.empty()) option->group(setting.group);
    options[setting.name] = option;
    if (setting.is_flag) continue;
    option->type_name(setting.kind)->expected(1)->allow_extra_args(false);
    if (setting.is_list) option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  try {
    app.parse(Values(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    line.ends = Outcome{kExitDone, app.help()};
    return line;
  } catch (const CLI::ParseError& failure) {
    line.ends = Outcome{kExitUsage, fmt::format("meshnet-{}: {}\nRun with --help for the settings.\n", name_,
                                                failure.what())};
    return line;
  }
  if (version) line.ends = Outcome{kExitDone, version_text_ + "\n"};
  for (const auto& [name, option] : options) {
    if (option->count() > 0) line.values[name] = given[name].empty() ? option->results() : given[name];
  }
  return line;
}

Settings::Outcome Settings::load(const Sources& sources) {
  const CommandLine line = read_command_line(sources.arguments);
  if (line.ends) return *line.ends;
  if (const Status status = apply_all(sources, line); !status.ok()) {
    return {kExitUsage, fmt::format("meshnet-{}: {}\n", name_, message_of(status))};
  }
  if (line.print_config) return {kExitDone, describe()};
  return {std::nullopt, ""};
}

std::string Settings::describe() const {
  std::string text;
  for (const Setting& setting : settings_) {
    if (setting.is_secret) {
      const bool is_set = setting.show() != "\"\"";
      text += fmt::format("# {} is {}  # {}\n", setting.name, is_set ? "set" : "not set", setting.origin);
    } else {
      text += fmt::format("{} = {}  # {}\n", setting.name, setting.show(), setting.origin);
    }
  }
  return text;
}

}  // namespace mesh::config
