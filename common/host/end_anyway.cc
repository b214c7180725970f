#include "common/host/end_anyway.h"

#include <unistd.h>

#include <thread>

namespace mesh {

void end_anyway_after(Duration patience, int exit_code) {
  std::thread([patience, exit_code] {
    std::this_thread::sleep_for(patience);
    ::_exit(exit_code);
  }).detach();
}

}  // namespace mesh
