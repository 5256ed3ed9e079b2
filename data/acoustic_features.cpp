#include "data/acoustic_features.h"

#include <kiss_fftr.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tapeformer {
namespace {

constexpr int kDeltaReach = 2;  // frames on either side in the regression for deltas

using Fft = std::unique_ptr<std::remove_pointer_t<kiss_fftr_cfg>, void (*)(void*)>;

// The sample at i of a signal mirrored at both ends, without repeating the end samples.
float mirrored(std::span<const float> x, i64 i) {
  const auto n = static_cast<i64>(x.size());
  if (n == 1) return x[0];
  const i64 period = 2 * (n - 1);
  i64 at = ((i % period) + period) % period;
  if (at >= n) at = period - at;
  return x[static_cast<std::size_t>(at)];
}

std::vector<float> emphasised(std::span<const float> x, double share) {
  std::vector<float> y(x.begin(), x.end());
  for (std::size_t i = y.size(); i-- > 1;) y[i] -= static_cast<float>(share) * y[i - 1];
  return y;
}

// d_t = sum_k k (x_{t+k} - x_{t-k}) / (2 sum_k k^2), the ends repeated; columns [from, from + dim) into the next ones.
void append_delta(std::vector<float>& x, i64 frames, i64 stride, i64 from, i64 dim) {
  double norm = 0;
  for (int k = 1; k <= kDeltaReach; ++k) norm += 2.0 * k * k;
  const auto at = [&](i64 t, i64 f) {
    return static_cast<double>(x[static_cast<std::size_t>(std::clamp<i64>(t, 0, frames - 1) * stride + from + f)]);
  };
  for (i64 t = 0; t < frames; ++t)
    for (i64 f = 0; f < dim; ++f) {
      double sum = 0;
      for (int k = 1; k <= kDeltaReach; ++k) sum += k * (at(t + k, f) - at(t - k, f));
      x[static_cast<std::size_t>(t * stride + from + dim + f)] = static_cast<float>(sum / norm);
    }
}

i64 power_of_two(i64 at_least) {
  i64 n = 2;
  while (n < at_least) n *= 2;
  return n;
}

}  // namespace

double hertz_to_mel(double f) { return 2595.0 * std::log10(1.0 + f / 700.0); }
double mel_to_hertz(double m) { return 700.0 * (std::pow(10.0, m / 2595.0) - 1.0); }

FeatureExtractor::FeatureExtractor(const FeatureSettings& s, i64 rate)
    : settings_(s),
      rate_(rate),
      window_(std::llround(s.window_ms * 1e-3 * static_cast<double>(rate))),
      hop_(std::llround(s.hop_ms * 1e-3 * static_cast<double>(rate))),
      fft_size_(power_of_two(window_)) {
  const double nyquist = static_cast<double>(rate) / 2, fmax = s.fmax.value_or(nyquist);
  if (window_ < 2 || hop_ < 1)
    throw ConfigError(fmt::format("data.features: a window of {} and a hop of {} samples at {} Hz are too short", window_, hop_, rate));
  if (fmax > nyquist)
    throw ConfigError(fmt::format("data.features.fmax: got {}, expected at most half of data.sample_rate, {}", fmax, nyquist));
  if (s.fmin >= fmax) throw ConfigError(fmt::format("data.features.fmin: got {}, expected less than fmax, {}", s.fmin, fmax));
  if (s.type == "mfcc" && s.n_mfcc > s.n_mels)
    throw ConfigError(fmt::format("data.features.n_mfcc: got {}, expected at most n_mels, {}", s.n_mfcc, s.n_mels));
  for (i64 i = 0; i < window_; ++i)
    hann_.push_back(static_cast<float>(0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(window_))));
  make_filters(s.fmin, fmax);
  for (i64 k = 0; s.type == "mfcc" && k < s.n_mfcc; ++k)  // orthonormal DCT-II
    for (i64 m = 0; m < s.n_mels; ++m)
      cosines_.push_back(
          std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(s.n_mels)) *
          std::cos(std::numbers::pi * static_cast<double>(k) * (static_cast<double>(m) + 0.5) / static_cast<double>(s.n_mels)));
}

void FeatureExtractor::make_filters(double fmin, double fmax) {
  const i64 bins = fft_size_ / 2 + 1;
  const double low = hertz_to_mel(fmin), step = (hertz_to_mel(fmax) - low) / static_cast<double>(settings_.n_mels + 1);
  for (i64 m = 0; m < settings_.n_mels; ++m) {
    const double left = low + step * static_cast<double>(m);
    std::vector<double> weights(static_cast<std::size_t>(bins));
    bool any = false;
    for (i64 b = 0; b < bins; ++b) {
      const double mel = hertz_to_mel(static_cast<double>(b * rate_) / static_cast<double>(fft_size_));
      weights[static_cast<std::size_t>(b)] = std::max(0.0, 1.0 - std::abs(mel - left - step) / step);
      any = any || weights[static_cast<std::size_t>(b)] > 0;
    }
    if (!any)
      throw ConfigError(fmt::format(
          "data.features.n_mels: got {}, but band {} (near {:.0f} Hz) is narrower than the {:.1f} Hz between the "
          "frequencies of a {} sample window; expected fewer bands or a longer window",
          settings_.n_mels, m, mel_to_hertz(left + step), static_cast<double>(rate_) / static_cast<double>(fft_size_), fft_size_));
    filters_.push_back(std::move(weights));
  }
}

