#include "node/program.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <utility>

#include "common/base/version.h"
#include "common/host/data_folder_lock.h"
#include "common/host/end_anyway.h"
#include "common/host/host_share.h"
#include "common/hub/file_names.h"
#include "common/hub/open_model.h"
#include "common/identity/random.h"
#include "common/net/url.h"
#include "common/wire/frame.h"
#include "node/agent/about_size.h"
#include "node/agent/agent_loop.h"
#include "node/agent/shard_loader.h"
#include "node/runtime/access.h"
#include "node/runtime/forward_route.h"
#include "node/runtime/health.h"
#include "node/runtime/routes.h"
#include "node/signals.h"
#include "node/tools/bench.h"
#include "node/versions.h"

namespace mesh {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr Duration kDrain = seconds(60);
constexpr Duration kStopPatience = seconds(5);
constexpr std::uint64_t kMostBeside = std::uint64_t{768} << 20;

/// The ways in which a node's run ends, each told once to whoever waits.
class Ending {
 public:
  void ask(Status why) {
    const std::lock_guard lock(mutex_);
    if (!asked_) why_ = std::move(why);
    asked_ = true;
    changed_.notify_all();
  }
  /// Waits; OK when a signal asked.
  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_; });
    return why_;
  }
  bool asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;
  Status why_;
};

class NodeProgram {
 public:
  NodeProgram(const NodeSettings& settings, const log::Logger& log, FaultPoints* faults)
      : settings_(settings),
        log_(log),
        faults_(faults),
        signals_([this] { end_by_signal(); }, config::kExitFailed) {}

  int run() {
    Status result = start();
    const bool started = result.ok();
    if (started) result = settings_.tracker.empty() ? run_alone() : run_joined();
    if (!result.ok()) log_.error("{}", message_of(result));
    if (started) shut_down();
    return result.ok() ? config::kExitDone : config::kExitFailed;
  }

 private:
  void end_by_signal() {
    ending_.ask(absl::OkStatus());
    cancelled_ = true;  // a load that this ends must find that the end was asked for
  }

  Status start() {
    MESH_RETURN_IF_ERROR(prepare());
    MESH_RETURN_IF_ERROR(start_engine());
    return start_server();
  }

  Status prepare() {
    MESH_ASSIGN_OR_RETURN(data_lock_, lock_data_folder(settings_.data_dir, "node"));
    MESH_ASSIGN_OR_RETURN(KeyPair key, KeyPair::load_or_create(fs::path(settings_.data_dir) / "node.key"));
    identity_ = std::make_shared<const KeyPair>(std::move(key));
    stamps_ = std::make_shared<pipeline::RecentStamps>(identity_->id());
    if (!settings_.join_key.empty()) {
      MESH_ASSIGN_OR_RETURN(join_key_, JoinKey::parse(settings_.join_key));
    }
    pin_ = std::make_shared<TrackerLink::Pin>(join_key_);
    HostShare::Request request;
    request.program = "meshnet-node";
    request.memory = settings_.memory;
    if (settings_.threads > 0) request.threads = static_cast<unsigned>(settings_.threads);
    MESH_ASSIGN_OR_RETURN(share_, HostShare::enter(runtime_folder(), request));
    return absl::OkStatus();
  }

  Status start_engine() {
    engine::EngineOptions options;
    MESH_ASSIGN_OR_RETURN(options.device, engine::parse_device(settings_.device));
    MESH_ASSIGN_OR_RETURN(options.compute, engine::parse_compute_type(settings_.dtype));
    MESH_ASSIGN_OR_RETURN(options.cuda_path, engine::parse_cuda_path(settings_.cuda_path));
    options.cpu_path = settings_.cpu_path;
    options.threads = share_->threads();
    // Kept outputs and windows live beside the engine's weights and caches, within the same size.
    const std::uint64_t beside = std::min(kMostBeside, share_->memory() / 4);
    options.memory_bytes = share_->memory() - beside;
    options.spill_bytes = settings_.spill_memory;
    MESH_ASSIGN_OR_RETURN(auto engine, engine::Engine::create(options));
    compute_ = engine->compute() == engine::ComputeType::kFloat32 ? "float32" : "bfloat16";
    device_ = engine->device() == engine::Device::kCuda ? "cuda" : "cpu";
    log_.info("meshnet-node {}, node {}", program_version(), identity_->id().hex().substr(0, 16));
    log_.info("found: device {}, {} threads of {} cores, {} of memory, compute type {}", device_,
              share_->threads(), usable_cores(), about_size(share_->memory()), compute_);
    if (const engine::DeviceNote& note = engine->device_note(); !note.brief.empty()) {
      log_.info("{}", note.brief);
      log_.debug("{}", note.details);
    }

    const std::uint64_t spill = engine->memory().spill_budget_bytes;
    if (spill > 0) log_.info("{} of host memory for sessions that wait for their turn", about_size(spill));

    NodeOptions node;
    node.hop.cache_bytes = options.memory_bytes;
    node.hop.spill_bytes = spill;
    node.hop.prefix_bytes = settings_.prefix_cache_memory.value_or(options.memory_bytes / 8);
    node.hop.kept_bytes = beside * 2 / 3;
    node.hop.inbound_bytes = beside / 3;
    MESH_ASSIGN_OR_RETURN(node.codec, wire::parse_codec_policy(settings_.wire_codec));
    MESH_ASSIGN_OR_RETURN(node.peers, peer_policy());
    node.identity = identity_;
    node.drain = kDrain;
    node.faults = faults_;
    node.observer = &metrics_;
    node_ = Node::start(std::move(node), std::move(engine), nullptr);
    return absl::OkStatus();
  }

