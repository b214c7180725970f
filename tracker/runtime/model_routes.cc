#include "tracker/runtime/model_routes.h"

#include <algorithm>

#include "common/net/error_response.h"
#include "common/net/range.h"

namespace mesh::tracker {
namespace {

constexpr std::uint64_t kPiece = 256 << 10;
constexpr int kPartial = 206;
constexpr int kNotSatisfiable = 416;

using Models = std::shared_ptr<const std::vector<ServedModel>>;

StatusOr<const ServedModel*> find(const Models& models, const Membership& membership,
                                  const net::Request& request) {
  const auto node = NodeId::parse(request.principal);
  if (!node)
    return error(StatusCode::kUnauthenticated, "models are served to joined nodes: sign the request");
  MESH_RETURN_IF_ERROR(membership.joined(*node));
  const auto identity = ModelIdentity::parse(request.params.at("identity"));
  for (const ServedModel& model : *models) {
    if (identity && model.identity == *identity) return &model;
  }
  return error(StatusCode::kNotFound, "no model {} here", request.params.at("identity"));
}

void stream_range(hub::ModelFiles& files, const std::string& name, net::ByteRange range,
                  net::StreamWriter& writer) {
  for (std::uint64_t at = range.begin; at < range.end;) {
    const std::uint64_t length = std::min(kPiece, range.end - at);
    const auto bytes = files.read(name, {at, length});
    // An answer cut short closes the connection: the node asks again.
    if (!bytes.ok() || !writer.write(*bytes)) return;
    at += length;
  }
}

net::Response serve_file(const ServedModel& model, const net::Request& request) {
  const std::string& name = request.params.at("name");
  const hub::ManifestFile* file = model.manifest.find(name);
  if (file == nullptr) {
    return net::error_response(error(StatusCode::kNotFound, "{} has no file '{}'", model.client.name, name));
  }
  const auto range = net::parse_range(request.headers.get("Range"), file->size);
  net::Response response;
  response.content_type = "application/octet-stream";
  response.headers.add("Accept-Ranges", "bytes");
  if (!range.ok()) {
    response = net::error_response(range.status());
    response.status = kNotSatisfiable;
    response.headers.add("Content-Range", fmt::format("bytes */{}", file->size));
    return response;
  }
  const net::ByteRange part = range->value_or(net::ByteRange{0, file->size});
  if (*range) {
    response.status = kPartial;
    response.headers.add("Content-Range", net::content_range_header(part, file->size));
  }
  response.stream_length = part.size();
  response.stream = [checkpoint = model.checkpoint, name, part](net::StreamWriter& writer) {
    stream_range(checkpoint->files(), name, part, writer);
  };
  return response;
}

}  // namespace

std::vector<net::Route> model_routes(Models models, const Membership& membership) {
  const auto manifest = [models, &membership](net::Request& request) {
    const auto model = find(models, membership, request);
    if (!model.ok()) return net::error_response(model.status());
    return net::Response::text((*model)->manifest_text, net::kJsonType);
  };
  const auto file = [models, &membership](net::Request& request) {
    const auto model = find(models, membership, request);
    if (!model.ok()) return net::error_response(model.status());
    return serve_file(**model, request);
  };
  return {{"GET", "/mesh/v1/models/{identity}/manifest", net::Access::kNode, manifest, 0, true},
          {"GET", "/mesh/v1/models/{identity}/files/{name}", net::Access::kNode, file, 0, true}};
}

}  // namespace mesh::tracker
