#include "tracker/runtime/tracker_metrics.h"

namespace mesh::tracker {
namespace {

constexpr const char* kRefused = "meshnet_admission_refused_total";
constexpr const char* kRefusedHelp = "Requests that admission refused";

}  // namespace

TrackerMetrics::TrackerMetrics()
    : node_(registry_),
      first_token_(registry_.histogram("meshnet_time_to_first_token_seconds",
                                       "From a request to its first token", metrics::seconds_buckets())),
      admission_(registry_.histogram("meshnet_admission_wait_seconds",
                                     "From a request to its session's opening at all hops",
                                     metrics::seconds_buckets())),
      generated_(registry_.counter("meshnet_generated_tokens_total", "Tokens of answers")),
      prompt_(registry_.counter("meshnet_prompt_tokens_total", "Tokens of prompts")),
      failovers_(registry_.counter("meshnet_failovers_total", "Changes of a running session's route")),
      alive_(registry_.gauge("meshnet_nodes", "Nodes by state", {{"state", "ready"}})),
      draining_(registry_.gauge("meshnet_nodes", "Nodes by state", {{"state", "draining"}})),
      silent_(registry_.gauge("meshnet_nodes", "Nodes by state", {{"state", "silent"}})),
      epoch_(registry_.gauge("meshnet_epoch", "Number of the present plan")),
      answers_(registry_.gauge("meshnet_answers_running", "Answers being generated")),
      waiting_(
          registry_.gauge("meshnet_admission_waiting", "Requests that wait for their turn or for room")) {
  for (const char* reason : {"queue_full", "key_limit", "displaced", "wait_over", "never_fits"}) {
    registry_.counter(kRefused, kRefusedHelp, {{"reason", reason}});
  }
}

void TrackerMetrics::on_opened(Duration waited) {
  admission_.observe(std::chrono::duration<double>(waited).count());
}

void TrackerMetrics::on_refused(std::string_view reason) {
  registry_.counter(kRefused, kRefusedHelp, {{"reason", std::string(reason)}}).add();
}

void TrackerMetrics::request_done(const net::RequestRecord& record) {
  const std::string route = record.route.empty() ? "none" : record.route;
  registry_
      .counter("meshnet_requests_total", "Requests of clients",
               {{"route", route}, {"code", std::to_string(record.status)}})
      .add();
  registry_
      .histogram("meshnet_request_seconds", "Time of a client's request", metrics::seconds_buckets(),
                 {{"route", route}})
      .observe(std::chrono::duration<double>(record.took).count());
}

void TrackerMetrics::answer_done(const gateway::AnswerFigures& figures) {
  prompt_.add(static_cast<double>(figures.prompt_tokens));
  generated_.add(static_cast<double>(figures.answer_tokens));
  if (figures.first_token > Duration::zero()) {
    first_token_.observe(std::chrono::duration<double>(figures.first_token).count());
  }
}

std::string TrackerMetrics::text(Node& node, const HeadLoop& head, const Membership& membership) {
  const std::lock_guard lock(mutex_);
  node_.update(node.figures());
  const auto figures = membership.figures();
  alive_.set(static_cast<double>(figures.alive));
  draining_.set(static_cast<double>(figures.draining));
  silent_.set(static_cast<double>(figures.silent));
  epoch_.set(static_cast<double>(figures.epoch.value));
  answers_.set(static_cast<double>(head.sessions()));
  waiting_.set(static_cast<double>(head.waiting()));
  const double more = static_cast<double>(head.failovers()) - failovers_.value();
  if (more > 0) failovers_.add(more);
  return registry_.text();
}

}  // namespace mesh::tracker
