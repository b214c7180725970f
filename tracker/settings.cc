#include "tracker/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "common/net/address.h"
#include "common/net/url.h"

namespace mesh::tracker {
namespace {

constexpr std::int64_t kMostLayers = 100'000;
constexpr std::int64_t kMostSessionTokens = 1'000'000'000;

std::string state_folder() {
  const char* given = std::getenv("XDG_STATE_HOME");
  if (given != nullptr && *given == '/') return std::string(given) + "/meshnet/tracker";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr && *home == '/' ? home : "/tmp") + "/.local/state/meshnet/tracker";
}

/// kReserved for an address that names no single host, such as 0.0.0.0.
StatusOr<net::AddressKind> kind_of(std::string_view option, const std::string& listen) {
  const auto at = net::HostPort::parse(listen);
  const auto kind = at.ok() ? net::classify_host(at->host) : StatusOr<net::AddressKind>(at.status());
  if (kind.ok()) return kind;
  return error(StatusCode::kInvalidArgument,
               "--{} {} is not a numeric address and a port, such as 0.0.0.0:8080", option, listen);
}

Status needs(std::string_view option, const std::string& listen, const std::string& key,
             std::string_view key_option, std::string_view why) {
  MESH_ASSIGN_OR_RETURN(const net::AddressKind kind, kind_of(option, listen));
  if (kind == net::AddressKind::kLoopback || !key.empty()) return absl::OkStatus();
  return error(StatusCode::kInvalidArgument,
               "--{} {} can be reached from other machines, so --{} is needed ({}); or listen on 127.0.0.1",
               option, listen, key_option, why);
}

/// A key is sent as a header's value, which loses blanks and has %41 read as A on its way.
Status check_key(std::string_view option, std::string_view key) {
  const bool plain = std::ranges::all_of(key, [](char c) { return c > ' ' && c < 0x7f && c != '%'; });
  if (plain) return absl::OkStatus();
  return error(
      StatusCode::kInvalidArgument,
      "--{}: a key has a blank, a '%' or what is no ASCII in it; take letters, digits, '-' and '_', such as "
      "what `openssl rand -hex 24` prints",
      option);
}

Status check_keys(const TrackerSettings& values, const std::vector<std::string>& api_keys) {
  if (api_keys.empty() && !values.api_key.empty()) {
    return error(
        StatusCode::kInvalidArgument,
        "--api-key is set and holds no key (is a variable empty?): give a secret of your own for clients, or "
        "leave it out");
  }
  for (const std::string& key : api_keys) MESH_RETURN_IF_ERROR(check_key("api-key", key));
  return check_key("admin-key", values.admin_key);
}

/// A third of the time for which a stamp is fresh (proto-docs/session.md): two lost heartbeats do no harm.
constexpr Duration kLongestHeartbeat = std::chrono::seconds(10);

Status parse_head_layers(std::string_view text, std::optional<std::uint32_t>& layers) {
  if (text == "auto") {
    layers.reset();
    return absl::OkStatus();
  }
  std::uint32_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value > kMostLayers) {
    return error(StatusCode::kInvalidArgument, "expected auto or a number of layers");
  }
  layers = value;
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> TrackerSettings::api_keys() const {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> keys;
  std::istringstream parts(api_key);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t first = part.find_first_not_of(kBlanks);
    if (first == std::string::npos) continue;
    keys.push_back(part.substr(first, part.find_last_not_of(kBlanks) + 1 - first));
  }
  return keys;
}

