#include "common/identity/sha256.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "common/base/check.h"

namespace mesh {

// OpenSSL rather than libsodium: whole models are hashed, and OpenSSL uses the CPU's SHA instructions.
struct Sha256Stream::State {
  State() : context(EVP_MD_CTX_new()) {
    MESH_CHECK(context != nullptr);
    start();
  }
  State(const State& other) : context(EVP_MD_CTX_new()) {
    MESH_CHECK(context != nullptr && EVP_MD_CTX_copy_ex(context, other.context) == 1);
  }
  State& operator=(const State& other) {
    MESH_CHECK(EVP_MD_CTX_copy_ex(context, other.context) == 1);
    return *this;
  }
  ~State() { EVP_MD_CTX_free(context); }
  void start() const { MESH_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1); }

  EVP_MD_CTX* const context;
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(const Sha256Stream& other) : state_(std::make_unique<State>(*other.state_)) {}
Sha256Stream& Sha256Stream::operator=(const Sha256Stream& other) {
  *state_ = *other.state_;
  return *this;
}
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

Sha256Stream& Sha256Stream::update(std::string_view bytes) {
  MESH_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256 Sha256Stream::finish() {
  Sha256 digest;
  MESH_CHECK(EVP_DigestFinal_ex(state_->context, digest.bytes.data(), nullptr) == 1);
  state_->start();
  return digest;
}

Sha256 sha256(std::string_view bytes) {
  Sha256 digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.bytes.data());
  return digest;
}

}  // namespace mesh
