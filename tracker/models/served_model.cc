#include "tracker/models/served_model.h"

#include <chrono>

#include "common/hub/file_names.h"
#include "common/hub/open_model.h"

namespace mesh::tracker {
namespace {

StatusOr<std::string> optional_file(hub::ModelFiles& files, std::string_view name) {
  if (!files.has(name)) return std::string();
  return files.read_small(name);
}

/// Says that files are hashed, then how far that is now and then.
class HashingLines {
 public:
  HashingLines(std::string name, const ServeOptions& options) : name_(std::move(name)), options_(options) {}

  bool operator()(const hub::Progress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (options_.say && progress.bytes_total > 0 && now >= next_line_) {
      next_line_ = now + std::chrono::seconds(10);
      options_.say(fmt::format("hashing {}: {} of {} MB", name_, progress.bytes_done / 1'000'000,
                               progress.bytes_total / 1'000'000));
    }
    return !options_.go_on || options_.go_on();
  }

 private:
  const std::string name_;
  const ServeOptions& options_;
  std::chrono::steady_clock::time_point next_line_{};
};

/// What generation_config.json asks for that sampling here does not do.
std::string ignored_sampling(const GenerationDefaults& defaults) {
  std::string names;
  if (defaults.repetition_penalty.value_or(1.0) != 1.0)
    names = fmt::format("repetition_penalty {}", *defaults.repetition_penalty);
  if (defaults.min_p.value_or(0.0) != 0.0)
    names += fmt::format("{}min_p {}", names.empty() ? "" : ", ", *defaults.min_p);
  return names;
}

Status read_texts(hub::ModelFiles& files, gateway::Model& client) {
  MESH_ASSIGN_OR_RETURN(const std::string config, files.read_small(hub::kConfig));
  MESH_ASSIGN_OR_RETURN(const std::string generation, optional_file(files, hub::kGenerationConfig));
  MESH_ASSIGN_OR_RETURN(const std::string tokenizer, files.read_small(hub::kTokenizer));
  MESH_ASSIGN_OR_RETURN(const std::string tokenizer_config, optional_file(files, hub::kTokenizerConfig));
  MESH_ASSIGN_OR_RETURN(const std::string jinja, optional_file(files, hub::kChatTemplate));
  MESH_ASSIGN_OR_RETURN(client.defaults, GenerationDefaults::parse(config, generation));
  MESH_ASSIGN_OR_RETURN(client.tokenizer, Tokenizer::load(tokenizer, tokenizer_config));
  auto chat = ChatTemplate::load(jinja, tokenizer_config.empty() ? "{}" : tokenizer_config);
  if (chat.ok()) {
    client.chat_template = *std::move(chat);
  } else if (chat.status().code() != StatusCode::kNotFound) {
    return with_context(chat.status(), "chat template");
  }
  return absl::OkStatus();
}

StatusOr<ServedModel> open_model(const std::string& spec, const ServeOptions& options) {
  ServedModel model;
  MESH_ASSIGN_OR_RETURN(const std::shared_ptr<hub::ModelFiles> files,
                        hub::open_model(spec, hub::hf_cache_folder()));
  MESH_ASSIGN_OR_RETURN(const std::string config, files->read_small(hub::kConfig));
  MESH_ASSIGN_OR_RETURN(model.profile, engine::read_model_profile(config));
  model.client.name = client_name(spec);
  MESH_RETURN_IF_ERROR(read_texts(*files, model.client));
  if (const std::string names = ignored_sampling(model.client.defaults); options.say && !names.empty()) {
    options.say(fmt::format("{}: its generation_config.json asks for {}, which answers here do without",
                            model.client.name, names));
  }

  MESH_ASSIGN_OR_RETURN(model.manifest, hub::make_manifest(*files, options.manifest_cache,
                                                           HashingLines(model.client.name, options)));
  model.manifest_text = hub::manifest_json(model.manifest);
  model.compute_type = options.compute_type;
  MESH_ASSIGN_OR_RETURN(model.quantization, model.profile.quantization(options.quantization));
  model.identity = hub::identity_of(model.manifest, to_string(model.quantization), options.compute_type);
  MESH_ASSIGN_OR_RETURN(model.checkpoint, hub::Checkpoint::open(files));
  model.plan = plan_profile_of(model.profile, model.identity, model.client.name, options.compute_type,
                               model.quantization);
  model.client.identity = model.identity;
  model.client.context = model.profile.max_positions;
  model.client.vocab = model.profile.vocab;
  model.client.created_unix =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  return model;
}

}  // namespace

std::string client_name(const std::string& spec) {
  const std::string plain = spec.substr(0, spec.rfind('@'));
  if (!std::filesystem::exists(spec) && hub::is_model_id(plain)) return plain;
  std::error_code code;
  const auto folder = std::filesystem::canonical(std::filesystem::exists(spec) ? spec : plain, code);
  return code ? plain : folder.filename().string();
}

ModelProfile plan_profile_of(const engine::ModelProfile& profile, const ModelIdentity& identity,
                             const std::string& name, const std::string& compute_type,
                             engine::Quantization quantization) {
  const auto cache =
      compute_type == "float32" ? engine::WeightFormat::kFloat32 : engine::WeightFormat::kBfloat16;
  const engine::WeightFormat weights = profile.matrix_format(cache, quantization);
  ModelProfile plan;
  plan.identity = identity;
  plan.name = name;
  plan.model_type = profile.model_type;
  plan.quantization = to_string(quantization);
  plan.compute_type = compute_type;
  plan.hidden_size = profile.hidden;
  for (std::uint32_t layer = 0; layer < profile.layer_count(); ++layer) {
    plan.layer_bytes.push_back(profile.layers[layer].bytes(weights));
    plan.layer_bytes_per_token.push_back(profile.kv_bytes_per_token({layer, layer + 1}, cache));
  }
  plan.head_bytes = profile.embedding.bytes(weights);
  plan.tail_bytes = profile.head.bytes(weights);
  const LayerRange whole{0, profile.layer_count()};
  plan.tied_bytes = profile.weight_bytes(whole, true, false, weights) + plan.tail_bytes -
                    profile.weight_bytes(whole, true, true, weights);
  plan.split_points = profile.split_points;
  return plan;
}

wire::CatalogueEntry ServedModel::catalogue_entry() const {
  return {identity,     client.name,           profile.model_type, plan.quantization,
          compute_type, profile.layer_count(), profile.hidden};
}

StatusOr<ServedModel> open_served_model(const std::string& spec, const ServeOptions& options) {
  auto model = open_model(spec, options);
  if (!model.ok()) return with_context(model.status(), fmt::format("--model {}", spec));
  return model;
}

}  // namespace mesh::tracker
