#include "common/hub/open_model.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/base/printable.h"
#include "common/hub/file_io.h"
#include "common/hub/file_names.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;

/// The variable's value with a leading ~ replaced, as huggingface_hub reads it; empty when unset.
fs::path folder_from_environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return {};
  const std::string text = value;
  const char* const home = std::getenv("HOME");
  if (home != nullptr && (text == "~" || text.starts_with("~/"))) return fs::path(home + text.substr(1));
  return text;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

/// The commit that a revision names, as the cache's refs say; a commit names itself.
StatusOr<std::string> resolve_revision(const fs::path& repo, std::string_view id, std::string_view revision) {
  if (is_commit(revision)) return std::string(revision);
  StatusOr<std::string> text = read_whole(repo / "refs" / revision, 64);
  if (text.status().code() == StatusCode::kNotFound) {
    return error(StatusCode::kNotFound,
                 "{} has no revision {} in {}; download it: hf download {} --revision {}", id, revision,
                 repo.string(), id, revision);
  }
  MESH_RETURN_IF_ERROR(text.status());
  while (!text->empty() && (text->back() == '\n' || text->back() == ' ')) text->pop_back();
  if (!is_commit(*text)) {
    return error(StatusCode::kInvalidArgument, "{} holds no commit", (repo / "refs" / revision).string());
  }
  return *std::move(text);
}

StatusOr<std::shared_ptr<ModelFiles>> open_cached(std::string_view id, std::string_view revision,
                                                  const fs::path& hf_cache) {
  std::string folder = "models--" + std::string(id);
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repo = hf_cache / folder;
  std::error_code ignored;
  if (hf_cache.empty() || !fs::is_directory(repo, ignored)) {
    return error(StatusCode::kNotFound,
                 "{} is no folder and not in the HuggingFace cache {}; download it: hf download {}", id,
                 hf_cache.string(), id);
  }
  MESH_ASSIGN_OR_RETURN(const std::string commit, resolve_revision(repo, id, revision));
  const fs::path snapshot = repo / "snapshots" / commit;
  if (!fs::is_directory(snapshot, ignored)) {
    return error(StatusCode::kNotFound,
                 "{} has no snapshot of commit {}; download it: hf download {} --revision {}", id, commit, id,
                 revision);
  }
  return open_folder(snapshot, fmt::format("{}@{}", id, commit));
}

}  // namespace

fs::path hf_cache_folder() {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (fs::path folder = folder_from_environment(name); !folder.empty()) return folder;
  }
  if (const fs::path home = folder_from_environment("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = folder_from_environment("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "huggingface" / "hub";
  }
  if (const fs::path home = folder_from_environment("HOME"); !home.empty()) {
    return home / ".cache" / "huggingface" / "hub";
  }
  return {};
}

StatusOr<std::shared_ptr<ModelFiles>> open_model(std::string_view spec, const fs::path& hf_cache) {
  std::error_code ignored;
  if (fs::is_directory(spec, ignored)) return open_folder(spec);
  if (fs::exists(spec, ignored)) {
    if (spec.ends_with(".gguf")) return error(StatusCode::kInvalidArgument, "{}: {}", spec, kGgufReason);
    return error(StatusCode::kInvalidArgument, "{} is a file; give the folder that holds the checkpoint",
                 spec);
  }
  const auto at = spec.rfind('@');
  const std::string_view id = spec.substr(0, at);
  const std::string_view revision = at == std::string_view::npos ? "main" : spec.substr(at + 1);
  if (!is_model_id(id)) {
    return error(StatusCode::kNotFound, "{} is neither a folder nor a HuggingFace id (owner/name)",
                 printable(spec));
  }
  if (!is_revision(revision)) {
    return error(StatusCode::kInvalidArgument, "{}: no revision can have this name", printable(spec));
  }
  return open_cached(id, revision, hf_cache);
}

}  // namespace mesh::hub
