#include "common/hub/piece_fetch.h"

#include <algorithm>
#include <deque>

#include "common/identity/sha256.h"

namespace mesh::hub {
namespace {

/// Cuts a stream of chunks into pieces, checks and writes them.
class PieceWriter {
 public:
  PieceWriter(const ManifestFile& file, PieceRun run, PieceStore& store, ProgressMeter& meter)
      : file_(file), run_(run), next_(run.first), store_(store), meter_(meter) {}

  Status take(std::string_view chunk) {
    while (!chunk.empty()) {
      if (next_ == run_.last) {
        return error(StatusCode::kDataLoss, "the source of {} gives more bytes than asked for", file_.name);
      }
      const std::uint64_t size = piece_size(file_.size, next_);
      const std::uint64_t part = std::min<std::uint64_t>(chunk.size(), size - buffer_.size());
      buffer_.append(chunk.substr(0, part));
      chunk.remove_prefix(part);
      if (buffer_.size() == size) MESH_RETURN_IF_ERROR(finish_piece());
    }
    return absl::OkStatus();
  }

  bool complete() const { return next_ == run_.last; }
  const std::vector<std::uint64_t>& good() const { return good_; }
  const std::vector<std::uint64_t>& bad() const { return bad_; }

 private:
  Status finish_piece() {
    const bool good = sha256(buffer_) == file_.pieces[next_];
    if (good) MESH_RETURN_IF_ERROR(store_.write(next_, buffer_));
    (good ? good_ : bad_).push_back(next_);
    ++next_;
    const std::uint64_t size = buffer_.size();
    buffer_.clear();
    return good ? meter_.add(size) : absl::OkStatus();
  }

  const ManifestFile& file_;
  const PieceRun run_;
  std::uint64_t next_;
  PieceStore& store_;
  ProgressMeter& meter_;
  std::string buffer_;
  std::vector<std::uint64_t> good_;
  std::vector<std::uint64_t> bad_;
};

/// One request for a claimed run. Good pieces are committed whatever happens; the others are given back in
/// `bad`.
Status fetch_run(const ManifestFile& file, PieceRun run, PieceStore& store, RangeSource& source,
                 ProgressMeter& meter, std::vector<std::uint64_t>& bad) {
  PieceWriter writer(file, run, store, meter);
  const std::uint64_t offset = run.first * kPieceBytes;
  const std::uint64_t length = std::min(run.last * kPieceBytes, file.size) - offset;
  Status fetched =
      source.fetch(file.name, offset, length, [&](std::string_view chunk) { return writer.take(chunk); });
  if (fetched.ok() && !writer.complete()) {
    fetched = error(StatusCode::kUnavailable, "the source of {} ended before {} bytes from {}", file.name,
                    length, offset);
  }
  MESH_RETURN_IF_ERROR(store.commit(writer.good()));

  bad = writer.bad();
  return fetched;
}

/// Fetches a claimed run, asking again for pieces with a wrong hash.
Status fetch_claimed(const ManifestFile& file, PieceRun run, PieceStore& store, RangeSource& source,
                     ProgressMeter& meter) {
  std::vector<std::uint64_t> bad;
  MESH_RETURN_IF_ERROR(fetch_run(file, run, store, source, meter, bad));
  for (const std::uint64_t piece : bad) {
    std::vector<std::uint64_t> still_bad{piece};
    for (int tries = 1; !still_bad.empty(); ++tries) {
      if (tries == kTries) {
        return error(
            StatusCode::kDataLoss,
            "piece {} of {} came {} times with a wrong hash; the file at the source changed or the link "
            "corrupts data",
            piece, file.name, kTries);
      }
      MESH_RETURN_IF_ERROR(fetch_run(file, {piece, piece + 1}, store, source, meter, still_bad));
    }
  }
  return absl::OkStatus();
}

/// The missing pieces of `run`, as runs of at most kRequestPieces.
void add_missing(PieceRun run, const PieceStore& store, std::deque<PieceRun>& missing) {
  for (std::uint64_t piece = run.first; piece < run.last; ++piece) {
    if (store.has(piece)) continue;
    PieceRun* const last = missing.empty() ? nullptr : &missing.back();
    if (last != nullptr && last->last == piece && last->size() < kRequestPieces) {
      ++last->last;
    } else {
      missing.push_back({piece, piece + 1});
    }
  }
}

}  // namespace

Status fetch_pieces(const ManifestFile& file, const std::vector<PieceRun>& runs, PieceStore& store,
                    RangeSource& source, ProgressMeter& meter) {
  std::deque<PieceRun> missing;
  for (const PieceRun& run : runs) add_missing(run, store, missing);
  std::size_t busy_in_a_row = 0;
  while (!missing.empty()) {
    const PieceRun run = missing.front();
    missing.pop_front();
    // Once all that is left is being fetched by others, wait for the first of them.
    const auto claim = store.claim(run, busy_in_a_row > missing.size());
    if (claim.status().code() == StatusCode::kAborted) {
      missing.push_back(run);
      ++busy_in_a_row;
      continue;
    }
    MESH_RETURN_IF_ERROR(claim.status());
    busy_in_a_row = 0;
    // Another loader may have fetched some of it before this claim.
    const std::uint64_t before = store.missing_bytes(run);
    MESH_RETURN_IF_ERROR(store.refresh());
    MESH_RETURN_IF_ERROR(meter.add(before - store.missing_bytes(run)));
    std::deque<PieceRun> left;
    add_missing(run, store, left);
    for (const PieceRun& part : left) MESH_RETURN_IF_ERROR(fetch_claimed(file, part, store, source, meter));
  }
  return absl::OkStatus();
}

}  // namespace mesh::hub
