#include "common/identity/join_key.h"

#include "common/identity/random.h"
#include "common/identity/sha256.h"

namespace mesh {
namespace {

constexpr std::string_view kPrefix = "mesh1.";
constexpr std::size_t kDigits = 64;

Status malformed() {
  return error(StatusCode::kInvalidArgument,
               "join key should be {}<64 hex digits>.<64 hex digits>: copy the whole line of the tracker's "
               "--join-key-file",
               kPrefix);
}

}  // namespace

JoinKey JoinKey::make(const PublicKey& tracker) {
  JoinKey key;
  key.secret_ = random_id<SessionSecret>();
  key.tracker_hash_ = sha256(tracker.view());
  return key;
}

StatusOr<JoinKey> JoinKey::parse(std::string_view text) {
  if (text.size() != kPrefix.size() + 2 * kDigits + 1 || !text.starts_with(kPrefix)) return malformed();
  text.remove_prefix(kPrefix.size());
  const auto secret = SessionSecret::parse(text.substr(0, kDigits));
  const auto hash = Sha256::parse(text.substr(kDigits + 1));
  if (!secret || !hash || text[kDigits] != '.') return malformed();
  JoinKey key;
  key.secret_ = *secret;
  key.tracker_hash_ = *hash;
  return key;
}

std::string JoinKey::text() const {
  return fmt::format("{}{}.{}", kPrefix, secret_.hex(), tracker_hash_.hex());
}

bool JoinKey::pins(const PublicKey& tracker) const {
  return sha256(tracker.view()) == tracker_hash_;
}

Mac JoinKey::prove(std::string_view body) const {
  return compute_mac(secret_, {body});
}

bool JoinKey::verify_proof(std::string_view body, const Mac& proof) const {
  return verify_mac(secret_, {body}, proof);
}

}  // namespace mesh
