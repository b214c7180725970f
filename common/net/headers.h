#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mesh::net {

/// Header fields; names compare without case, several fields of one name keep their order.
class Headers {
 public:
  Headers() = default;
  Headers(std::initializer_list<std::pair<std::string, std::string>> fields) : fields_(fields) {}

  /// Appends a field. Control characters in name or value are dropped, so that no field can smuggle another.
  void add(std::string_view name, std::string_view value);
  /// The first value of `name`, or "".
  std::string_view get(std::string_view name) const;
  std::size_t count(std::string_view name) const;

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  std::size_t size() const { return fields_.size(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

/// ASCII comparison without case.
bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace mesh::net
