#include "common/wire/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json/json.h"

namespace mesh::wire {
namespace {

using testing::HasSubstr;

ModelIdentity model_with(std::uint8_t fill) {
  ModelIdentity model;
  model.bytes.fill(fill);
  return model;
}

std::string hex_of(std::string_view digit_pair, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += digit_pair;
  return text;
}

Join full_join() {
  return {.stamp = {3, 4},
          .program_version = "0.1.0",
          .wire_versions = {1, 2},
          .features = {"relay"},
          .address = "10.0.0.2:8090",
          .memory_bytes = 1ull << 40,
          .threads = 8,
          .device = "cpu",
          .model_types = {"gpt2", "llama"},
          .quantizations = {"bfloat16"},
          .compute_types = {"float32"},
          .shards = {{model_with(0xab), {2, 5}, ShardState::kReady, 10, 10}},
          .read_bytes_per_second = 4e10,
          .highest_epoch = {17}};
}

Heartbeat full_heartbeat() {
  Heartbeat beat;
  beat.stamp = {1, 2};
  beat.lease = 3;
  beat.last_reply = 4;
  beat.highest_epoch = {5};
  beat.draining = true;
  beat.shards = {{model_with(1), {0, 3}, ShardState::kLoading, 5, 50, {0, 2}}};
  beat.directives = {{*DirectiveId::parse(hex_of("0f", 16)), DirectiveState::kFailed, "no memory"}};
  beat.load = {1, 2, 3, 4, 5};
  beat.stage_times = {{model_with(1), {0, 3}, 0.25, 0.5}};
  beat.links = {{"10.0.0.3:8090", 0.125, 1e6, 0.75}};
  return beat;
}

TEST(Control, ReadsADirectiveAsThePageSpellsIt) {
  const std::string text =
      R"({"id":")" + hex_of("01", 16) + R"(","node":")" + hex_of("02", 32) +
      R"(","epoch":9,"kind":"DROP_SHARD","model":")" + hex_of("03", 32) +
      R"(","layers":[4,8],"quantization":"bfloat16","expires_in_ms":60000,"later":true})";
  const auto directive = parse_directive(text);
  ASSERT_TRUE(directive.ok()) << directive.status();
  EXPECT_EQ(directive->id.hex(), hex_of("01", 16));
  EXPECT_EQ(directive->node.hex(), hex_of("02", 32));
  EXPECT_EQ(directive->epoch, Epoch{9});
  EXPECT_EQ(directive->kind, DirectiveKind::kDropShard);
  EXPECT_EQ(directive->model, model_with(3));
  EXPECT_EQ(directive->layers, (LayerRange{4, 8}));
  EXPECT_EQ(directive->quantization, "bfloat16");
  EXPECT_EQ(directive->expires_in_ms, 60000u);
}

TEST(Control, EveryFieldSurvivesTheWire) {
  const Join join = full_join();
  EXPECT_EQ(*parse_join(to_json(join)), join);
  const Heartbeat beat = full_heartbeat();
  EXPECT_EQ(*parse_heartbeat(to_json(beat)), beat);

  const CatalogueEntry entry{model_with(7), "smollm2", "llama", "bfloat16", "float32", 30, 576};
  const JoinReply reply{.answers = {1, 2},
                        .node = {},
                        .lease = 3,
                        .reply = 4,
                        .wire_version = 1,
                        .program_version = "0.1.0",
                        .heartbeat_ms = 2000,
                        .lease_ms = 6000,
                        .epoch = {8},
                        .catalogue = {entry}};
  EXPECT_EQ(*parse_join_reply(to_json(reply)), reply);

  HeartbeatReply answer{.answers = {1, 2},
                        .lease = 3,
                        .reply = 5,
                        .epoch = {8},
                        .directives = {{R"({"id":"…"})", std::string(64, '\xfe')}},
                        .catalogue = std::nullopt};
  EXPECT_EQ(*parse_heartbeat_reply(to_json(answer)), answer);
  answer.catalogue = {entry};
  EXPECT_EQ(*parse_heartbeat_reply(to_json(answer)), answer);

  const Leave leave{{5, 6}, 7};
  EXPECT_EQ(*parse_leave(to_json(leave)), leave);
  const ControlError refusal{"upgrade", "too old", "0.2.0"};
  EXPECT_EQ(*parse_control_error(to_json(refusal)), refusal);
}

