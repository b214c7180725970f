#include "common/wire/session_json.h"

#include <array>
#include <cmath>
#include <utility>

#include "common/json/view.h"

namespace mesh::wire {
namespace {

using json::Array;
using json::Object;
using json::View;

/// Names of an enum's values, in their order.
template <class Code, std::size_t N>
struct Names {
  std::array<std::string_view, N> names;

  std::string_view operator()(Code code) const { return names[static_cast<std::size_t>(code)]; }
  StatusOr<Code> read(const View& view) const {
    MESH_ASSIGN_OR_RETURN(const std::string name, view.as<std::string>());
    for (std::size_t i = 0; i < N; ++i) {
      if (names[i] == name) return static_cast<Code>(i);
    }
    return view.error("unknown code \"" + name + "\"");
  }
};

constexpr Names<OpenCode, 7> kOpenCodes{
    {"opened", "stale_generation", "closed", "shard_not_held", "no_room", "draining", "bad_request"}};
constexpr Names<ReportCode, 6> kReportCodes{{"next_hop_unreachable", "next_hop_refuses", "step_failed",
                                             "outputs_dropped", "deadline", "cache_dropped"}};

/// Ids so far may be a whole context.
constexpr json::Limits kOpenLimits{
    .max_bytes = std::size_t{64} << 20, .max_depth = 8, .max_values = 1u << 24};

constexpr std::size_t kMaxUrl = 512;
constexpr std::size_t kMaxMessage = 4096;
constexpr std::size_t kMaxSealed = 1024;

Object write_range(const LayerRange& range) {
  return {{"begin", range.begin}, {"end", range.end}};
}

StatusOr<LayerRange> read_range(const View& view) {
  MESH_RETURN_IF_ERROR(view.only_fields({"begin", "end"}));
  LayerRange range;
  MESH_ASSIGN_OR_RETURN(range.begin, view.get<std::uint32_t>("begin"));
  MESH_ASSIGN_OR_RETURN(range.end, view.get<std::uint32_t>("end"));
  if (range.begin > range.end) return view.error("ends before it begins");
  return range;
}

StatusOr<std::string> read_text(const View& view, std::string_view key, std::size_t most) {
  MESH_ASSIGN_OR_RETURN(const View field, view.field(key));
  MESH_ASSIGN_OR_RETURN(std::string text, field.as<std::string>());
  if (text.size() > most) return field.error(fmt::format("longer than {} bytes", most));
  return text;
}

Object write_cursor(const Cursor& cursor) {
  return {{"generation", cursor.generation.value}, {"applied", cursor.applied.value}, {"next", cursor.next}};
}

StatusOr<Cursor> read_cursor(const View& view) {
  MESH_RETURN_IF_ERROR(view.only_fields({"generation", "applied", "next"}));
  Cursor cursor;
  MESH_ASSIGN_OR_RETURN(cursor.generation, view.get<Generation>("generation"));
  MESH_ASSIGN_OR_RETURN(cursor.applied, view.get<Seq>("applied"));
  MESH_ASSIGN_OR_RETURN(cursor.next, view.get<Position>("next"));
  return cursor;
}

Object write_sampling(const Sampling& s) {
  // Floats as the doubles of equal value: the reader gets the same bits back.
  return {{"temperature", static_cast<double>(s.temperature)},
          {"top_p", static_cast<double>(s.top_p)},
          {"top_k", s.top_k},
          {"seed", s.seed},
          {"choice", s.choice}};
}

StatusOr<Sampling> read_sampling(const View& view) {
  MESH_RETURN_IF_ERROR(view.only_fields({"temperature", "top_p", "top_k", "seed", "choice"}));
  Sampling s;
  MESH_ASSIGN_OR_RETURN(s.temperature, view.get<float>("temperature"));
  MESH_ASSIGN_OR_RETURN(s.top_p, view.get<float>("top_p"));
  MESH_ASSIGN_OR_RETURN(s.top_k, view.get<std::uint32_t>("top_k"));
  MESH_ASSIGN_OR_RETURN(s.seed, view.get<std::uint64_t>("seed"));
  MESH_ASSIGN_OR_RETURN(s.choice, view.get<std::uint32_t>("choice"));
  if (!(s.temperature >= 0) || !std::isfinite(s.temperature)) return view.error("temperature must be ≥ 0");
  if (!(s.top_p > 0 && s.top_p <= 1)) return view.error("top_p must lie in (0, 1]");
  return s;
}

StatusOr<TailSetup> read_tail(const View& view) {
  MESH_RETURN_IF_ERROR(view.only_fields({"sampling", "ids"}));
  TailSetup tail;
  MESH_ASSIGN_OR_RETURN(const View sampling, view.field("sampling"));
  MESH_ASSIGN_OR_RETURN(tail.sampling, read_sampling(sampling));
  MESH_ASSIGN_OR_RETURN(tail.ids, view.get_list<TokenId>("ids"));
  for (const TokenId id : tail.ids) {
    if (id < 0) return view.error("ids: negative token id");
  }
  return tail;
}

StatusOr<HopAddress> read_address(const View& view) {
  MESH_RETURN_IF_ERROR(view.only_fields({"node", "url", "range"}));
  HopAddress address;
  MESH_ASSIGN_OR_RETURN(address.node, view.get<NodeId>("node"));
  MESH_ASSIGN_OR_RETURN(address.url, read_text(view, "url", kMaxUrl));
  MESH_ASSIGN_OR_RETURN(const View range, view.field("range"));
  MESH_ASSIGN_OR_RETURN(address.range, read_range(range));
  return address;
}

StatusOr<HopKey> read_hop(const View& view) {
  HopKey hop;
  MESH_ASSIGN_OR_RETURN(hop.session, view.get<SessionId>("session"));
  MESH_ASSIGN_OR_RETURN(hop.begin, view.get<std::uint32_t>("begin"));
  return hop;
}

StatusOr<std::vector<View>> read_items(const View& view, std::string_view key) {
  MESH_ASSIGN_OR_RETURN(const View field, view.field(key));
  MESH_ASSIGN_OR_RETURN(std::vector<View> items, field.elements());
  if (items.size() > kMaxSessionsPerMessage) {
    return field.error(fmt::format("more than {} entries", kMaxSessionsPerMessage));
  }
  return items;
}

template <class Id>
Array hex_list(const std::vector<Id>& ids) {
  Array list;
  for (const Id& id : ids) list.emplace_back(id.hex());
  return list;
}

StatusOr<std::vector<SessionId>> read_ids(const View& view, std::string_view key) {
  MESH_ASSIGN_OR_RETURN(const std::vector<View> items, read_items(view, key));
  std::vector<SessionId> ids;
  for (const View& item : items) {
    MESH_ASSIGN_OR_RETURN(const SessionId id, item.as<SessionId>());
    ids.push_back(id);
  }
  return ids;
}

std::string text_of(Object object) {
  return json::serialize(json::Value(std::move(object)));
}

Object write_fresh(const Freshness& fresh) {
  return {{"node", fresh.node.hex()}, {"start", fresh.stamp.start}, {"number", fresh.stamp.number}};
}

StatusOr<Freshness> read_fresh(const View& view) {
  MESH_ASSIGN_OR_RETURN(const View field, view.field("fresh"));
  MESH_RETURN_IF_ERROR(field.only_fields({"node", "start", "number"}));
  Freshness fresh;
  MESH_ASSIGN_OR_RETURN(fresh.node, field.get<NodeId>("node"));
  MESH_ASSIGN_OR_RETURN(fresh.stamp.start, field.get<std::uint64_t>("start"));
  MESH_ASSIGN_OR_RETURN(fresh.stamp.number, field.get<std::uint64_t>("number"));
  return fresh;
}

Status check(const View& view, const OpenRequest& r) {
  if (r.generation.value == 0) return view.error("generation begins with 1");
  if (r.max_tokens == 0 || r.max_tokens > kMaxSessionTokens) {
    return view.error(fmt::format("max_tokens must be 1 to {}", kMaxSessionTokens));
  }
  if (r.lease_ms == 0) return view.error("lease_ms must be above 0");
  if (r.range.empty() && !r.takes_ids) return view.error("range: empty");
  if (r.next.has_value() == r.tail.has_value()) return view.error("exactly one of next and tail is expected");
  if (r.emit_from && *r.emit_from > r.max_tokens) return view.error("emit_from lies beyond max_tokens");
  if (r.tail && r.tail->ids.size() > r.max_tokens) return view.error("tail.ids: more than max_tokens");
  if (r.emit_from && !r.prefix.empty()) return view.error("prefix: not in an opening with emit_from");
  if (r.prefix.size() > r.max_tokens / kKvBlockTokens) {
    return view.error(fmt::format("prefix: more keys than max_tokens has blocks of {}", kKvBlockTokens));
  }
  return absl::OkStatus();
}

}  // namespace

std::string write_open(const OpenRequest& r, std::string_view sealed_secret, const Freshness& fresh) {
  Object o{{"session", r.session.hex()},      {"generation", r.generation.value},
           {"identity", r.identity.hex()},    {"range", write_range(r.range)},
           {"takes_ids", r.takes_ids},        {"max_tokens", r.max_tokens},
           {"lease_ms", r.lease_ms},          {"head_url", r.head_url},
           {"secret", to_hex(sealed_secret)}, {"fresh", write_fresh(fresh)}};
  if (r.next) {
    o["next"] =
        Object{{"node", r.next->node.hex()}, {"url", r.next->url}, {"range", write_range(r.next->range)}};
  }
  if (r.tail) {
    o["tail"] = Object{{"sampling", write_sampling(r.tail->sampling)},
                       {"ids", Array(r.tail->ids.begin(), r.tail->ids.end())}};
  }
  if (r.emit_from) o["emit_from"] = *r.emit_from;
  if (!r.prefix.empty()) o["prefix"] = hex_list(r.prefix);
  return text_of(std::move(o));
}

StatusOr<OpenMessage> read_open(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body, kOpenLimits));
  const View view(value);
  MESH_RETURN_IF_ERROR(
      view.only_fields({"session", "generation", "identity", "range", "takes_ids", "max_tokens", "lease_ms",
                        "head_url", "secret", "fresh", "next", "tail", "emit_from", "prefix"}));
  OpenMessage message;
  OpenRequest& r = message.request;
  MESH_ASSIGN_OR_RETURN(r.session, view.get<SessionId>("session"));
  MESH_ASSIGN_OR_RETURN(r.generation, view.get<Generation>("generation"));
  MESH_ASSIGN_OR_RETURN(r.identity, view.get<ModelIdentity>("identity"));
  MESH_ASSIGN_OR_RETURN(const View range, view.field("range"));
  MESH_ASSIGN_OR_RETURN(r.range, read_range(range));
  MESH_ASSIGN_OR_RETURN(r.takes_ids, view.get<bool>("takes_ids"));
  MESH_ASSIGN_OR_RETURN(r.max_tokens, view.get<std::uint32_t>("max_tokens"));
  MESH_ASSIGN_OR_RETURN(r.lease_ms, view.get<std::uint32_t>("lease_ms"));
  MESH_ASSIGN_OR_RETURN(r.head_url, read_text(view, "head_url", kMaxUrl));
  MESH_ASSIGN_OR_RETURN(const std::string sealed, read_text(view, "secret", 2 * kMaxSealed));
  const auto secret = from_hex(sealed);
  if (!secret) return view.error("secret: expected hex");
  message.sealed_secret = *secret;
  MESH_ASSIGN_OR_RETURN(message.fresh, read_fresh(view));
  MESH_ASSIGN_OR_RETURN(const std::optional<View> next, view.find("next"));
  if (next) {
    MESH_ASSIGN_OR_RETURN(r.next, read_address(*next));
  }
  MESH_ASSIGN_OR_RETURN(const std::optional<View> tail, view.find("tail"));
  if (tail) {
    MESH_ASSIGN_OR_RETURN(r.tail, read_tail(*tail));
  }
  MESH_ASSIGN_OR_RETURN(r.emit_from, view.get_optional<Position>("emit_from"));
  MESH_ASSIGN_OR_RETURN(const std::optional<View> prefix, view.find("prefix"));
  if (prefix) {
    MESH_ASSIGN_OR_RETURN(r.prefix, view.get_list<PrefixKey>("prefix"));
  }
  MESH_RETURN_IF_ERROR(check(view, r));
  return message;
}

