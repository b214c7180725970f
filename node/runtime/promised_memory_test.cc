#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "common/hub/open_model.h"
#include "common/identity/random.h"
#include "node/runtime/forward.h"
#include "node/runtime/test_mesh.h"

// One ledger for loads, openings and forwards: nobody is promised bytes that another was.
namespace mesh {
namespace {

constexpr LayerRange kAll{0, FakeEngine::kLayers};
/// A cache of 128 positions of six layers, 64 bytes each.
constexpr std::uint64_t kCache = std::uint64_t{128} * 6 * 64;

std::shared_ptr<hub::Checkpoint> any_checkpoint() {
  auto files = hub::open_folder(MESH_SOURCE_DIR "/tests/golden/checkpoints/tiny-llama");
  return *hub::Checkpoint::open(*std::move(files));
}

class PromisedMemory : public testing::Test {
 protected:
  wire::OpenRequest opening() const {
    wire::OpenRequest open;
    open.session = session_;
    open.generation = {1};
    open.identity = identity_;
    open.range = kAll;
    open.takes_ids = true;
    open.max_tokens = 128;
    open.tail = wire::TailSetup{};
    open.head_url = "http://127.0.0.1:1";
    return open;
  }
  ForwardRequest forward() const {
    ForwardRequest request;
    request.identity = identity_;
    request.range = kAll;
    request.ids = {5};
    request.rows = 1;
    return request;
  }
  Status load() {
    return mesh_.node().load_shard(any_checkpoint(), random_id<ModelIdentity>(), {kAll, true, true}, {});
  }

  const SessionId session_ = random_id<SessionId>();
  const ModelIdentity identity_ = random_id<ModelIdentity>();
  TestNode mesh_{identity_, kAll};
};

TEST_F(PromisedMemory, NoLoadTakesWhatASessionWaitsToBeginWith) {
  mesh_.engine().set_budget(FakeEngine::kShardBytes + 2 * kCache + FakeEngine::kShardBytes - 1);
  mesh_.engine().set_gate(false);
  auto running = std::async(std::launch::async, [&] { return mesh_.node().forward(forward()); });
  while (mesh_.engine().open_caches() == 0) std::this_thread::yield();
  ASSERT_TRUE(mesh_.node().open(opening()).opened());  // its cache waits for the forward
  EXPECT_EQ(load().code(), StatusCode::kResourceExhausted);
  mesh_.node().close({session_, {1}});
  EXPECT_TRUE(load().ok()) << "nothing is promised to it any more";
  mesh_.engine().set_gate(true);
  EXPECT_TRUE(running.get().ok());
}

TEST_F(PromisedMemory, AnOpeningWhoseMemoryWasTakenMeanwhileIsRefusedAndForgotten) {
  mesh_.engine().refuse_promises(true);
  const wire::OpenReply refused = mesh_.node().open(opening());
  EXPECT_EQ(refused.code, wire::OpenCode::kNoRoom);
  EXPECT_FALSE(mesh_.node().keys(opening().key()));
  EXPECT_EQ(mesh_.node().figures().hop.sessions, 0u);
  mesh_.engine().refuse_promises(false);
  EXPECT_TRUE(mesh_.node().open(opening()).opened());
}

TEST_F(PromisedMemory, NoForwardTakesWhatASessionWaitsToBeginWith) {
  FakeEngine engine;
  engine.set_budget(kCache + 1000);
  const auto shard = FakeEngine::make_shard(identity_, {kAll, true, true});
  ForwardSessions forwards(engine);
  auto promise = engine.promise_caches();
  ASSERT_TRUE(promise->resize(1001).ok());
  EXPECT_EQ(forwards.run(shard, forward(), {}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(forwards.bytes() + engine.open_caches(), 0u);
  ASSERT_TRUE(promise->resize(1000).ok());
  EXPECT_TRUE(forwards.run(shard, forward(), {}).ok());
  EXPECT_TRUE(promise->resize(1000 + kCache).ok()) << "the forward has given its promise back";
}

}  // namespace
}  // namespace mesh
