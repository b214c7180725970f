#include <unistd.h>

#include <cstdlib>

#include "common/config/settings.h"

namespace mesh::config {

Sources Sources::of_process(int argc, const char* const* argv, std::string_view name) {
  Sources sources;
  for (int i = 1; i < argc; ++i) sources.arguments.emplace_back(argv[i]);
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      sources.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  sources.default_files.push_back(fmt::format("/etc/meshnet/{}.toml", name));
  const auto home = sources.environment.find("HOME");
  if (home != sources.environment.end() && !home->second.empty()) {
    sources.default_files.push_back(fmt::format("{}/.config/meshnet/{}.toml", home->second, name));
  }
  return sources;
}

}  // namespace mesh::config
