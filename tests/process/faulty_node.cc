// meshnet-node that dies at once at a named point. A test arms it while it runs: $FAULT_FILE then holds
// "POINT N", and the process ends with code 9 at the N-th passing of that point, having removed the file.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>

#include "node/start.h"

namespace {

constexpr std::array<std::string_view, 9> kNames = {"before-frame-read", "after-frame-read", "before-answer",
                                                    "after-answer",      "before-compute",   "after-compute",
                                                    "before-send",       "after-send",       "before-coding"};
constexpr int kDied = 9;

class DieAt final : public mesh::FaultPoints {
 public:
  explicit DieAt(std::string file) : file_(std::move(file)) {}

  void pass(mesh::FaultPoint point) override {
    const std::lock_guard lock(mutex_);
    std::string name;
    int count = 0;
    if (!(std::ifstream(file_) >> name >> count)) return;
    if (name != kNames[static_cast<std::size_t>(point)] || ++passed_ < count) return;
    std::remove(file_.c_str());
    ::_exit(kDied);
  }

 private:
  const std::string file_;
  std::mutex mutex_;
  int passed_ = 0;  ///< since it was armed: a process is armed once
};

}  // namespace

int main(int argc, char** argv) {
  const char* file = std::getenv("FAULT_FILE");
  if (file == nullptr) {
    std::fputs("meshnet-faulty-node: $FAULT_FILE is not set\n", stderr);
    return 2;
  }
  DieAt faults(file);
  return mesh::start_node(argc, argv, &faults);
}