std::string write_open_reply(const OpenReply& r) {
  return text_of({{"code", kOpenCodes(r.code)},
                  {"cursor", write_cursor(r.cursor)},
                  {"window", Object{{"segments", r.window.segments}, {"rows", r.window.rows}}},
                  {"kept_from", r.kept_from},
                  {"message", r.message.substr(0, kMaxMessage)}});
}

StatusOr<OpenReply> read_open_reply(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  const View view(value);
  OpenReply reply;
  MESH_ASSIGN_OR_RETURN(const View code, view.field("code"));
  MESH_ASSIGN_OR_RETURN(reply.code, kOpenCodes.read(code));
  MESH_ASSIGN_OR_RETURN(const View cursor, view.field("cursor"));
  MESH_ASSIGN_OR_RETURN(reply.cursor, read_cursor(cursor));
  MESH_ASSIGN_OR_RETURN(const View window, view.field("window"));
  MESH_ASSIGN_OR_RETURN(reply.window.segments, window.get<std::uint32_t>("segments"));
  MESH_ASSIGN_OR_RETURN(reply.window.rows, window.get<std::uint32_t>("rows"));
  MESH_ASSIGN_OR_RETURN(reply.kept_from, view.get<Position>("kept_from"));
  MESH_ASSIGN_OR_RETURN(reply.message, read_text(view, "message", kMaxMessage));
  return reply;
}

