#include "node/agent/agent_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "common/json/view.h"

namespace mesh {

StatusOr<AgentStateFile> AgentStateFile::begin_start(const std::filesystem::path& data_folder) {
  AgentStateFile state;
  state.file_ = data_folder / "agent.json";
  std::ifstream file(state.file_);
  if (file) {
    std::ostringstream text;
    text << file.rdbuf();
    const auto value = json::parse(text.str());
    const auto broken = [&](const Status& why) {
      return error(StatusCode::kDataLoss,
                   "{} is damaged ({}): remove it together with node.key to begin anew", state.file_.string(),
                   message_of(why));
    };
    if (!value.ok()) return broken(value.status());
    const json::View view(*value);
    const auto start = view.get<std::uint64_t>("start");
    if (!start.ok()) return broken(start.status());
    const auto epoch = view.get<Epoch>("highest_epoch");
    if (!epoch.ok()) return broken(epoch.status());
    state.start_ = *start;
    state.epoch_ = *epoch;
  }
  ++state.start_;
  MESH_RETURN_IF_ERROR(state.write());
  return state;
}

Status AgentStateFile::store_epoch(Epoch epoch) {
  epoch_ = epoch;
  return write();
}

Status AgentStateFile::write() const {
  const std::string text =
      json::serialize(json::Object{{"start", start_}, {"highest_epoch", epoch_.value}}) + "\n";
  const std::string fresh = file_.string() + ".new";
  const int descriptor = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = descriptor >= 0;
  written = written && ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  written = written && ::fsync(descriptor) == 0;
  if (descriptor >= 0) ::close(descriptor);
  std::error_code code;
  if (written) std::filesystem::rename(fresh, file_, code);
  if (!written || code) return error(StatusCode::kUnavailable, "cannot write {}", file_.string());
  return absl::OkStatus();
}

}  // namespace mesh
