#include <algorithm>
#include <set>
#include <vector>

#include "common/base/printable.h"
#include "common/hub/file_io.h"
#include "common/hub/file_names.h"
#include "common/hub/open_model.h"
#include "common/hub/shard_index.h"

namespace mesh::hub {
namespace {

namespace fs = std::filesystem;

// What a model is made of besides its weights. Nothing else of a folder is read, hashed or served.
constexpr std::string_view kSmallFiles[] = {
    kConfig,       kGenerationConfig,    kTokenizer,          kTokenizerConfig,
    kChatTemplate, "chat_template.json", "added_tokens.json", "special_tokens_map.json",
    "vocab.json",  "merges.txt",         "tokenizer.model",   "preprocessor_config.json",
};

class LocalFiles final : public ModelFiles {
 public:
  LocalFiles(std::string description, std::map<std::string, fs::path, std::less<>> paths,
             std::map<std::string, std::uint64_t, std::less<>> sizes)
      : description_(std::move(description)), paths_(std::move(paths)), sizes_(std::move(sizes)) {}

  std::string describe() const override { return description_; }
  const std::map<std::string, std::uint64_t, std::less<>>& files() const override { return sizes_; }
  Status ensure(const FileRanges& wanted, const ProgressFn&) override { return check_ranges(*this, wanted); }
  StatusOr<fs::path> path(std::string_view name) override {
    const auto found = paths_.find(name);
    if (found == paths_.end()) return error(StatusCode::kNotFound, "{} has no file {}", description_, name);
    return found->second;
  }

 private:
  const std::string description_;
  const std::map<std::string, fs::path, std::less<>> paths_;
  const std::map<std::string, std::uint64_t, std::less<>> sizes_;
};

/// Why a folder without SafeTensors cannot be used, by what lies in it instead.
Status no_weights(const fs::path& folder, const std::set<std::string>& names) {
  const auto any = [&](std::initializer_list<std::string_view> suffixes) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(suffixes.begin(), suffixes.end(),
                         [&](std::string_view s) { return name.ends_with(s); });
    });
  };
  if (any({".gguf"})) {
    return error(StatusCode::kInvalidArgument, "{}: {}", folder.string(), kGgufReason);
  }
  if (any({".bin", ".pt", ".pth", ".ckpt", ".pkl"})) {
    return error(
        StatusCode::kInvalidArgument,
        "{}: its weights are pickle files, which can run any code when they are opened; give a folder with "
        "*.safetensors (save_pretrained(..., safe_serialization=True) converts)",
        folder.string());
  }
  return error(StatusCode::kNotFound, "{}: no {}, no {} and no other single *.safetensors", folder.string(),
               kWeights, kWeightsIndex);
}

/// The weight files' names, with the index when there is one.
StatusOr<std::vector<std::string>> weight_files(const fs::path& folder, const std::set<std::string>& names) {
  if (names.contains(std::string(kWeights))) return std::vector{std::string(kWeights)};
  if (names.contains(std::string(kWeightsIndex))) {
    MESH_ASSIGN_OR_RETURN(const std::string text,
                          read_whole(folder / kWeightsIndex, size_limit(kWeightsIndex)));
    const auto index = parse_shard_index(text);
    if (!index.ok()) return with_context(index.status(), folder.string());
    std::set<std::string> shards;
    for (const auto& [tensor, file] : *index) shards.insert(file);
    for (const std::string& shard : shards) {
      if (!names.contains(shard)) {
        return error(StatusCode::kNotFound, "{}: {} is named by {} but missing; finish the download",
                     folder.string(), shard, kWeightsIndex);
      }
    }
    std::vector<std::string> files(shards.begin(), shards.end());
    files.emplace_back(kWeightsIndex);
    return files;
  }
  std::vector<std::string> single;
  for (const std::string& name : names) {
    if (name.ends_with(kWeightsSuffix) && is_file_name(name)) single.push_back(name);
  }
  if (single.size() != 1) return no_weights(folder, names);
  return single;
}

/// Whether `path` lies in `folder` (both canonical).
bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

}  // namespace

StatusOr<std::shared_ptr<ModelFiles>> open_folder(const fs::path& given, std::string description) {
  std::error_code failed;
  const fs::path folder = fs::canonical(given, failed);
  if (failed) return error(StatusCode::kNotFound, "no folder {}: {}", given.string(), failed.message());
  std::set<std::string> names;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    names.insert(entry->path().filename().string());
  }
  if (failed) return error(StatusCode::kUnavailable, "cannot list {}: {}", folder.string(), failed.message());

  MESH_ASSIGN_OR_RETURN(const std::vector<std::string> weights, weight_files(folder, names));
  if (!names.contains(std::string(kConfig))) {
    return error(StatusCode::kNotFound, "{}: no {}; give a whole HuggingFace checkpoint folder",
                 folder.string(), kConfig);
  }
  std::vector<std::string> wanted = weights;
  for (const std::string_view name : kSmallFiles) {
    if (names.contains(std::string(name))) wanted.emplace_back(name);
  }
  // A snapshot of a HuggingFace cache links to ../../blobs. Any other way out of the folder could make us
  // read and serve files that are no part of the model.
  fs::path blobs;
  if (folder.parent_path().filename() == "snapshots") {
    blobs = fs::canonical(folder.parent_path().parent_path() / "blobs", failed);
    failed.clear();
  }
  std::map<std::string, fs::path, std::less<>> paths;
  std::map<std::string, std::uint64_t, std::less<>> sizes;
  for (const std::string& name : wanted) {
    const fs::path real = fs::canonical(folder / name, failed);
    if (failed) {
      return error(StatusCode::kNotFound, "{}: {}: {}; finish the download", folder.string(), name,
                   failed.message());
    }
    if (!lies_in(real, folder) && (blobs.empty() || !lies_in(real, blobs))) {
      return error(StatusCode::kInvalidArgument,
                   "{}: {} is a link out of the folder, to {}; copy the file here", folder.string(), name,
                   real.string());
    }
    MESH_ASSIGN_OR_RETURN(const File file, open_for_reading(real));
    MESH_ASSIGN_OR_RETURN(const std::uint64_t size, size_of(file, real));
    paths.emplace(name, real);
    sizes.emplace(name, size);
  }
  if (description.empty()) description = folder.string();
  return std::make_shared<LocalFiles>(std::move(description), std::move(paths), std::move(sizes));
}

}  // namespace mesh::hub