std::string write_close(const CloseRequest& r) {
  return text_of({{"session", r.session.hex()}, {"generation", r.generation.value}});
}

StatusOr<CloseRequest> read_close(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  const View view(value);
  MESH_RETURN_IF_ERROR(view.only_fields({"session", "generation"}));
  CloseRequest request;
  MESH_ASSIGN_OR_RETURN(request.session, view.get<SessionId>("session"));
  MESH_ASSIGN_OR_RETURN(request.generation, view.get<Generation>("generation"));
  return request;
}

std::string write_cursors(const CursorsRequest& r) {
  Array hops;
  for (const HopKey& hop : r.hops)
    hops.push_back(Object{{"session", hop.session.hex()}, {"begin", hop.begin}});
  return text_of({{"hops", std::move(hops)}});
}

StatusOr<CursorsRequest> read_cursors(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  const View view(value);
  MESH_RETURN_IF_ERROR(view.only_fields({"hops"}));
  MESH_ASSIGN_OR_RETURN(const std::vector<View> items, read_items(view, "hops"));
  CursorsRequest request;
  for (const View& item : items) {
    MESH_RETURN_IF_ERROR(item.only_fields({"session", "begin"}));
    MESH_ASSIGN_OR_RETURN(const HopKey hop, read_hop(item));
    request.hops.push_back(hop);
  }
  return request;
}

