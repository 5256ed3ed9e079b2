// acoustic_features.h: log mel energies and cepstra (Davis and Mermelstein 1980) of short windows of sound.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/config.h"

namespace tapeformer {

struct FeatureSettings {
  std::string type = "log_mel";
  i64 n_mels = 40, n_mfcc = 13;
  int deltas = 0;
  double window_ms = 25, hop_ms = 10, fmin = 20;
  std::optional<double> fmax;
  double preemphasis = 0, floor = 1e-7;
  bool centre = true;
};
template <class V>
void visit_fields(V& v, FeatureSettings& s) {
  v("type", s.type, OneOf{"log_mel", "mfcc"}, "log_mel: logarithms of mel band energies; mfcc: their cosine transform");
  v("n_mels", s.n_mels, Range{2, 512}, "mel bands (HTK scale, triangles)");
  v("n_mfcc", s.n_mfcc, Range{1, 512}, "mfcc: coefficients kept, the zeroth included");
  v("deltas", s.deltas, Range{0, 2}, "append the first, and the second, derivative in time");
  v("window_ms", s.window_ms, Range{1, 1000}, "length of the Hann window in milliseconds");
  v("hop_ms", s.hop_ms, Range{0.5, 1000}, "time from frame to frame in milliseconds");
  v("fmin", s.fmin, Range{0, 1e6}, "lower edge of the lowest band in Hz");
  v("fmax", s.fmax, Range{1, 1e6}, "upper edge of the highest band in Hz; null = half the sample rate");
  v("preemphasis", s.preemphasis, Range{0, 1}, "subtract this share of the sample before (0.97 is usual, 0 = off)");
  v("floor", s.floor, Range{1e-30, 1}, "added to band energies before the logarithm");
  v("centre", s.centre, "true: frame i is centred on sample i * hop, the ends are mirrored; false: it starts there, whole windows only");
}

// Thread-safe: one extractor serves all threads.
class FeatureExtractor {
 public:
  FeatureExtractor(const FeatureSettings&, i64 sample_rate);            // ConfigError when the settings do not fit the rate
  i64 dim() const;                                                      // F, with deltas
  i64 base_dim() const;                                                 // F without deltas
  i64 frames(i64 samples) const;                                        // N; 0 when shorter than one window
  i64 centre_of(i64 frame) const;                                       // sample on which a frame is centred
  std::vector<float> operator()(std::span<const float> samples) const;  // [N, F], row-major
  // Reads the band axis of features [frames, F] at `stretch` times each band, between bands in a straight line, as a vocal tract of another
  // length would (Jaitly & Hinton 2013); cepstra through the bands that they stand for.
  void stretch_bands(std::span<float> features, i64 frames, double stretch) const;
  const std::vector<double>& filter(i64 band) const { return filters_.at(static_cast<std::size_t>(band)); }  // weight of each FFT bin
  i64 fft_size() const { return fft_size_; }

 private:
  void make_filters(double fmin, double fmax);
  void base_features(std::span<const float> signal, float* out, i64 stride) const;

  FeatureSettings settings_;
  i64 rate_, window_, hop_, fft_size_;
  std::vector<float> hann_;
  std::vector<std::vector<double>> filters_;
  std::vector<double> cosines_;  // [n_mfcc, n_mels]
};

double hertz_to_mel(double hertz);  // HTK: 2595 log10(1 + f / 700)
double mel_to_hertz(double mel);

}  // namespace tapeformer
