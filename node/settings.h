#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/settings.h"

namespace mesh {

/// What meshnet-node was told: defaults, then file, environment and flags.
struct NodeSettings {
  std::string tracker;
  std::string listen = "127.0.0.1:8090";
  std::string advertise;
  std::optional<std::uint64_t> memory;
  std::optional<std::uint64_t> prefix_cache_memory;
  std::optional<std::uint64_t> spill_memory;
  std::int64_t threads = 0;
  std::string device = "auto";
  std::string cuda_path = "graphs";
  std::string cpu_path = "auto";
  std::string dtype = "auto";
  std::vector<std::string> quantization = {"bfloat16"};
  std::string cache_dir;
  std::string data_dir;
  std::string join_key;  ///< complete_node_settings() reads it from join_key_file when that is given
  std::string join_key_file;
  std::string wire_codec = "auto";
  std::string allow_peers;
  std::string model_id;
  std::int64_t shard_start = -1;
  std::int64_t shard_end = -1;
  std::string log_level = "info";
  std::string log_format = "text";
};

/// Declares every setting of meshnet-node on `settings` for `config::Settings::load()`.
void declare_node_settings(config::Settings& settings, NodeSettings& values);

/// Where a node's key and state are kept unless --data-dir says otherwise.
std::string default_data_dir();

/// Checks what no single setting can: kInvalidArgument with the fix. Fills in folders and addresses that
/// depend on others.
Status complete_node_settings(NodeSettings& values);

}  // namespace mesh
