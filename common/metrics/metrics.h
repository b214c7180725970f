#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace mesh::metrics {

/// Label name → value. Values are few: a route, a state, a model; never a key, an address, a session or a
/// prompt.
using Labels = std::map<std::string, std::string>;

/// Only goes up. Thread-safe, as are the others; owned by the registry.
class Counter {
 public:
  void add(double amount = 1);
  double value() const;

 private:
  friend class Registry;
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  void set(double value);
  void add(double amount);
  double value() const;

 private:
  friend class Registry;
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  void observe(double value);

 private:
  friend class Registry;
  prometheus::Histogram* histogram_ = nullptr;
};

/// Bucket bounds for durations: 1 ms to 120 s.
std::vector<double> seconds_buckets();

enum class Kind { kCounter, kGauge, kHistogram };
/// The naming rules: meshnet_ prefix, base units (_seconds, _bytes, never _ms or _kb), counters end in _total
/// and others do not, label names that hold few values.
Status check_name(Kind kind, std::string_view name, const Labels& labels);

/// All metrics of a program, handed to the parts that count. Asking twice for one name and labels gives the
/// same metric. A name that breaks check_name(), or comes back with another kind, is a programmer's error.
class Registry {
 public:
  Registry();
  ~Registry();

  Counter counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                      const Labels& labels = {});

  /// Prometheus text exposition format 0.0.4.
  std::string text() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mesh::metrics
