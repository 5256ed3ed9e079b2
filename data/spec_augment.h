// spec_augment.h: random changes to features while training (SpecAugment: Park et al. 2019). None reaches
// into padding, and none changes the number of frames.
#pragma once
#include <span>
#include <vector>

#include "core/config.h"
#include "core/rng.h"

namespace tapeformer {

struct AugmentSettings {
  int time_masks = 0, time_width = 20, freq_masks = 0, freq_width = 8, time_shift = 0;
  double time_share = 0.2, freq_warp = 0, gain = 0, noise = 0;
};
template <class V>
void visit_fields(V& v, AugmentSettings& s) {
  v("time_masks", s.time_masks, Range{0, 100}, "stretches of frames set to the mean");
  v("time_width", s.time_width, Range{1, 10000}, "most frames of one time mask");
  v("time_share", s.time_share, Range{0, 1}, "most of the clip that one time mask may cover");
  v("freq_masks", s.freq_masks, Range{0, 100}, "log_mel: ranges of bands set to the mean");
  v("freq_width", s.freq_width, Range{1, 512}, "most bands of one frequency mask");
  v("time_shift", s.time_shift, Range{0, 10000}, "move by up to so many frames either way; the end frames are repeated");
  v("freq_warp", s.freq_warp, Range{0, 0.5}, "stretch the band axis by up to this share, as another vocal tract would");
  v("gain", s.gain, Range{0, 10}, "log_mel: add one random number of this deviation to all bands");
  v("noise", s.noise, Range{0, 10}, "add noise of this deviation to every value");
}

// The stretch that freq_warp draws; 1 without it. For FeatureExtractor::stretch_bands, before the features are normalised.
double band_stretch(const AugmentSettings&, RngKey);

// The other changes, to normalised features. x: [frames, blocks * bands], features and then their deltas; labels: one a frame, or empty.
void augment(const AugmentSettings&, RngKey, std::span<float> x, i64 frames, i64 bands, i64 blocks, std::vector<i64>& labels);

}  // namespace tapeformer
