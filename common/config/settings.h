#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace mesh::config {

/// What main() returns.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

/// Where settings come from, handed in so that tests need no real environment or home.
struct Sources {
  std::vector<std::string> arguments;  ///< without the program's name
  std::map<std::string, std::string> environment;
  /// Looked for in this order when --config is not given; the first that exists is read.
  std::vector<std::string> default_files;

  /// The process's own: argv, environ, /etc/meshnet/NAME.toml and ~/.config/meshnet/NAME.toml.
  static Sources of_process(int argc, const char* const* argv, std::string_view name);
};

/// A program's settings: each has one name, used as --name, MESHNET_NAME (dashes become underscores) and
/// `name = …` in the TOML file; a flag wins over the environment, that over the file, that over the value
/// that the target had before.
class Settings {
 public:
  /// `name`: "tracker" for meshnet-tracker and /etc/meshnet/tracker.toml.
  Settings(std::string name, std::string description, std::string version_text);

  /// What is declared next stands under this title in --help.
  Settings& group(std::string title);
  /// The end of --help.
  Settings& footer(std::string text);
  /// For a footer: where else than from flags settings come.
  static std::string sources_help(std::string_view name);

  /// Targets must outlive load(). `help` is one line for --help.
  Settings& text(std::string name, std::string& target, std::string help);
  /// Like text; --print-config shows only whether it is set.
  Settings& secret(std::string name, std::string& target, std::string help);
  Settings& flag(std::string name, bool& target, std::string help);
  Settings& integer(std::string name, std::int64_t& target, std::int64_t low, std::int64_t high,
                    std::string help);
  Settings& number(std::string name, double& target, double low, double high, std::string help);
  Settings& size(std::string name, std::uint64_t& target, std::string help);
  /// A size or "auto", which is nothing.
  Settings& optional_size(std::string name, std::optional<std::uint64_t>& target, std::string help);
  Settings& duration(std::string name, Duration& target, std::string help);
  Settings& choice(std::string name, std::string& target, std::vector<std::string> choices, std::string help);
  /// Repeatable flag; comma-separated in the environment and in each flag; an array in the file.
  Settings& list(std::string name, std::vector<std::string>& target, std::string help);
  /// Any other type: `parse` sets the target or says what it wanted.
  Settings& custom(std::string name, std::string current, std::function<Status(std::string_view)> parse,
                   std::string help);

  /// How the program goes on.
  struct Outcome {
    /// Nothing: run. Else print and exit with this: --help, --version, --print-config (0), or an error (2).
    std::optional<int> exit_code;
    std::string output;  ///< for stdout when exit_code is 0, for stderr otherwise
  };
  Outcome load(const Sources& sources);

  /// One line a setting: name = value  # where it came from.
  std::string describe() const;

 private:
  using Values = std::vector<std::string>;
  struct Setting {
    std::string name;
    std::string help;
    std::string kind;  ///< for --help: TEXT, SIZE, …
    std::string group;
    bool is_flag = false;
    bool is_list = false;
    bool is_secret = false;
    std::function<Status(const Values&)> assign;
    std::function<std::string()> show;  ///< the value as TOML
    std::string origin = "default";
  };

  /// What the command line said, before any of it is believed.
  struct CommandLine {
    std::map<std::string, Values> values;
    std::string config_file;
    bool print_config = false;
    std::optional<Outcome> ends;  ///< --help, --version or a usage error
  };

  Settings& add(Setting setting);
  /// A setting of one value: `parse` reads what is given, `show` writes the target as TOML.
  template <class T>
  Settings& value(std::string name, std::string kind, T& target,
                  std::function<StatusOr<T>(std::string_view)> parse,
                  std::function<std::string(const T&)> show, std::string help);
  CommandLine read_command_line(const Values& arguments) const;
  Status apply(Setting& setting, const Values& values, std::string origin);
  Status apply_file(const std::string& path, bool must_exist);
  Status apply_all(const Sources& sources, const CommandLine& line);

  std::string name_;
  std::string description_;
  std::string version_text_;
  std::string group_, footer_;
  std::vector<Setting> settings_;
};

}  // namespace mesh::config
