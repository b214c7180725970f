#pragma once

#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/kv_blocks.h"

namespace mesh::wire {

/// Stands for one full block of a prompt and all tokens before it, for one model and one principal.
using PrefixKey = OpaqueId<struct PrefixKeyTag, 32>;
/// The head's secret for one principal: without it nobody can name or guess a key.
using PrefixSalt = OpaqueId<struct PrefixSaltTag, 32>;

/// Keys of the full KV blocks of `ids`, in order (proto-docs/session.md, Prefix cache).
std::vector<PrefixKey> prefix_keys(const ModelIdentity& identity, const PrefixSalt& salt,
                                   std::span<const TokenId> ids);

}  // namespace mesh::wire
