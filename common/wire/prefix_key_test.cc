#include "common/wire/prefix_key.h"

#include <gtest/gtest.h>

#include "common/json/view.h"
#include "common/wire/vectors_for_test.h"

namespace mesh::wire {
namespace {

struct Vector {
  ModelIdentity identity;
  std::vector<TokenId> ids;
  std::map<std::string, std::vector<PrefixKey>> by_salt;
};

Vector golden() {
  const json::Value value = *json::parse(read_vector("prefix_keys.json"));
  const json::View view(value);
  Vector vector{*view.get<ModelIdentity>("identity"), *view.get_list<TokenId>("ids"), {}};
  const json::Object salts = *view.get<json::Object>("salts");
  for (const auto& entry : salts) {
    vector.by_salt[std::string(entry.key())] = *view.field("salts")->get_list<PrefixKey>(entry.key());
  }
  return vector;
}

TEST(PrefixKeys, AreThoseOfTheGoldenVectors) {
  const Vector vector = golden();
  EXPECT_EQ(vector.by_salt.size(), 2u);
  for (const auto& [salt, keys] : vector.by_salt) {
    EXPECT_EQ(prefix_keys(vector.identity, *PrefixSalt::parse(salt), vector.ids), keys) << salt;
  }
}

TEST(PrefixKeys, DifferWithWhateverComesBeforeTheEndOfTheBlock) {
  const Vector vector = golden();
  const PrefixSalt salt;
  const auto keys = prefix_keys(vector.identity, salt, vector.ids);
  ASSERT_EQ(keys.size(), 3u);
  for (const std::size_t place : {0u, 127u, 128u, 255u, 383u}) {
    std::vector<TokenId> other = vector.ids;
    other[place] ^= 1;
    const auto changed = prefix_keys(vector.identity, salt, other);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(changed[i] != keys[i], i >= place / 128) << "id " << place << ", key " << i;
    }
  }
  ModelIdentity model = vector.identity;
  model.bytes[31] ^= 1;
  PrefixSalt other_salt;
  other_salt.bytes[31] = 1;
  EXPECT_NE(prefix_keys(model, salt, vector.ids)[0], keys[0]);
  EXPECT_NE(prefix_keys(vector.identity, other_salt, vector.ids)[0], keys[0]);
}

TEST(PrefixKeys, OnlyFullBlocksHaveOne) {
  EXPECT_TRUE(prefix_keys({}, {}, std::vector<TokenId>(127, 5)).empty());
  EXPECT_EQ(prefix_keys({}, {}, std::vector<TokenId>(256, 5)).size(), 2u);
}

}  // namespace
}  // namespace mesh::wire