  StatusOr<net::AddressPolicy> peer_policy() const {
    if (!settings_.allow_peers.empty()) return net::AddressPolicy::parse(settings_.allow_peers);
    // What the tracker's own kind allows; alone, a node sends to nobody.
    if (settings_.tracker.empty()) return net::AddressPolicy::for_peers_of(net::AddressKind::kLoopback);
    MESH_ASSIGN_OR_RETURN(const net::Url url, net::Url::parse(settings_.tracker));
    const auto kind = net::classify_host(url.at.host);
    return net::AddressPolicy::for_peers_of(kind.ok() ? *kind : net::AddressKind::kPublic);
  }

  Status start_server() {
    ModelSource::Options models;
    models.tracker = tracker_options();
    models.cache_folder = settings_.cache_dir;
    if (const fs::path cache = hub::hf_cache_folder(); !cache.empty()) models.extra_roots.push_back(cache);
    models_ = std::make_shared<ModelSource>(std::move(models), pin_);

    RouteContext context;
    context.faults = faults_;
    context.observer = &metrics_;
    context.identity = identity_;
    context.tracker = [pin = pin_]() -> std::optional<NodeId> {
      const auto key = pin->key();
      if (!key) return std::nullopt;
      return node_id_of(*key);
    };
    context.check_fresh = [stamps = stamps_](const wire::Freshness& fresh) {
      return stamps->check(fresh, SteadyClock().now());
    };
    std::vector<net::Route> routes = session_routes(*node_, context);
    routes.push_back(
        forward_route(*node_, [this](const ModelIdentity& model) { return tokenizer_of(model); }));
    routes.push_back(
        {"GET", "/metrics", net::Access::kAdmin, [this](net::Request&) { return metrics(); }, 0, false});
    net::ServerOptions options;
    options.listen = settings_.listen;
    options.observer = [log = log_, faults = faults_](const net::RequestRecord& record) {
      if (record.route == wire::kFramesRoute) pass(faults, FaultPoint::kAfterAnswer);
      log.with_request(record.request_id)
          .debug("{} {} {} from {} in {} µs", record.method, record.route, record.status, record.remote_ip,
                 std::chrono::duration_cast<std::chrono::microseconds>(record.took).count());
    };
    MESH_ASSIGN_OR_RETURN(server_, net::Server::start(options, std::move(routes),
                                                      std::make_shared<NodeAccess>(join_key_, faults_)));
    log_.info("listening on {}", server_->address());
    return absl::OkStatus();
  }

  TrackerLink::Options tracker_options() const { return {settings_.tracker, identity_, join_key_}; }

  net::Response metrics() {
    const std::lock_guard lock(metrics_mutex_);
    metrics_.update(node_->figures());
    return net::Response::text(registry_.text(), metrics::Registry::kContentType);
  }

