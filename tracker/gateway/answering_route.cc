#include "tracker/gateway/answering_route.h"

#include <chrono>
#include <utility>

#include "common/net/error_response.h"
#include "tracker/gateway/request_fields.h"

namespace mesh::gateway {
namespace {

constexpr std::size_t kMaxBody = std::size_t{16} << 20;

std::int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

StatusOr<Job> read_job(Backend& backend, const AnsweringEndpoint& endpoint, const net::Request& request) {
  const json::Limits limits{.max_bytes = kMaxBody, .max_depth = 32, .max_values = endpoint.most_values};
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(request.body, limits));
  const json::View body(value);
  MESH_ASSIGN_OR_RETURN(CommonFields fields, read_common(body));
  MESH_ASSIGN_OR_RETURN(const Model* const model, find_model(backend, fields.model));
  MESH_RETURN_IF_ERROR(endpoint.check_fields(body));
  MESH_RETURN_IF_ERROR(apply_defaults(body, model->defaults, fields));
  MESH_ASSIGN_OR_RETURN(const auto asked, asked_tokens(body, endpoint.length_fields));
  Job job;
  MESH_ASSIGN_OR_RETURN(job.ask.prompt, endpoint.read_prompt(*model, body));
  MESH_ASSIGN_OR_RETURN(job.ask.max_tokens, answer_tokens(*model, job.ask.prompt.size(), asked,
                                                          endpoint.fallback_tokens, endpoint.prompt_field));
  job.ask.identity = model->identity;
  job.ask.eos_ids = model->defaults.eos_ids;
  job.ask.sampling = fields.sampling;
  job.ask.request_id = request.request_id;
  job.ask.principal = request.principal;
  job.ask.length_asked = asked.has_value();
  job.tokenizer = model->tokenizer;
  job.stops = std::move(fields.stops);
  job.stream = fields.stream;
  job.include_usage = fields.include_usage;
  job.shape = endpoint.shape(model->name, unix_now());
  return job;
}

}  // namespace

net::Route answering_route(Backend& backend, AnsweringEndpoint endpoint, RespondOptions options) {
  const std::string path = endpoint.path;
  const auto handle = [&backend, endpoint = std::move(endpoint),
                       options = std::move(options)](net::Request& request) {
    auto job = read_job(backend, endpoint, request);
    if (!job.ok()) return net::error_response(job.status());
    return respond(backend, *std::move(job), request, options);
  };
  return {"POST", path, net::Access::kApiKey, handle, kMaxBody, true};
}

}  // namespace mesh::gateway