std::string write_cursors_reply(const CursorsReply& r) {
  Array hops;
  for (const CursorEntry& entry : r.hops) {
    Object o{
        {"session", entry.hop.session.hex()},   {"begin", entry.hop.begin},     {"known", entry.known},
        {"cursor", write_cursor(entry.cursor)}, {"kept_from", entry.kept_from}, {"computed", entry.computed}};
    if (entry.waits_for_room) o["waits_for_room"] = true;
    hops.push_back(std::move(o));
  }
  return text_of({{"hops", std::move(hops)}});
}

StatusOr<CursorsReply> read_cursors_reply(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  MESH_ASSIGN_OR_RETURN(const std::vector<View> items, read_items(View(value), "hops"));
  CursorsReply reply;
  for (const View& item : items) {
    CursorEntry entry;
    MESH_ASSIGN_OR_RETURN(entry.hop, read_hop(item));
    MESH_ASSIGN_OR_RETURN(entry.known, item.get<bool>("known"));
    MESH_ASSIGN_OR_RETURN(const View cursor, item.field("cursor"));
    MESH_ASSIGN_OR_RETURN(entry.cursor, read_cursor(cursor));
    MESH_ASSIGN_OR_RETURN(entry.kept_from, item.get<Position>("kept_from"));
    MESH_ASSIGN_OR_RETURN(entry.computed, item.get<Position>("computed"));
    MESH_ASSIGN_OR_RETURN(entry.waits_for_room, item.get_or<bool>("waits_for_room", false));
    reply.hops.push_back(entry);
  }
  return reply;
}

