#include "tracker/program.h"

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>

#include "common/base/version.h"
#include "common/config/units.h"
#include "common/host/data_folder_lock.h"
#include "common/host/end_anyway.h"
#include "common/host/host_share.h"
#include "common/net/address.h"
#include "common/net/url.h"
#include "node/agent/memory_parts.h"
#include "node/signals.h"
#include "tracker/admin/admin_routes.h"
#include "tracker/data_folder.h"
#include "tracker/gateway/endpoints.h"
#include "tracker/models/served_model.h"
#include "tracker/runtime/access.h"
#include "tracker/runtime/head_loop.h"
#include "tracker/runtime/membership.h"
#include "tracker/runtime/model_routes.h"
#include "tracker/runtime/peer_calls.h"
#include "tracker/runtime/tracker_metrics.h"
#include "tracker/store/store.h"

namespace mesh::tracker {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr Duration kStopPatience = seconds(5);
/// Each request that runs or waits holds a thread of the client listener.
constexpr std::size_t kClientThreadsBeside = 64;
constexpr std::size_t kMeshThreads = 64;
constexpr std::size_t kAdminThreads = 16;

/// One line for the person who started the program.
void tell(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

class TrackerProgram {
 public:
  TrackerProgram(const TrackerSettings& settings, const log::Logger& log)
      : settings_(settings), log_(log), signals_([this] { ask_to_end(); }, config::kExitFailed) {}

  Status run() {
    MESH_RETURN_IF_ERROR(prepare());
    MESH_RETURN_IF_ERROR(open_models());
    MESH_RETURN_IF_ERROR(start_engine());
    MESH_RETURN_IF_ERROR(load_head());
    MESH_RETURN_IF_ERROR(membership_->start());
    MESH_RETURN_IF_ERROR(start_servers());
    introduce();
    wait_for_end();
    shut_down();
    return absl::OkStatus();
  }

 private:
  Status prepare() {
    MESH_ASSIGN_OR_RETURN(data_lock_, lock_data_folder(settings_.data_dir, "tracker"));
    MESH_ASSIGN_OR_RETURN(KeyPair key, KeyPair::load_or_create(fs::path(settings_.data_dir) / "tracker.key"));
    identity_ = std::make_shared<const KeyPair>(std::move(key));
    if (!settings_.join_key_file.empty()) {
      MESH_ASSIGN_OR_RETURN(join_key_, load_join_key(settings_.join_key_file, identity_->public_key()));
    }
    HostShare::Request request;
    request.program = "meshnet-tracker";
    request.memory = settings_.memory;
    if (settings_.threads > 0) request.threads = static_cast<unsigned>(settings_.threads);
    MESH_ASSIGN_OR_RETURN(share_, HostShare::enter(runtime_folder(), request));
    budget_.session_tokens = static_cast<std::uint64_t>(settings_.session_tokens);
    return absl::OkStatus();
  }

  Status open_models() {
    ServeOptions options;
    options.compute_type = settings_.dtype == "float32" ? "float32" : "bfloat16";
    MESH_ASSIGN_OR_RETURN(options.quantization, engine::parse_quantization(settings_.quantization));
    options.manifest_cache = fs::path(settings_.data_dir) / "manifests";
    options.say = [this](std::string_view line) { log_.info("{}", line); };
    options.go_on = [this] { return !asked_to_end(); };
    auto models = std::make_shared<std::vector<ServedModel>>();
    for (const std::string& spec : settings_.models) {
      MESH_ASSIGN_OR_RETURN(ServedModel model, open_served_model(spec, options));
      for (const ServedModel& other : *models) {
        if (other.client.name == model.client.name) {
          return error(StatusCode::kInvalidArgument,
                       "two models are called {}: serve them from folders of other names", model.client.name);
        }
      }
      models->push_back(std::move(model));
    }
    models_ = std::move(models);
    return choose_head_layers();
  }

  Status choose_head_layers() {
    const std::uint64_t each = share_->memory() / models_->size();
    for (const ServedModel& model : *models_) {
      const std::uint32_t layers = model.profile.layer_count();
      std::uint32_t& mine = head_layers_[model.identity];
      mine = settings_.head_layers ? *settings_.head_layers : auto_head_layers(model.plan, each, budget_);
      if (mine > layers) {
        return error(StatusCode::kInvalidArgument, "--head-layers {} is more than the {} layers of {}", mine,
                     layers, model.client.name);
      }
      if (!model.profile.allows({0, mine})) {
        return error(StatusCode::kInvalidArgument, "--head-layers {}: {} cannot be cut there", mine,
                     model.client.name);
      }
    }
    return absl::OkStatus();
  }

  Status start_engine() {
    engine::EngineOptions options;
    MESH_ASSIGN_OR_RETURN(options.device, engine::parse_device(settings_.device));
    MESH_ASSIGN_OR_RETURN(options.compute, engine::parse_compute_type(settings_.dtype));
    MESH_ASSIGN_OR_RETURN(options.cuda_path, engine::parse_cuda_path(settings_.cuda_path));
    options.cpu_path = settings_.cpu_path;
    options.threads = share_->threads();
    options.memory_bytes = share_->memory();
    options.spill_bytes = settings_.spill_memory;
    MESH_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(options));
    log_.info("meshnet-tracker {}, id {}", program_version(), identity_->id().hex().substr(0, 16));
    log_.info("found: device {}, {} threads of {} cores, {} of memory",
              engine->device() == engine::Device::kCuda ? "cuda" : "cpu", share_->threads(), usable_cores(),
              config::format_size(share_->memory()));
    if (const engine::DeviceNote& note = engine->device_note(); !note.brief.empty()) {
      log_.info("{}", note.brief);
      log_.debug("{}", note.details);
    }

    const std::string head_url = "http://" + settings_.mesh_advertise;
    MESH_RETURN_IF_ERROR(make_membership(head_url));
    PeerCalls::Options calls;
    MESH_ASSIGN_OR_RETURN(calls.addresses, peer_policy());
    peers_ = std::make_unique<PeerCalls>(std::move(calls), identity_);
    HeadLoop::Options head;
    head.head.head_url = head_url;
    head.head.replacement_wait = settings_.replacement_wait;
    head.self = identity_->id();
    head.admission.max_running = static_cast<std::size_t>(settings_.max_sessions);
    head.admission.max_per_key = static_cast<std::size_t>(settings_.max_key_sessions);
    head.admission.depth = static_cast<std::size_t>(settings_.queue_depth);
    head.admission.longest_wait = settings_.queue_wait;
    head.admissions = &metrics_;
    head.offer_prefixes = settings_.prefix_cache_memory != 0;
    for (const ServedModel& model : *models_) {
      head.models.push_back(model.client);
      head.layer_counts[model.identity] = model.profile.layer_count();
    }
    head_ = std::make_unique<HeadLoop>(std::move(head), *membership_, *peers_, log_);

    NodeOptions node;
    node.hop.cache_bytes = share_->memory();
    node.hop.spill_bytes = engine->memory().spill_budget_bytes;
    node.hop.prefix_bytes = settings_.prefix_cache_memory.value_or(share_->memory() / 8);
    MESH_ASSIGN_OR_RETURN(node.codec, wire::parse_codec_policy(settings_.wire_codec));
    MESH_ASSIGN_OR_RETURN(node.peers, peer_policy());
    node.identity = identity_;
    node.local_head_url = head_url;
    node.observer = &metrics_.node();
    node_ = Node::start(std::move(node), std::move(engine), head_.get());
    head_->run(*node_);
    return absl::OkStatus();
  }

  Status make_membership(const std::string& head_url) {
    MESH_ASSIGN_OR_RETURN(Store store, Store::open((fs::path(settings_.data_dir) / "tracker.db").string()));
    Membership::Options options;
    for (const ServedModel& model : *models_) {
      options.catalogue.push_back(model.catalogue_entry());
      options.profiles.push_back(model.plan);
    }
    options.head_layers = head_layers_;
    options.self = identity_->id();
    options.head_url = head_url;
    options.head_memory_bytes = share_->memory();
    options.heartbeat = settings_.heartbeat;
    options.registry.lease = settings_.lease;
    options.desk.plan.budget = budget_;
    options.desk.plan.max_copies = static_cast<std::uint32_t>(settings_.max_copies);
    options.desk.plan.max_node_layers = static_cast<std::uint32_t>(settings_.max_node_layers);
    options.join_key = join_key_;
    const auto at = net::HostPort::parse(settings_.mesh_listen);
    const bool local = at.ok() && net::is_loopback(at->host);
    // Whoever gave a join key wants it asked for, on this machine too.
    const bool always = !local || join_key_.has_value();
    options.needs_proof = [always](std::string_view) { return always; };
    options.on_lost = [this](const NodeId& node) { head_->node_lost(node); };
    membership_ = std::make_unique<Membership>(std::move(options), std::make_unique<Store>(std::move(store)),
                                               identity_, log_);
    return absl::OkStatus();
  }

  StatusOr<net::AddressPolicy> peer_policy() const {
    if (!settings_.allow_peers.empty()) return net::AddressPolicy::parse(settings_.allow_peers);
    MESH_ASSIGN_OR_RETURN(const net::HostPort at, net::HostPort::parse(settings_.mesh_advertise));
    const auto kind = net::classify_host(at.host);
    return net::AddressPolicy::for_peers_of(kind.ok() ? *kind : net::AddressKind::kPublic);
  }

  Status load_head() {
    std::uint64_t total = 0;
    for (const ServedModel& model : *models_) {
      const engine::ShardSpec spec = spec_of(model);
      const auto needs = node_->engine().shard_needs(*model.checkpoint, model.identity, spec);
      if (!needs.ok())
        return with_context(needs.status(), fmt::format("the head's layers of {}", model.client.name));
      total += needs->total();
      MESH_RETURN_IF_ERROR(share_->reserve(total));
      log_.info("loading layers {} of {} here", to_string(spec.range), model.client.name);
      const Status loaded = node_->load_shard(model.checkpoint, model.identity, spec,
                                              [this](const auto&) { return !asked_to_end(); });
      if (!loaded.ok())
        return with_context(loaded, fmt::format("the head's layers of {}", model.client.name));
    }
    log_.info("{}", to_string(memory_parts(node_->engine().memory(), share_->memory())));
    return absl::OkStatus();
  }

  engine::ShardSpec spec_of(const ServedModel& model) const {
    engine::ShardSpec spec;
    spec.range = {0, head_layers_.at(model.identity)};
    spec.embedding = true;
    spec.head = spec.range.end == model.profile.layer_count();
    spec.quantization = model.quantization;
    return spec;
  }

  Status start_servers() {
    AdminViews views;
    views.ready = [this]() -> Status {
      if (asked_to_end()) return error(StatusCode::kUnavailable, "the tracker is draining");
      return membership_->ready();
    };
    views.coverage = [this] { return membership_->coverage(); };
    views.metrics = [this] { return metrics_.text(*node_, *head_, *membership_); };
    const auto access = std::make_shared<TrackerAccess>(settings_.api_keys(), settings_.admin_key);

    gateway::EndpointOptions endpoints;
    endpoints.respond.observer = [this](const gateway::AnswerFigures& figures) {
      metrics_.answer_done(figures);
    };
    std::vector<net::Route> client = gateway::openai_routes(*head_, endpoints);
    std::vector<net::Route> mesh = membership_->routes();
    std::vector<net::Route> admin{metrics_route(views)};
    client.push_back(page_route());
    for (const net::Route& route : head_->routes()) mesh.push_back(route);
    for (const net::Route& route : model_routes(models_, *membership_)) mesh.push_back(route);
    for (auto* routes : {&client, &mesh, &admin}) {
      for (const net::Route& route : health_routes(views)) routes->push_back(route);
      routes->push_back(coverage_route(views));
    }
    MESH_ASSIGN_OR_RETURN(mesh_server_,
                          serve(settings_.mesh_listen, kMeshThreads, std::move(mesh), access, false));
    const auto threads =
        static_cast<std::size_t>(settings_.max_sessions + settings_.queue_depth) + kClientThreadsBeside;
    MESH_ASSIGN_OR_RETURN(client_server_, serve(settings_.listen, threads, std::move(client), access, true));
    MESH_ASSIGN_OR_RETURN(admin_server_,
                          serve(settings_.admin_listen, kAdminThreads, std::move(admin), access, false));
    return absl::OkStatus();
  }

  StatusOr<std::unique_ptr<net::Server>> serve(const std::string& listen, std::size_t threads,
                                               std::vector<net::Route> routes,
                                               const std::shared_ptr<TrackerAccess>& access, bool clients) {
    net::ServerOptions options;
    options.listen = listen;
    options.threads = threads;
    if (clients) {
      options.observer = [this](const net::RequestRecord& record) {
        metrics_.request_done(record);
        log_.with_request(record.request_id)
            .debug("{} {} {} in {} ms", record.method, record.route, record.status,
                   std::chrono::duration_cast<std::chrono::milliseconds>(record.took).count());
      };
    }
    return net::Server::start(std::move(options), std::move(routes), access);
  }

  void introduce() const {
    for (const ServedModel& model : *models_) {
      tell(fmt::format("serving {}: {} layers, {} of them here; context {} tokens", model.client.name,
                       model.profile.layer_count(), head_layers_.at(model.identity), model.client.context));
    }
    tell(fmt::format("clients: http://{}/v1 (OpenAI API), page: http://{}/", client_server_->address(),
                     client_server_->address()));
    tell("nodes join with: " + join_line());
    if (join_key_) {
      tell("whoever has the join key may run layers, and can then read the prompts that pass through them");
    }
    if (const Status ready = membership_->ready(); !ready.ok()) tell(std::string(message_of(ready)));
  }

  /// What a node's owner types; the key stays off the command line, which everybody on that machine can read.
  std::string join_line() const {
    std::string line = fmt::format("meshnet-node --tracker http://{}", settings_.mesh_advertise);
    if (join_key_) line += " --join-key-file " + settings_.join_key_file;
    const auto at = net::HostPort::parse(settings_.mesh_advertise);
    const bool elsewhere = at.ok() && !net::is_loopback(at->host);
    if (elsewhere) line += " --listen 0.0.0.0:8090 --advertise ADDRESS-OF-THE-NODE:8090";
    if (settings_.quantization != "bfloat16") line += " --quantization " + settings_.quantization;
    if (settings_.dtype == "float32") line += " --dtype float32";
    if (elsewhere && join_key_) line += "  (with a copy of that file)";
    return line;
  }

  void ask_to_end() {
    {
      const std::lock_guard lock(mutex_);
      asked_ = true;
    }
    changed_.notify_all();
  }
  bool asked_to_end() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  void wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_; });
  }

  void shut_down() {
    log_.info("draining: no new answers; running ones get {} (a second signal ends at once)",
              config::format_duration(settings_.drain));
    head_->drain();
    const TimePoint until = SteadyClock().now() + settings_.drain;
    std::unique_lock lock(mutex_);
    while (head_->sessions() > 0 && SteadyClock().now() < until) {
      changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
    lock.unlock();
    end_anyway_after(kStopPatience, config::kExitDone);
    client_server_->stop(seconds(1));
    head_->stop();
    admin_server_->stop({});
    mesh_server_->stop({});
    membership_->stop();
    peers_->stop();
    node_->stop();
    log_.info("ended");
  }

  const TrackerSettings& settings_;
  const log::Logger log_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;
  SignalThread signals_;
  int data_lock_ = -1;  ///< held until the process ends
  std::shared_ptr<const KeyPair> identity_;
  std::optional<JoinKey> join_key_;
  std::unique_ptr<HostShare> share_;
  MemoryBudget budget_;
  std::shared_ptr<const std::vector<ServedModel>> models_;
  HeadLayers head_layers_;
  TrackerMetrics metrics_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<PeerCalls> peers_;
  std::unique_ptr<HeadLoop> head_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<net::Server> mesh_server_, client_server_, admin_server_;
};

}  // namespace

int run_tracker(const TrackerSettings& settings, const log::Logger& log) {
  TrackerProgram program(settings, log);
  const Status result = program.run();
  if (result.ok()) return config::kExitDone;
  if (result.code() == StatusCode::kCancelled) {
    log.info("ended before all was loaded: {}", message_of(result));
    return config::kExitDone;
  }
  std::fprintf(stderr, "meshnet-tracker: %s\n", std::string(message_of(result)).c_str());
  return result.code() == StatusCode::kInvalidArgument ? config::kExitUsage : config::kExitFailed;
}

}  // namespace mesh::tracker