  StatusOr<std::shared_ptr<const Tokenizer>> tokenizer_of(const ModelIdentity& model) {
    const std::lock_guard lock(tokenizers_mutex_);
    if (const auto found = tokenizers_.find(model); found != tokenizers_.end()) return found->second;
    MESH_ASSIGN_OR_RETURN(const auto checkpoint, models_->find(model));
    hub::ModelFiles& files = checkpoint->files();
    MESH_ASSIGN_OR_RETURN(const std::string text, files.read_small(hub::kTokenizer));
    std::string config;
    if (files.has(hub::kTokenizerConfig)) {
      MESH_ASSIGN_OR_RETURN(config, files.read_small(hub::kTokenizerConfig));
    }
    MESH_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::load(text, config));
    tokenizers_.emplace(model, tokenizer);
    return tokenizer;
  }

  Status run_alone() {
    MESH_ASSIGN_OR_RETURN(auto files, hub::open_model(settings_.model_id, hub::hf_cache_folder()));
    log_.info("model {}", files->describe());
    MESH_ASSIGN_OR_RETURN(const auto checkpoint, hub::Checkpoint::open(std::move(files)));
    // Alone nobody compares identities, so the files need not be hashed: any value names the one model.
    const ModelIdentity identity = random_id<ModelIdentity>();
    models_->add(identity, checkpoint);
    const LayerRange layers{static_cast<std::uint32_t>(settings_.shard_start),
                            static_cast<std::uint32_t>(settings_.shard_end)};
    MESH_ASSIGN_OR_RETURN(const auto quantization,
                          engine::parse_quantization(settings_.quantization.front()));
    const Status loaded =
        load_layers(*node_, checkpoint, identity, layers, 0, quantization, log_, *share_, cancelled_);
    if (ending_.asked()) return ending_.wait();
    MESH_RETURN_IF_ERROR(loaded);
    log_.info("ready: POST {} at {}", kForwardRoute, server_->address());
    return ending_.wait();
  }

  Status run_joined() {
    MESH_ASSIGN_OR_RETURN(AgentStateFile state, AgentStateFile::begin_start(settings_.data_dir));
    AgentOptions options;
    options.node = identity_->id();
    options.highest_epoch = state.highest_epoch();
    options.jitter_seed = random_u64();
    wire::Join& self = options.self;
    self.stamp.start = state.start();
    self.program_version = std::string(program_version());
    self.wire_versions = wire_versions();
    self.address = settings_.advertise.empty() ? server_->address() : settings_.advertise;
    self.memory_bytes = node_->engine().memory().budget_bytes;
    self.threads = share_->threads();
    self.device = device_;
    self.read_bytes_per_second = tools::measured_read_rate(settings_.data_dir, device_);
    for (const std::string_view type : engine::supported_model_types()) self.model_types.emplace_back(type);
    self.quantizations = settings_.quantization;
    self.compute_types = {compute_};
    agent_ = std::make_unique<AgentLoop>(
        std::move(options),
        AgentLoop::Parts{*node_, *share_, models_, tracker_options(), pin_, std::move(state), stamps_, log_,
                         [this](const Status& why) { ending_.ask(why); }});
    return ending_.wait();
  }

  void shut_down() {
    log_.info("draining: no new sessions; running ones get {} s (a second signal ends at once)",
              std::chrono::duration_cast<seconds>(kDrain).count());
    if (agent_ != nullptr) agent_->begin_drain();
    node_->set_draining(true);
    node_->wait_idle(kDrain);
    end_anyway_after(kStopPatience, config::kExitDone);
    if (agent_ != nullptr) agent_->leave();
    server_->stop(seconds(1));
    node_->stop();
    log_.info("ended");
  }

  const NodeSettings& settings_;
  const log::Logger log_;
  FaultPoints* const faults_;
  Ending ending_;
  std::atomic<bool> cancelled_ = false;
  SignalThread signals_;
  int data_lock_ = -1;  ///< held until the process ends
  std::shared_ptr<const KeyPair> identity_;
  std::shared_ptr<pipeline::RecentStamps> stamps_;
  std::optional<JoinKey> join_key_;
  std::shared_ptr<TrackerLink::Pin> pin_;
  std::unique_ptr<HostShare> share_;
  std::string compute_;
  std::string device_;
  std::mutex tokenizers_mutex_;
  std::map<ModelIdentity, std::shared_ptr<const Tokenizer>> tokenizers_;
  metrics::Registry registry_;
  std::mutex metrics_mutex_;
  NodeMetrics metrics_{registry_};
  std::unique_ptr<Node> node_;
  std::shared_ptr<ModelSource> models_;
  std::unique_ptr<net::Server> server_;
  std::unique_ptr<AgentLoop> agent_;
};

}  // namespace

int run_node(const NodeSettings& settings, const log::Logger& log, FaultPoints* faults) {
  return NodeProgram(settings, log, faults).run();
}

}  // namespace mesh