std::string write_renew(const RenewRequest& r, const Freshness& fresh) {
  return text_of(
      {{"sessions", hex_list(r.sessions)}, {"lease_ms", r.lease_ms}, {"fresh", write_fresh(fresh)}});
}

StatusOr<RenewMessage> read_renew(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  const View view(value);
  MESH_RETURN_IF_ERROR(view.only_fields({"sessions", "lease_ms", "fresh"}));
  RenewMessage message;
  RenewRequest& request = message.request;
  MESH_ASSIGN_OR_RETURN(request.sessions, read_ids(view, "sessions"));
  MESH_ASSIGN_OR_RETURN(request.lease_ms, view.get<std::uint32_t>("lease_ms"));
  if (request.lease_ms == 0) return view.error("lease_ms must be above 0");
  MESH_ASSIGN_OR_RETURN(message.fresh, read_fresh(view));
  return message;
}

std::string write_renew_reply(const RenewReply& r) {
  return text_of({{"unknown", hex_list(r.unknown)}});
}

StatusOr<RenewReply> read_renew_reply(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  RenewReply reply;
  MESH_ASSIGN_OR_RETURN(reply.unknown, read_ids(View(value), "unknown"));
  return reply;
}

std::string write_report(const Report& r) {
  return text_of({{"session", r.hop.session.hex()},
                  {"begin", r.hop.begin},
                  {"generation", r.generation.value},
                  {"code", kReportCodes(r.code)},
                  {"kept_from", r.kept_from},
                  {"message", r.message.substr(0, kMaxMessage)}});
}

StatusOr<Report> read_report(std::string_view body) {
  MESH_ASSIGN_OR_RETURN(const json::Value value, json::parse(body));
  const View view(value);
  MESH_RETURN_IF_ERROR(view.only_fields({"session", "begin", "generation", "code", "kept_from", "message"}));
  Report report;
  MESH_ASSIGN_OR_RETURN(report.hop, read_hop(view));
  MESH_ASSIGN_OR_RETURN(report.generation, view.get<Generation>("generation"));
  MESH_ASSIGN_OR_RETURN(const View code, view.field("code"));
  MESH_ASSIGN_OR_RETURN(report.code, kReportCodes.read(code));
  MESH_ASSIGN_OR_RETURN(report.kept_from, view.get<Position>("kept_from"));
  MESH_ASSIGN_OR_RETURN(report.message, read_text(view, "message", kMaxMessage));
  return report;
}

}  // namespace mesh::wire
