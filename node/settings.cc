#include "node/settings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>

#include "common/identity/join_key.h"
#include "common/net/address.h"
#include "common/net/url.h"
#include "node/engine/models/model_profile.h"

namespace mesh {
namespace {

constexpr std::int64_t kMaxLayer = 100'000;

std::string home_folder(const char* variable, const char* under_home) {
  const char* given = std::getenv(variable);
  if (given != nullptr && *given == '/') return given;
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr && *home == '/' ? home : "/tmp") + under_home;
}

Status check_shard(const NodeSettings& values) {
  const bool alone = !values.model_id.empty();
  const bool range = values.shard_start >= 0 || values.shard_end >= 0;
  if (alone != range || (range && (values.shard_start < 0 || values.shard_end < 0))) {
    return error(
        StatusCode::kInvalidArgument,
        "--model-id, --shard-start and --shard-end go together: --model-id PATH_OR_ID --shard-start A "
        "--shard-end B loads layers [A, B)");
  }
  if (range && values.shard_start >= values.shard_end) {
    return error(StatusCode::kInvalidArgument,
                 "--shard-start {} is not below --shard-end {}: layers [A, B) would be empty",
                 values.shard_start, values.shard_end);
  }
  if (!alone && values.tracker.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "nothing to do: give --tracker URL to join a mesh, or --model-id, --shard-start and "
                 "--shard-end to run "
                 "layers alone");
  }
  if (alone && !values.tracker.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "--model-id and --tracker exclude each other: a tracker says which layers a node holds");
  }
  return absl::OkStatus();
}

Status check_quantization(const NodeSettings& values) {
  for (const std::string& name : values.quantization) {
    const auto known = engine::parse_quantization(name);
    if (!known.ok()) return with_context(known.status(), "--quantization");
  }
  if (values.quantization.empty())
    return error(StatusCode::kInvalidArgument, "--quantization accepts nothing");
  return absl::OkStatus();
}

/// Reads --join-key-file, which keeps the key out of the list of processes, and checks the key.
Status check_join_key(NodeSettings& values) {
  std::string from = "--join-key";
  if (!values.join_key_file.empty()) {
    if (!values.join_key.empty()) {
      return error(StatusCode::kInvalidArgument,
                   "--join-key (or MESHNET_JOIN_KEY) and --join-key-file exclude each other: give one");
    }
    from = "--join-key-file " + values.join_key_file;
    std::ifstream in(values.join_key_file);
    constexpr int kLongest = 256;  // more is no key
    if (!(in >> std::setw(kLongest) >> values.join_key)) {
      return error(StatusCode::kInvalidArgument,
                   "{} cannot be read or is empty: it should have the text in the tracker's --join-key-file",
                   from);
    }
  }
  if (values.join_key.empty()) return absl::OkStatus();
  return with_context(JoinKey::parse(values.join_key).status(), from);
}

/// A tracker on another machine cannot reach this one's loopback, nor can other nodes.
Status check_reachable(const std::string& tracker, const std::string& advertised) {
  const auto url = net::Url::parse(tracker);
  if (!url.ok() || !net::classify_address(url->at.host).ok() || net::is_loopback(url->at.host))
    return absl::OkStatus();
  if (!net::is_loopback(advertised)) return absl::OkStatus();
  return error(StatusCode::kInvalidArgument,
               "the tracker is on another machine ({}) and cannot reach {} here: give --listen 0.0.0.0:8090 "
               "--advertise ADDRESS-OF-THIS-MACHINE:8090, and the join key",
               url->at.host, advertised);
}

Status check_addresses(NodeSettings& values) {
  MESH_ASSIGN_OR_RETURN(const net::HostPort listen, net::HostPort::parse(values.listen));
  const auto kind = net::classify_host(listen.host);
  if (!kind.ok()) {
    return error(StatusCode::kInvalidArgument,
                 "--listen takes a numeric address and a port, such as 0.0.0.0:8090");
  }
  const bool loopback = *kind == net::AddressKind::kLoopback;
  if (!loopback && values.join_key.empty()) {
    return error(
        StatusCode::kInvalidArgument,
        "--listen {} can be reached from other machines, so a join key is needed: give --join-key-file with "
        "a copy of the tracker's, or its text as MESHNET_JOIN_KEY, or listen on 127.0.0.1",
        values.listen);
  }
  if (values.advertise.empty() && *kind == net::AddressKind::kReserved && !values.tracker.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "--listen {} names no single address, so say with --advertise HOST:PORT where other nodes "
                 "reach this one",
                 values.listen);
  }
  if (values.advertise.empty()) return check_reachable(values.tracker, listen.host);
  MESH_ASSIGN_OR_RETURN(const net::HostPort advertised, net::HostPort::parse(values.advertise));
  return check_reachable(values.tracker, advertised.host);
}

}  // namespace

