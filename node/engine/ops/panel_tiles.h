// How the matrix kernels go through rows and panels.

template <int kMost>
struct RowTiles {  // m rows in tiles of nearly equal height, at most kMost
  std::int64_t tiles, height, taller;
  explicit RowTiles(std::int64_t m) {
    tiles = (m + kMost - 1) / kMost;
    height = m / tiles;
    taller = m % tiles;
  }
  std::int64_t rows(std::int64_t index) const { return height + (index < taller ? 1 : 0); }
  std::int64_t first(std::int64_t index) const { return index * height + (index < taller ? index : taller); }
};

/// Calls tile(c, stride) on rows of whole panels, `full` columns; where the last panel has but `columns` of
/// 32, on a copy that is put back.
template <int kMost, class Tile>
MESH_INLINE void on_whole_panels(float* c, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                 std::int64_t full, const Tile& tile) {
  if (columns == full) {
    tile(c, stride);
    return;
  }
  float whole[kMost * 32] = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) whole[row * 32 + i] = c[row * stride + i];
  }
  tile(whole, std::int64_t{32});
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < columns; ++i) c[row * stride + i] = whole[row * 32 + i];
  }
}

/// Calls block(panel, k0) for each chain of k inputs of each panel. `stream`, for few rows: panel by panel in
/// the order of memory. Else one chain's inputs of all rows stay in the cache while several panels pass over
/// them. The order of an output's sums is the same.
template <class Block>
MESH_INLINE void for_each_block(std::int64_t k, bool stream, std::int64_t first_panel,
                                std::int64_t last_panel, const Block& block) {
  if (stream) {
    for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
      for (std::int64_t k0 = 0; k0 < k; k0 += kChain) block(panel, k0);
    }
  } else {
    for (std::int64_t k0 = 0; k0 < k; k0 += kChain) {
      for (std::int64_t panel = first_panel; panel < last_panel; ++panel) block(panel, k0);
    }
  }
}