i64 FeatureExtractor::base_dim() const { return settings_.type == "mfcc" ? settings_.n_mfcc : settings_.n_mels; }
i64 FeatureExtractor::dim() const { return base_dim() * (1 + settings_.deltas); }

i64 FeatureExtractor::frames(i64 samples) const {
  if (samples < window_) return 0;
  return settings_.centre ? 1 + samples / hop_ : 1 + (samples - window_) / hop_;
}

i64 FeatureExtractor::centre_of(i64 frame) const { return frame * hop_ + (settings_.centre ? 0 : window_ / 2); }

void FeatureExtractor::base_features(std::span<const float> signal, float* out, i64 stride) const {
  const Fft fft(kiss_fftr_alloc(static_cast<int>(fft_size_), 0, nullptr, nullptr), [](void* p) { kiss_fftr_free(p); });
  const i64 bins = fft_size_ / 2 + 1, n = frames(static_cast<i64>(signal.size()));
  std::vector<float> windowed(static_cast<std::size_t>(fft_size_));
  std::vector<kiss_fft_cpx> spectrum(static_cast<std::size_t>(bins));
  std::vector<double> power(static_cast<std::size_t>(bins)), mels(static_cast<std::size_t>(settings_.n_mels));
  for (i64 t = 0; t < n; ++t) {
    const i64 start = centre_of(t) - window_ / 2;
    for (i64 i = 0; i < window_; ++i)
      windowed[static_cast<std::size_t>(i)] = hann_[static_cast<std::size_t>(i)] * mirrored(signal, start + i);
    kiss_fftr(fft.get(), windowed.data(), spectrum.data());
    for (std::size_t b = 0; b < power.size(); ++b)
      power[b] = static_cast<double>(spectrum[b].r) * spectrum[b].r + static_cast<double>(spectrum[b].i) * spectrum[b].i;
    for (std::size_t m = 0; m < mels.size(); ++m) {
      double energy = 0;
      for (std::size_t b = 0; b < power.size(); ++b) energy += filters_[m][b] * power[b];
      mels[m] = std::log(energy + settings_.floor);
    }
    float* row = out + t * stride;
    if (cosines_.empty()) std::copy(mels.begin(), mels.end(), row);
    for (std::size_t k = 0; k * mels.size() < cosines_.size(); ++k) {
      double sum = 0;
      for (std::size_t m = 0; m < mels.size(); ++m) sum += cosines_[k * mels.size() + m] * mels[m];
      row[k] = static_cast<float>(sum);
    }
  }
}

void FeatureExtractor::stretch_bands(std::span<float> features, i64 frames, double stretch) const {
  const i64 M = settings_.n_mels, base = base_dim();
  // out = C W C^T in, C the orthonormal cosines (the identity for log_mel), W the reading of the bands
  const auto cosine = [&](i64 k, i64 m) {
    return cosines_.empty() ? static_cast<double>(k == m) : cosines_[static_cast<std::size_t>(k * M + m)];
  };
  std::vector<double> matrix(static_cast<std::size_t>(base * base));
  for (i64 m = 0; m < M; ++m) {
    const double from = std::min(static_cast<double>(m) * stretch, static_cast<double>(M - 1));
    const i64 left = static_cast<i64>(from), right = std::min(left + 1, M - 1);
    const double share = from - static_cast<double>(left);
    for (i64 k = 0; k < base; ++k)
      for (i64 j = 0; j < base; ++j)
        matrix[static_cast<std::size_t>(k * base + j)] += cosine(k, m) * ((1 - share) * cosine(j, left) + share * cosine(j, right));
  }
  std::vector<double> old(static_cast<std::size_t>(base));
  for (i64 row = 0; row < frames * (1 + settings_.deltas); ++row) {
    float* x = features.data() + row * base;
    std::copy_n(x, base, old.begin());
    for (i64 k = 0; k < base; ++k) {
      double sum = 0;
      for (i64 j = 0; j < base; ++j) sum += matrix[static_cast<std::size_t>(k * base + j)] * old[static_cast<std::size_t>(j)];
      x[k] = static_cast<float>(sum);
    }
  }
}

std::vector<float> FeatureExtractor::operator()(std::span<const float> samples) const {
  const i64 n = frames(static_cast<i64>(samples.size())), stride = dim(), base = base_dim();
  std::vector<float> out(static_cast<std::size_t>(n * stride));
  if (n == 0) return out;
  if (settings_.preemphasis > 0)
    base_features(emphasised(samples, settings_.preemphasis), out.data(), stride);
  else
    base_features(samples, out.data(), stride);
  for (int d = 0; d < settings_.deltas; ++d) append_delta(out, n, stride, d * base, base);
  return out;
}

}  // namespace tapeformer
