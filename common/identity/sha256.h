#pragma once

#include <memory>
#include <string_view>

#include "common/base/ids.h"

namespace mesh {

/// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream& other);
  Sha256Stream& operator=(const Sha256Stream& other);
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;

  Sha256Stream& update(std::string_view bytes);
  /// The digest of all so far; afterwards the stream is as new.
  Sha256 finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Sha256 sha256(std::string_view bytes);

}  // namespace mesh
