#include "common/wire/prefix_key.h"

#include "common/identity/sha256.h"
#include "common/wire/bytes.h"

namespace mesh::wire {

std::vector<PrefixKey> prefix_keys(const ModelIdentity& identity, const PrefixSalt& salt,
                                   std::span<const TokenId> ids) {
  std::vector<PrefixKey> keys;
  keys.reserve(ids.size() / kKvBlockTokens);
  PrefixKey parent;
  for (; ids.size() >= kKvBlockTokens; ids = ids.subspan(kKvBlockTokens)) {
    Sha256Stream hash;
    hash.update("meshnet/1 prefix").update(parent.view()).update(identity.view()).update(salt.view());
    std::string rest;
    ByteWriter writer(rest);
    for (const TokenId id : ids.first(kKvBlockTokens)) writer.put(id);
    rest.append(1 + Sha256::kSize, '\0');  // no rotary axes, no spliced rows
    parent.bytes = hash.update(rest).finish().bytes;
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace mesh::wire
