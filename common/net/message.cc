#include "common/net/message.h"

namespace mesh::net {

Response Response::json(const json::Value& value, int status) {
  Response response;
  response.status = status;
  response.body = json::serialize(value);
  return response;
}

Response Response::text(std::string body, std::string_view content_type) {
  Response response;
  response.content_type = content_type;
  response.body = std::move(body);
  return response;
}

Response Response::binary(std::string body, std::string_view content_type) {
  return text(std::move(body), content_type);
}

}  // namespace mesh::net
