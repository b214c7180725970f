#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/settings.h"

namespace mesh::tracker {

/// What meshnet-tracker was told: defaults, then file, environment and flags.
struct TrackerSettings {
  std::string listen = "127.0.0.1:8080";
  std::string mesh_listen = "127.0.0.1:8070";
  std::string mesh_advertise;
  std::string admin_listen = "127.0.0.1:8081";
  std::vector<std::string> models;
  std::string data_dir;
  std::string device = "auto";
  std::string cuda_path = "graphs";
  std::string cpu_path = "auto";
  std::string dtype = "auto";
  std::string quantization = "bfloat16";
  std::optional<std::uint64_t> memory;
  std::optional<std::uint64_t> prefix_cache_memory;
  std::optional<std::uint64_t> spill_memory;
  std::int64_t threads = 0;
  std::optional<std::uint32_t> head_layers;  ///< none: auto
  std::int64_t max_node_layers = 0;
  std::int64_t max_copies = 0;
  std::int64_t max_sessions = 256;
  std::int64_t max_key_sessions = 0;
  std::int64_t queue_depth = 128;
  Duration queue_wait = std::chrono::seconds(30);
  std::int64_t session_tokens = 8192;
  std::string api_key;  ///< one or several, separated by commas
  std::string join_key_file;
  std::string admin_key;
  std::string wire_codec = "auto";
  std::string allow_peers;
  Duration heartbeat = std::chrono::seconds(2);
  Duration lease = std::chrono::seconds(6);
  Duration drain = std::chrono::seconds(60);
  Duration replacement_wait = std::chrono::seconds(120);
  std::string log_level = "info";
  std::string log_format = "text";

  std::vector<std::string> api_keys() const;
};

/// Declares every setting of meshnet-tracker on `settings` for `config::Settings::load()`.
void declare_tracker_settings(config::Settings& settings, TrackerSettings& values);

/// Checks what no single setting can: kInvalidArgument with the fix. Fills in folders and addresses that
/// depend on others.
Status complete_tracker_settings(TrackerSettings& values);

}  // namespace mesh::tracker