void declare_node_settings(config::Settings& settings, NodeSettings& values) {
  settings.group("Every day")
      .text("tracker", values.tracker, "URL of the tracker's mesh listener, such as http://10.0.0.1:8070")
      .secret(
          "join-key", values.join_key,
          "the text in the tracker's --join-key-file, which pins the tracker's key; the list of processes "
          "shows it to others of this machine")
      .text("join-key-file", values.join_key_file,
            "the same from a file, such as a copy of the tracker's; no list shows it")
      .text("listen", values.listen, "ADDRESS:PORT for frames of other nodes and openings of the tracker")
      .text("advertise", values.advertise, "HOST:PORT where other nodes reach this one; default: --listen")
      .optional_size("memory", values.memory,
                     "most memory for weights and caches; auto: what is free less 1 GiB")
      .choice("device", values.device, {"auto", "cpu", "cuda"}, "where layers run")
      .list("quantization", values.quantization,
            "what models may be quantised to here, best first: bfloat16 (not at all), int8, nf4, fp8")
      .text("cache-dir", values.cache_dir,
            "where fetched pieces of models are kept; default: ~/.cache/meshnet")
      .text("data-dir", values.data_dir,
            "where this node's key and state are kept; default: ~/.local/state/meshnet/node")
      .choice("log-level", values.log_level, {"debug", "info", "warning", "error", "off"}, "what is logged");
  settings.group("Layers without a tracker")
      .text("model-id", values.model_id, "PATH_OR_ID[@REVISION] of the model")
      .integer("shard-start", values.shard_start, -1, kMaxLayer, "first layer")
      .integer("shard-end", values.shard_end, -1, kMaxLayer, "layer after the last");
  settings.group("Tuning")
      .optional_size("prefix-cache-memory", values.prefix_cache_memory,
                     "of --memory, for prompts kept for later sessions; 0: none are kept; auto: an eighth")
      .optional_size(
          "spill-memory", values.spill_memory,
          "host memory for caches of sessions that others' turn pushes off a GPU; 0: none are; auto: a "
          "quarter of what is free less 1 GiB with a GPU, 0 with a CPU")
      .integer("threads", values.threads, 0, 1024, "CPU threads of a step; 0: cores divided by programs")
      .choice("dtype", values.dtype, {"auto", "bfloat16", "float32"}, "compute type")
      .choice("wire-codec", values.wire_codec, {"auto", "zstd", "split", "identity"},
              "coding of activations on the wire")
      .text("allow-peers", values.allow_peers,
            "kinds of addresses to send to: public,private,loopback,cgnat,link-local")
      .choice("log-format", values.log_format, {"text", "json"}, "how it is logged");
  settings.group("For comparisons")
      .choice("cuda-path", values.cuda_path, {"graphs", "launches", "ampere", "portable", "eager"},
              "what a GPU may use; graphs: everything")
      .choice("cpu-path", values.cpu_path, {"auto", "portable", "avx2", "avx512", "avx512_bf16"},
              "what a CPU may use; auto: everything that it has");
  settings.footer(
      "Commands: `meshnet-node bench` measures this machine, `meshnet-node compare` a checkpoint beside a "
      "reference; "
      "each has\n--help of its own.\n" +
      config::Settings::sources_help("node"));
}

std::string default_data_dir() {
  return home_folder("XDG_STATE_HOME", "/.local/state") + "/meshnet/node";
}

Status complete_node_settings(NodeSettings& values) {
  MESH_RETURN_IF_ERROR(check_shard(values));
  MESH_RETURN_IF_ERROR(check_quantization(values));
  MESH_RETURN_IF_ERROR(check_join_key(values));
  MESH_RETURN_IF_ERROR(check_addresses(values));
  if (!values.tracker.empty()) MESH_RETURN_IF_ERROR(net::Url::parse(values.tracker).status());
  if (values.data_dir.empty()) values.data_dir = default_data_dir();
  if (values.cache_dir.empty()) values.cache_dir = home_folder("XDG_CACHE_HOME", "/.cache") + "/meshnet";
  return absl::OkStatus();
}

}  // namespace mesh
