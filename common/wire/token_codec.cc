#include "common/wire/token_codec.h"

#include <cmath>

#include "common/base/check.h"
#include "common/wire/bytes.h"

namespace mesh::wire {
namespace {

constexpr std::string_view kTokensMagic = "MSHT";
constexpr std::string_view kSegmentAnswersMagic = "MSHA";
constexpr std::string_view kTokenAnswersMagic = "MSHB";
constexpr std::string_view kMacDomain = "meshnet/1 token";
constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kTokenBytes = 56;
constexpr std::size_t kSegmentAnswerBytes = 56;
constexpr std::size_t kTokenAnswerBytes = 24;

std::string begin_list(std::string_view magic, std::size_t count) {
  std::string out;
  ByteWriter writer(out);
  writer.put_bytes(magic);
  writer.put(kWireVersion);
  writer.put(static_cast<std::uint16_t>(count));
  return out;
}

/// The records of a list of fixed-size records, all of them there and nothing behind them.
StatusOr<std::vector<std::string_view>> records(std::string_view body, std::string_view magic,
                                                std::size_t record_bytes, std::size_t most) {
  ByteReader in(body);
  if (in.take_bytes(4) != magic)
    return error(StatusCode::kInvalidArgument, "expected a list that begins with {}", magic);
  const auto version = in.take<std::uint16_t>();
  const std::size_t count = in.take<std::uint16_t>();
  if (!in.ok()) return error(StatusCode::kInvalidArgument, "{}: shorter than its header", magic);
  if (version != kWireVersion) {
    return error(StatusCode::kInvalidArgument, "{}: version {}, this program speaks {}", magic, version,
                 kWireVersion);
  }
  if (count == 0 || count > most) {
    return error(StatusCode::kInvalidArgument, "{}: {} entries, expected 1 to {}", magic, count, most);
  }
  if (in.left() != count * record_bytes) {
    return error(StatusCode::kInvalidArgument, "{}: {} bytes for {} entries of {}", magic, in.left(), count,
                 record_bytes);
  }
  std::vector<std::string_view> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(body.substr(kHeaderBytes + i * record_bytes, record_bytes));
  return result;
}

bool take_zeros(ByteReader& in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (in.take<std::uint8_t>() != 0) return false;
  }
  return true;
}

template <class Code>
StatusOr<Code> code_of(std::uint8_t value, Code last) {
  if (value > static_cast<std::uint8_t>(last))
    return error(StatusCode::kInvalidArgument, "unknown answer code {}", value);
  return static_cast<Code>(value);
}

}  // namespace

std::string encode_tokens(std::span<const SignedToken> tokens) {
  MESH_CHECK(!tokens.empty() && tokens.size() <= kMaxTokensPerMessage);
  std::string body = begin_list(kTokensMagic, tokens.size());
  ByteWriter out(body);
  for (const SignedToken& token : tokens) {
    const std::size_t at = body.size();
    out.put_bytes(token.message.session.view());
    out.put(token.message.generation.value);
    out.put(token.message.position);
    out.put(token.message.token);
    out.put_float(token.message.logprob <= 0 ? token.message.logprob : 0.0f);  // rounding may leave it above
    out.put(std::uint32_t{0});
    const Mac mac = compute_mac(token.secret, {kMacDomain, std::string_view(body).substr(at)});
    out.put_bytes(mac.view());
  }
  return body;
}

