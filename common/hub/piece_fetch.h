#pragma once

#include "common/hub/piece_store.h"
#include "common/hub/remote_files.h"

namespace mesh::hub {

/// Fetches every piece of `runs` that `store` lacks, in requests of at most kRequestPieces, checks each
/// piece's hash and commits it. Runs that another loader is fetching are left for last, then waited for. A
/// piece with a wrong hash is asked for again, kTries times in all, then kDataLoss. What was fetched before
/// an error stays.
Status fetch_pieces(const ManifestFile& file, const std::vector<PieceRun>& runs, PieceStore& store,
                    RangeSource& source, ProgressMeter& meter);

inline constexpr std::uint64_t kRequestPieces = 16;
inline constexpr int kTries = 3;

}  // namespace mesh::hub
