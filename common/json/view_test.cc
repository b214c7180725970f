#include "common/json/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json/error_fields.h"

namespace mesh::json {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ViewTest : public ::testing::Test {
 protected:
  View document(std::string_view text) {
    auto parsed = parse(text);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    value_ = *std::move(parsed);
    return View(value_);
  }

  template <class T>
  static std::string message(const StatusOr<T>& result) {
    EXPECT_FALSE(result.ok());
    return std::string(message_of(result.status()));
  }

 private:
  Value value_;
};

TEST_F(ViewTest, ErrorsNameTheFieldFromTheRoot) {
  const View root = document(R"({"messages":[{"content":"a"},{},{"content":3}],"n":null})");
  const auto messages = root.field("messages")->elements();
  ASSERT_TRUE(messages.ok());
  const auto content = (*messages)[2].get<std::string>("content");
  EXPECT_EQ(message(content), "messages[2].content: expected a string, got a number");
  EXPECT_EQ(param_of(content.status()), "messages[2].content");
  EXPECT_EQ(message((*messages)[1].get<std::string>("content")), "messages[1].content: missing");
  EXPECT_EQ(message(root.get<std::string>("n")), "n: expected a string, got null");
  EXPECT_EQ(message(root.as<bool>()), "the document: expected a boolean, got an object");
  EXPECT_EQ(message(root.field("messages")->field("x")), "messages: expected an object, got an array");
}

TEST_F(ViewTest, IntegersAreCheckedAgainstTheirType) {
  const View root = document(
      R"({"big":4294967296,"max":18446744073709551615,"minus":-1,"whole":3.0,"half":0.5,"huge":1e300,"b":256})");
  EXPECT_EQ(message(root.get<std::uint32_t>("big")), "big: should be from 0 to 4294967295");
  EXPECT_EQ(*root.get<std::uint64_t>("big"), 4294967296u);
  EXPECT_EQ(*root.get<std::uint64_t>("max"), 18446744073709551615u);
  EXPECT_EQ(message(root.get<std::int64_t>("max")),
            "max: should be from -9223372036854775808 to 9223372036854775807");
  EXPECT_EQ(message(root.get<std::uint64_t>("minus")), "minus: should be from 0 to 18446744073709551615");
  EXPECT_EQ(*root.get<std::int32_t>("minus"), -1);
  EXPECT_EQ(*root.get<int>("whole"), 3);
  EXPECT_EQ(message(root.get<int>("half")), "half: expected an integer, got a fraction");
  EXPECT_FALSE(root.get<std::int64_t>("huge").ok());
  EXPECT_FALSE(root.get<std::uint64_t>("huge").ok());
  EXPECT_FALSE(root.get<std::uint8_t>("b").ok());
  EXPECT_FALSE(root.get<float>("huge").ok());
  EXPECT_EQ(*root.get<double>("minus"), -1.0);
}

TEST_F(ViewTest, NullAndAbsentFieldsTakeTheFallback) {
  const View root = document(R"({"a":null,"b":7})");
  EXPECT_EQ(*root.get_or<int>("a", 1), 1);
  EXPECT_EQ(*root.get_or<int>("c", 2), 2);
  EXPECT_EQ(*root.get_or<int>("b", 3), 7);
  EXPECT_FALSE(root.get_or<bool>("b", true).ok());
  EXPECT_EQ(*root.get_optional<int>("a"), std::nullopt);
  EXPECT_EQ(*root.get_optional<int>("b"), 7);
}

TEST_F(ViewTest, ReadsListsIdsAndOrdinals) {
  const View root =
      document(R"({"ids":[1,2],"bad":[1,"2"],"session":"000102030405060708090a0b0c0d0e0f","short":"00",
                                 "epoch":9})");
  EXPECT_THAT(*root.get_list<TokenId>("ids"), ElementsAre(1, 2));
  EXPECT_EQ(message(root.get_list<TokenId>("bad")), "bad[1]: expected an integer, got a string");
  EXPECT_EQ(root.get<SessionId>("session")->hex(), "000102030405060708090a0b0c0d0e0f");
  EXPECT_EQ(message(root.get<SessionId>("short")), "short: expected 32 hex digits");
  EXPECT_EQ(root.get<Epoch>("epoch")->value, 9u);
}

TEST_F(ViewTest, ListsFieldsThatNobodyKnows) {
  const View root = document(R"({"options":{"seed":1,"sede":2,"stop":[]}})");
  const auto options = root.field("options");
  EXPECT_THAT(options->unknown_fields({"seed", "stop"}), ElementsAre("options.sede"));
  EXPECT_THAT(options->unknown_fields({"seed", "sede", "stop"}), IsEmpty());
  const Status status = options->only_fields({"seed", "stop"});
  EXPECT_EQ(message_of(status), "options.sede: unknown field");
  EXPECT_EQ(param_of(status), "options.sede");
}

TEST(ErrorFields, TravelWithTheStatusAndOnlyWithErrors) {
  const Status status =
      with_code(with_param(error(StatusCode::kInvalidArgument, "x"), "messages"), "context_length_exceeded");
  EXPECT_EQ(param_of(status), "messages");
  EXPECT_EQ(code_of(status), "context_length_exceeded");
  EXPECT_EQ(param_of(error(StatusCode::kInternal, "y")), std::nullopt);
  EXPECT_EQ(param_of(with_param(absl::OkStatus(), "p")), std::nullopt);
}

}  // namespace
}  // namespace mesh::json