StatusOr<std::vector<ReceivedToken>> parse_tokens(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const auto list, records(body, kTokensMagic, kTokenBytes, kMaxTokensPerMessage));
  std::vector<ReceivedToken> tokens;
  tokens.reserve(list.size());
  for (const std::string_view record : list) {
    ReceivedToken received;
    ByteReader in(record);
    received.message.session = in.take_id<SessionId>();
    received.message.generation.value = in.take<std::uint64_t>();
    received.message.position = in.take<std::uint32_t>();
    received.message.token = in.take<std::int32_t>();
    received.message.logprob = in.take_float();
    const bool zeros = take_zeros(in, 4);
    received.mac = in.take_id<Mac>();
    if (!zeros) return error(StatusCode::kInvalidArgument, "token: reserved bytes are not zero");
    if (received.message.token < 0) return error(StatusCode::kInvalidArgument, "token: negative id");
    if (!(received.message.logprob <= 0))
      return error(StatusCode::kInvalidArgument, "token: logprob must be ≤ 0");
    received.covered = record.substr(0, kTokenBytes - Mac::kSize);
    tokens.push_back(received);
  }
  return tokens;
}

bool mac_fits(const ReceivedToken& received, const SessionSecret& secret) {
  return verify_mac(secret, {kMacDomain, received.covered}, received.mac);
}

std::string encode_segment_answers(std::span<const SegmentAnswer> answers) {
  MESH_CHECK(!answers.empty() && answers.size() <= kMaxSegmentsPerFrame);
  std::string body = begin_list(kSegmentAnswersMagic, answers.size());
  ByteWriter out(body);
  for (const SegmentAnswer& answer : answers) {
    out.put_bytes(answer.hop.session.view());
    out.put(answer.hop.begin);
    out.put(static_cast<std::uint32_t>(answer.code));
    out.put(answer.seq.value);
    out.put(answer.cursor.generation.value);
    out.put(answer.cursor.applied.value);
    out.put(answer.cursor.next);
    out.put(std::uint32_t{0});
  }
  return body;
}

StatusOr<std::vector<SegmentAnswer>> parse_segment_answers(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const auto list,
                        records(body, kSegmentAnswersMagic, kSegmentAnswerBytes, kMaxSegmentsPerFrame));
  std::vector<SegmentAnswer> answers;
  answers.reserve(list.size());
  for (const std::string_view record : list) {
    SegmentAnswer answer;
    ByteReader in(record);
    answer.hop.session = in.take_id<SessionId>();
    answer.hop.begin = in.take<std::uint32_t>();
    MESH_ASSIGN_OR_RETURN(answer.code, code_of(in.take<std::uint8_t>(), AnswerCode::kDeadline));
    bool zeros = take_zeros(in, 3);
    answer.seq.value = in.take<std::uint64_t>();
    answer.cursor.generation.value = in.take<std::uint64_t>();
    answer.cursor.applied.value = in.take<std::uint64_t>();
    answer.cursor.next = in.take<std::uint32_t>();
    zeros = take_zeros(in, 4) && zeros;
    if (!zeros) return error(StatusCode::kInvalidArgument, "answer: reserved bytes are not zero");
    answers.push_back(answer);
  }
  return answers;
}

std::string encode_token_answers(std::span<const TokenAnswer> answers) {
  MESH_CHECK(!answers.empty() && answers.size() <= kMaxTokensPerMessage);
  std::string body = begin_list(kTokenAnswersMagic, answers.size());
  ByteWriter out(body);
  for (const TokenAnswer& answer : answers) {
    out.put_bytes(answer.session.view());
    out.put(answer.position);
    out.put(static_cast<std::uint32_t>(answer.code));
  }
  return body;
}

StatusOr<std::vector<TokenAnswer>> parse_token_answers(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const auto list,
                        records(body, kTokenAnswersMagic, kTokenAnswerBytes, kMaxTokensPerMessage));
  std::vector<TokenAnswer> answers;
  answers.reserve(list.size());
  for (const std::string_view record : list) {
    TokenAnswer answer;
    ByteReader in(record);
    answer.session = in.take_id<SessionId>();
    answer.position = in.take<std::uint32_t>();
    MESH_ASSIGN_OR_RETURN(answer.code, code_of(in.take<std::uint8_t>(), TokenCode::kBadMac));
    if (!take_zeros(in, 3)) return error(StatusCode::kInvalidArgument, "answer: reserved bytes are not zero");
    answers.push_back(answer);
  }
  return answers;
}

}  // namespace mesh::wire