void declare_tracker_settings(config::Settings& settings, TrackerSettings& values) {
  settings.group("Every day")
      .list("model", values.models, "model to serve, PATH_OR_ID[@REVISION]; may be given several times")
      .text("listen", values.listen, "ADDRESS:PORT for clients: the OpenAI API and a page")
      .secret("api-key", values.api_key,
              "keys of clients, separated by commas; none: everybody on this machine")
      .text("mesh-listen", values.mesh_listen, "ADDRESS:PORT for nodes")
      .text("mesh-advertise", values.mesh_advertise,
            "HOST:PORT where nodes reach --mesh-listen; default: that address")
      .text("join-key-file", values.join_key_file,
            "file with the join key of nodes; made when it is not there")
      .choice("device", values.device, {"auto", "cpu", "cuda"}, "where the head's layers run")
      .optional_size("memory", values.memory,
                     "most memory for the head's layers and caches; auto: what is free less 1 GiB")
      .choice("quantization", values.quantization, {"bfloat16", "int8", "nf4", "fp8"},
              "what models are quantised to when they are loaded; bfloat16: not at all")
      .text("data-dir", values.data_dir,
            "where this tracker's key, store and hashes are kept; default: ~/.local/state/meshnet/tracker")
      .choice("log-level", values.log_level, {"debug", "info", "warning", "error", "off"}, "what is logged");
  settings.group("Metrics and coverage")
      .text("admin-listen", values.admin_listen, "ADDRESS:PORT for metrics and coverage")
      .secret("admin-key", values.admin_key, "key for metrics and coverage from other machines");
  settings.group("Limits")
      .integer("max-sessions", values.max_sessions, 1, 100'000, "answers that run at once; more wait")
      .integer("max-key-sessions", values.max_key_sessions, 0, 100'000,
               "answers of one API key, running and waiting; more get 429; 0: no limit of its own")
      .integer("queue-depth", values.queue_depth, 0, 100'000,
               "requests that wait for their turn or for room; more get 429; 0: none waits for its turn")
      .duration("queue-wait", values.queue_wait, "how long a request waits in the queue, then it gets 429")
      .integer("session-tokens", values.session_tokens, 0, kMostSessionTokens,
               "tokens of all sessions for which nodes' memory is planned");
  settings.group("Planning")
      .custom(
          "head-layers", "auto",
          [&values](std::string_view text) { return parse_head_layers(text, values.head_layers); },
          "layers of each model that the tracker itself runs; auto: as many as fit")
      .integer("max-node-layers", values.max_node_layers, 0, kMostLayers,
               "most layers of one model that a node is given; 0: as many as fit")
      .integer("max-copies", values.max_copies, 0, 1000, "most copies of a layer; 0: as memory allows")
      .duration("heartbeat", values.heartbeat, "how often nodes report")
      .duration("lease", values.lease, "how long a silent node counts as there")
      .duration("replacement-wait", values.replacement_wait, "how long an answer waits for a lost layer")
      .duration("drain", values.drain, "how long running answers get when the tracker is stopped");
  settings.group("Tuning")
      .optional_size("prefix-cache-memory", values.prefix_cache_memory,
                     "of --memory, for prompts kept for later sessions; 0: none are kept, here or at nodes; "
                     "auto: an eighth")
      .optional_size(
          "spill-memory", values.spill_memory,
          "host memory for caches of sessions that others' turn pushes off a GPU; 0: none are; auto: a "
          "quarter of what is free less 1 GiB with a GPU, 0 with a CPU")
      .integer("threads", values.threads, 0, 1024, "CPU threads of a step; 0: cores divided by programs")
      .choice("dtype", values.dtype, {"auto", "bfloat16", "float32"}, "compute type of the models served")
      .choice("wire-codec", values.wire_codec, {"auto", "zstd", "split", "identity"},
              "coding of activations on the wire")
      .text("allow-peers", values.allow_peers,
            "kinds of addresses that nodes may have: public,private,loopback,cgnat,link-local")
      .choice("log-format", values.log_format, {"text", "json"}, "how it is logged");
  settings.group("For comparisons")
      .choice("cuda-path", values.cuda_path, {"graphs", "launches", "ampere", "portable", "eager"},
              "what a GPU may use; graphs: everything")
      .choice("cpu-path", values.cpu_path, {"auto", "portable", "avx2", "avx512", "avx512_bf16"},
              "what a CPU may use; auto: everything that it has");
  settings.footer(config::Settings::sources_help("tracker"));
}

Status complete_tracker_settings(TrackerSettings& values) {
  if (values.models.empty()) {
    return error(StatusCode::kInvalidArgument,
                 "no model: give --model with the folder of a HuggingFace SafeTensors model, or its id if it "
                 "is in the "
                 "HuggingFace cache");
  }
  MESH_RETURN_IF_ERROR(check_keys(values, values.api_keys()));
  MESH_RETURN_IF_ERROR(
      needs("listen", values.listen, values.api_key, "api-key", "a secret of your own for clients"));
  MESH_RETURN_IF_ERROR(needs("mesh-listen", values.mesh_listen, values.join_key_file, "join-key-file",
                             "a file, which is made with a fresh key when it is not there"));
  MESH_RETURN_IF_ERROR(needs("admin-listen", values.admin_listen, values.admin_key, "admin-key",
                             "a secret of your own for operators"));
  MESH_ASSIGN_OR_RETURN(const net::AddressKind mesh, kind_of("mesh-listen", values.mesh_listen));
  if (values.mesh_advertise.empty()) {
    if (mesh == net::AddressKind::kReserved) {
      return error(StatusCode::kInvalidArgument,
                   "--mesh-listen {} names no single address, so say with --mesh-advertise HOST:PORT where "
                   "nodes reach it",
                   values.mesh_listen);
    }
    values.mesh_advertise = values.mesh_listen;
  }
  MESH_ASSIGN_OR_RETURN(const net::HostPort advertised, net::HostPort::parse(values.mesh_advertise));
  if (advertised.port == 0)
    return error(StatusCode::kInvalidArgument, "--mesh-listen needs a port of its own, not 0");
  if (values.lease < 2 * values.heartbeat) {
    return error(StatusCode::kInvalidArgument, "--lease must be at least twice --heartbeat");
  }
  if (values.heartbeat > kLongestHeartbeat) {
    return error(
        StatusCode::kInvalidArgument,
        "--heartbeat can be {} s at most: nodes take openings of sessions only soon after a heartbeat",
        kLongestHeartbeat / std::chrono::seconds(1));
  }
  if (values.data_dir.empty()) values.data_dir = state_folder();
  return absl::OkStatus();
}

}  // namespace mesh::tracker
