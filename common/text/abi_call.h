#pragma once

#include <string>

#include "common/base/status.h"
#include "common/text/text_abi.h"

namespace mesh::text {

/// A buffer that the library fills and that goes back to it.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { mesh_text_free(raw_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  MeshBuffer* raw() { return &raw_; }
  std::string_view view() const {
    return raw_.size == 0 ? std::string_view()
                          : std::string_view(reinterpret_cast<const char*>(raw_.data), raw_.size);
  }
  std::string str() const { return std::string(view()); }

 private:
  MeshBuffer raw_{nullptr, 0};
};

/// The status that a library call's code and message stand for.
Status to_status(std::int32_t code, const Buffer& message);

inline const std::uint8_t* bytes(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

}  // namespace mesh::text
