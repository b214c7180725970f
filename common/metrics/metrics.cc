#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>

#include "common/base/check.h"

namespace mesh::metrics {

struct Registry::State {
  prometheus::Registry registry;
  std::mutex mutex;
  std::map<std::string, Kind> kinds;

  void check(Kind kind, const std::string& name, const Labels& labels) {
    MESH_CHECK(check_name(kind, name, labels).ok());
    const std::lock_guard lock(mutex);
    MESH_CHECK(kinds.emplace(name, kind).first->second == kind);
  }
};

void Counter::add(double amount) {
  counter_->Increment(amount);
}
double Counter::value() const {
  return counter_->Value();
}
void Gauge::set(double value) {
  gauge_->Set(value);
}
void Gauge::add(double amount) {
  gauge_->Increment(amount);
}
double Gauge::value() const {
  return gauge_->Value();
}
void Histogram::observe(double value) {
  histogram_->Observe(value);
}

std::vector<double> seconds_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
}

Registry::Registry() : state_(std::make_unique<State>()) {}
Registry::~Registry() = default;

Counter Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  state_->check(Kind::kCounter, name, labels);
  Counter counter;
  counter.counter_ = &prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry).Add(labels);
  return counter;
}

Gauge Registry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  state_->check(Kind::kGauge, name, labels);
  Gauge gauge;
  gauge.gauge_ = &prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry).Add(labels);
  return gauge;
}

Histogram Registry::histogram(const std::string& name, const std::string& help,
                              const std::vector<double>& bounds, const Labels& labels) {
  state_->check(Kind::kHistogram, name, labels);
  Histogram histogram;
  histogram.histogram_ =
      &prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry).Add(labels, bounds);
  return histogram;
}

std::string Registry::text() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace mesh::metrics