TEST(Control, ErrorsNameTheFieldAndWhatIsWrong) {
  std::string text = to_json(full_join());
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string copy = text;
    copy.replace(copy.find(from), from.size(), to);
    return parse_join(copy).status().ToString();
  };
  EXPECT_THAT(replaced("[2,5]", "[5,2]"), HasSubstr("shards[0].layers"));
  EXPECT_THAT(replaced("\"ready\"", "\"done\""), HasSubstr("expected one of loading, ready, draining"));
  EXPECT_THAT(replaced("\"threads\":8", "\"threads\":-8"), HasSubstr("threads"));
  EXPECT_THAT(replaced("\"address\"", "\"adress\""), HasSubstr("address"));
  EXPECT_FALSE(parse_join("").ok());
  EXPECT_FALSE(parse_join("[]").ok());
}

TEST(Control, OfALoadingShardItsFirstLayersMayBeInUse) {
  const ModelIdentity model = model_with(1);
  EXPECT_EQ(layers_in_use({model, {2, 6}, ShardState::kReady, 8, 8}), (LayerRange{2, 6}));
  EXPECT_EQ(layers_in_use({model, {2, 6}, ShardState::kLoading, 4, 8, {2, 4}}), (LayerRange{2, 4}));
  for (const LayerRange& wrong : {LayerRange{0, 0}, LayerRange{3, 4}, LayerRange{2, 7}, LayerRange{2, 2}}) {
    EXPECT_TRUE(layers_in_use({model, {2, 6}, ShardState::kLoading, 4, 8, wrong}).empty())
        << to_string(wrong);
  }
  EXPECT_TRUE(layers_in_use({model, {2, 6}, ShardState::kDraining, 8, 8}).empty());
  // A node that says nothing of it.
  std::string text = to_json(full_heartbeat());
  const std::string field = R"(,"ready":[0,2])";
  text.erase(text.find(field), field.size());
  EXPECT_TRUE(parse_heartbeat(text)->shards[0].ready.empty());
}

TEST(Control, ListsThatOneNodeCannotHaveAreRefused) {
  Join join = full_join();
  join.shards.assign(256, join.shards.front());
  EXPECT_TRUE(parse_join(to_json(join)).ok());
  join.shards.push_back(join.shards.front());
  EXPECT_THAT(std::string(message_of(parse_join(to_json(join)).status())), HasSubstr("shards: 257"));
  join = full_join();
  join.device = std::string(5000, 'x');
  EXPECT_THAT(std::string(message_of(parse_join(to_json(join)).status())), HasSubstr("device: 5000"));
  Heartbeat beat = full_heartbeat();
  beat.shards.assign(257, beat.shards.front());
  EXPECT_THAT(std::string(message_of(parse_heartbeat(to_json(beat)).status())), HasSubstr("shards: 257"));
  beat = full_heartbeat();
  beat.links.assign(1025, beat.links.front());
  EXPECT_THAT(std::string(message_of(parse_heartbeat(to_json(beat)).status())), HasSubstr("links: 1025"));
}

TEST(Control, NegativeMeasuresAreRefused) {
  Heartbeat beat = full_heartbeat();
  beat.links[0].bytes_per_second = -1;
  EXPECT_THAT(parse_heartbeat(to_json(beat)).status().ToString(), HasSubstr("links[0].bytes_per_second"));
}

TEST(Control, ASignatureOfTheWrongLengthIsRefused) {
  HeartbeatReply reply;
  reply.directives = {{"{}", "short"}};
  EXPECT_THAT(parse_heartbeat_reply(to_json(reply)).status().ToString(),
              HasSubstr("directives[0].signature"));
}

}  // namespace
}  // namespace mesh::wire
