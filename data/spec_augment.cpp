#include "data/spec_augment.h"

#include <algorithm>
#include <cmath>

namespace tapeformer {
namespace {

struct Grid {
  std::span<float> x;
  i64 frames, bands, blocks;
  i64 dim() const { return bands * blocks; }
  float& at(i64 t, i64 f) const { return x[static_cast<std::size_t>(t * dim() + f)]; }
};

void shift(const Grid& g, i64 by, std::vector<i64>& labels) {
  const std::vector<float> old(g.x.begin(), g.x.end());
  const std::vector<i64> old_labels = labels;
  for (i64 t = 0; t < g.frames; ++t) {
    const auto from = static_cast<std::size_t>(std::clamp<i64>(t + by, 0, g.frames - 1));
    std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(from) * g.dim(), g.dim(), &g.at(t, 0));
    if (!labels.empty()) labels[static_cast<std::size_t>(t)] = old_labels[from];
  }
}

void mask_time(const Grid& g, const AugmentSettings& s, RngKey key) {
  const i64 most = std::min<i64>({s.time_width, g.frames, static_cast<i64>(s.time_share * static_cast<double>(g.frames))});
  const i64 width = static_cast<i64>(key.below(0, static_cast<std::uint64_t>(most + 1)));
  const i64 start = static_cast<i64>(key.below(1, static_cast<std::uint64_t>(g.frames - width + 1)));
  std::fill_n(&g.at(0, 0) + start * g.dim(), width * g.dim(), 0.0f);
}

void mask_bands(const Grid& g, const AugmentSettings& s, RngKey key) {
  const i64 most = std::min<i64>(s.freq_width, g.bands);
  const i64 width = static_cast<i64>(key.below(0, static_cast<std::uint64_t>(most + 1)));
  const i64 start = static_cast<i64>(key.below(1, static_cast<std::uint64_t>(g.bands - width + 1)));
  for (i64 t = 0; t < g.frames; ++t)
    for (i64 block = 0; block < g.blocks; ++block) std::fill_n(&g.at(t, 0) + block * g.bands + start, width, 0.0f);
}

}  // namespace

double band_stretch(const AugmentSettings& s, RngKey key) { return 1 + s.freq_warp * (2 * key.fold_in("warp").uniform(0) - 1); }

void augment(const AugmentSettings& s, RngKey key, std::span<float> x, i64 frames, i64 bands, i64 blocks, std::vector<i64>& labels) {
  if (frames == 0) return;
  const Grid g{x, frames, bands, blocks};
  if (s.time_shift > 0)
    shift(g, static_cast<i64>(key.fold_in("shift").below(0, static_cast<std::uint64_t>(2 * s.time_shift + 1))) - s.time_shift, labels);
  if (s.gain > 0) {
    const auto gain = static_cast<float>(s.gain * key.fold_in("gain").normal(0));
    for (i64 t = 0; t < frames; ++t)
      for (i64 f = 0; f < bands; ++f) g.at(t, f) += gain;
  }
  if (s.noise > 0) {
    const RngKey noise = key.fold_in("noise");
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += static_cast<float>(s.noise * noise.normal(i));
  }
  for (int m = 0; m < s.freq_masks; ++m) mask_bands(g, s, key.fold_in("freq").fold_in(static_cast<std::uint64_t>(m)));
  for (int m = 0; m < s.time_masks; ++m) mask_time(g, s, key.fold_in("time").fold_in(static_cast<std::uint64_t>(m)));
}

}  // namespace tapeformer
