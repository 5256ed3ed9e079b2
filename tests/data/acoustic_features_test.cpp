#include "data/acoustic_features.h"

#include <algorithm>
#include <complex>

#include "core/rng.h"
#include "data/audio_file.h"
#include "data/spec_augment.h"
#include "data/standardiser.h"
#include "sound_writer.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

std::vector<float> noise(std::size_t n, std::uint64_t seed) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(0.2 * RngKey(seed).normal(i));
  return out;
}

// One frame's log mel energies with plain loops: mirrored ends, Hann window, DFT, triangles on the mel scale.
std::vector<double> plain_log_mel(const std::vector<float>& x, i64 frame, const FeatureSettings& s, i64 rate, i64 window, i64 hop,
                                  i64 fft) {
  const auto n = static_cast<i64>(x.size());
  std::vector<double> power;
  for (i64 b = 0; b <= fft / 2; ++b) {
    std::complex<double> sum = 0;
    for (i64 i = 0; i < window; ++i) {
      i64 at = frame * hop - window / 2 + i;
      if (at < 0) at = -at;
      if (at >= n) at = 2 * (n - 1) - at;
      const double hann = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(window));
      sum += hann * x[static_cast<std::size_t>(at)] *
             std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(b * i) / static_cast<double>(fft));
    }
    power.push_back(std::norm(sum));
  }
  const auto mel = [](double f) { return 2595 * std::log10(1 + f / 700); };
  const double low = mel(s.fmin), step = (mel(static_cast<double>(rate) / 2) - low) / static_cast<double>(s.n_mels + 1);
  std::vector<double> out;
  for (i64 m = 0; m < s.n_mels; ++m) {
    double energy = 0;
    for (i64 b = 0; b <= fft / 2; ++b) {
      const double at = (mel(static_cast<double>(b * rate) / static_cast<double>(fft)) - low) / step - static_cast<double>(m);
      energy += std::max(0.0, at < 1 ? at : 2 - at) * power[static_cast<std::size_t>(b)];
    }
    out.push_back(std::log(energy + s.floor));
  }
  return out;
}

TEST(AcousticFeatures, StretchedBands) {
  const std::vector<float> x = noise(2000, 3);
  FeatureSettings bands{.n_mels = 20, .deltas = 1};
  const FeatureExtractor log_mel(bands, 8000);
  const std::vector<float> plain = log_mel(x);
  const i64 frames = log_mel.frames(2000), F = log_mel.dim();
  std::vector<float> same = plain, wide = plain;
  log_mel.stretch_bands(same, frames, 1);
  EXPECT_EQ(same, plain);
  log_mel.stretch_bands(wide, frames, 1.25);
  for (i64 t = 0; t < frames; ++t)
    for (i64 block = 0; block < 2; ++block) {
      const auto old = [&](i64 m) { return plain[static_cast<std::size_t>(t * F + block * 20 + std::min<i64>(m, 19))]; };
      const auto now = [&](i64 m) { return wide[static_cast<std::size_t>(t * F + block * 20 + m)]; };
      EXPECT_NEAR(now(4), old(5), 1e-5);                          // 4 * 1.25
      EXPECT_NEAR(now(10), 0.5 * old(12) + 0.5 * old(13), 1e-5);  // 12.5
      EXPECT_NEAR(now(19), old(19), 1e-5);                        // the last band stands for what lies above it
    }
  // With every coefficient kept, stretched cepstra are the cosine transform of stretched bands.
  FeatureSettings all{.type = "mfcc", .n_mels = 20, .n_mfcc = 20, .deltas = 1};
  const FeatureExtractor mfcc(all, 8000);
  std::vector<float> cepstra = mfcc(x);
  mfcc.stretch_bands(cepstra, frames, 1.25);
  for (i64 t = 0; t < frames; ++t)
    for (i64 k = 0; k < 20; ++k) {
      double sum = 0;
      for (i64 m = 0; m < 20; ++m)
        sum += std::sqrt((k == 0 ? 1.0 : 2.0) / 20) *
               std::cos(std::numbers::pi * static_cast<double>(k) * (static_cast<double>(m) + 0.5) / 20) *
               wide[static_cast<std::size_t>(t * F + m)];
      EXPECT_NEAR(cepstra[static_cast<std::size_t>(t * F + k)], sum, 1e-4);
    }
}

TEST(AcousticFeatures, LogMelAsByPlainLoops) {
  const std::vector<float> x = noise(1003, 1);
  FeatureSettings s;
  const FeatureExtractor extract(s, 8000);  // window 200, hop 80, FFT 256
  EXPECT_EQ(extract.fft_size(), 256);
  const std::vector<float> y = extract(x);
  const i64 frames = extract.frames(1003);
  EXPECT_EQ(frames, 13);
  for (i64 t : {i64{0}, i64{1}, i64{6}, frames - 1}) {
    const std::vector<double> expected = plain_log_mel(x, t, s, 8000, 200, 80, 256);
    for (i64 m = 0; m < 40; ++m)
      EXPECT_NEAR(y[static_cast<std::size_t>(t * 40 + m)], expected[static_cast<std::size_t>(m)], 2e-4) << t << " " << m;
  }
}

TEST(AcousticFeatures, MfccIsTheOrthonormalCosineTransform) {
  const std::vector<float> x = noise(900, 2);
  FeatureSettings s, c;
  c.type = "mfcc";
  c.n_mfcc = s.n_mels;
  const std::vector<float> mel = FeatureExtractor(s, 8000)(x), cepstra = FeatureExtractor(c, 8000)(x);
  for (int k = 0; k < 40; ++k) {
    double sum = 0;
    for (int m = 0; m < 40; ++m)
      sum += mel[static_cast<std::size_t>(m)] * std::cos(std::numbers::pi * k * (2 * m + 1) / 80.0) * std::sqrt((k ? 2.0 : 1.0) / 40);
    EXPECT_NEAR(cepstra[static_cast<std::size_t>(k)], sum, 1e-3);
  }
  c.n_mfcc = 13;
  EXPECT_EQ(FeatureExtractor(c, 8000).dim(), 13);
}

TEST(AcousticFeatures, SinePeaksInItsBand) {
  FeatureSettings s;
  const FeatureExtractor extract(s, 16000);
  for (double hertz : {300.0, 1000.0, 3500.0, 7000.0}) {
    const std::vector<float> y = extract(sine(hertz, 16000, 8000));
    const auto row = y.begin() + 25 * 40;
    const auto band = std::max_element(row, row + 40) - row;
    const double step = (hertz_to_mel(8000) - hertz_to_mel(20)) / 41;
    EXPECT_LE(std::abs(hertz_to_mel(hertz) - hertz_to_mel(20) - step * static_cast<double>(band + 1)), step * 0.75) << hertz;
  }
  EXPECT_NEAR(mel_to_hertz(hertz_to_mel(440)), 440, 1e-9);
}

TEST(AcousticFeatures, DeltasAreSlopes) {
  FeatureSettings s;
  s.deltas = 2;
  const FeatureExtractor extract(s, 8000);
  EXPECT_EQ(extract.dim(), 120);
  std::vector<float> x = noise(4000, 3);
  const std::vector<float> y = extract(x);
  const auto at = [&](i64 t, i64 f) { return static_cast<double>(y[static_cast<std::size_t>(t * 120 + f)]); };
  for (i64 t : {10, 20})
    for (i64 f : {0, 17, 39}) {
      EXPECT_NEAR(at(t, 40 + f), (2 * (at(t + 2, f) - at(t - 2, f)) + at(t + 1, f) - at(t - 1, f)) / 10, 1e-5);
      EXPECT_NEAR(at(t, 80 + f), (2 * (at(t + 2, 40 + f) - at(t - 2, 40 + f)) + at(t + 1, 40 + f) - at(t - 1, 40 + f)) / 10, 1e-5);
    }
}

TEST(AcousticFeatures, FrameCountsAndCentres) {
  FeatureSettings s;
  const FeatureExtractor centred(s, 16000);
  EXPECT_EQ(centred.frames(399), 0);
  EXPECT_EQ(centred.frames(400), 3);
  EXPECT_EQ(centred.frames(16000), 101);
  EXPECT_EQ(centred.centre_of(7), 1120);
  s.centre = false;
  const FeatureExtractor whole(s, 16000);
  EXPECT_EQ(whole.frames(400), 1);
  EXPECT_EQ(whole.frames(16000), 98);
  EXPECT_EQ(whole.centre_of(0), 200);
  // Frame t of the plain grid is the centred frame whose middle is 200 samples on: the same window of the same sound.
  s.hop_ms = 12.5;
  const std::vector<float> x = noise(4000, 4);
  FeatureSettings c = s;
  c.centre = true;
  const std::vector<float> a = FeatureExtractor(s, 16000)(x), b = FeatureExtractor(c, 16000)(x);
  for (std::size_t i = 0; i < 400; ++i) EXPECT_NEAR(a[i], b[40 + i], 1e-5);
}

TEST(AcousticFeatures, Mistakes) {
  FeatureSettings s;
  s.fmax = 5000;
  EXPECT_TRUE(contains(message_of([&] { FeatureExtractor(s, 8000); }),
                       "data.features.fmax: got 5000, expected at most half of data.sample_rate, 4000"));
  s.fmax = 10;
  EXPECT_TRUE(contains(message_of([&] { FeatureExtractor(s, 8000); }), "data.features.fmin: got 20, expected less than fmax, 10"));
  s.fmax.reset();
  s.n_mels = 200;
  EXPECT_TRUE(contains(message_of([&] { FeatureExtractor(s, 8000); }), "is narrower than the 31.2 Hz"));
  s = {};
  s.type = "mfcc";
  s.n_mfcc = 41;
  EXPECT_TRUE(contains(message_of([&] { FeatureExtractor(s, 8000); }), "n_mfcc: got 41, expected at most n_mels, 40"));
}

TEST(AudioFile, StereoWidthsAndFormats) {
  TempDir dir;
  const std::vector<float> tone = sine(440, 8000, 2000);
  std::vector<float> stereo;
  for (float x : tone) stereo.insert(stereo.end(), {x, 0.5f * x});
  for (int format : {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_WAV | SF_FORMAT_PCM_24, SF_FORMAT_WAV | SF_FORMAT_FLOAT,
                     SF_FORMAT_FLAC | SF_FORMAT_PCM_16}) {
    const Audio a = read_audio(write_sound(dir / "s.wav", stereo, 8000, 2, format));
    EXPECT_EQ(a.rate, 8000);
    ASSERT_EQ(a.samples.size(), tone.size());
    for (std::size_t i = 0; i < tone.size(); ++i) ASSERT_NEAR(a.samples[i], 0.75f * tone[i], 1e-4);
  }
  EXPECT_NEAR(static_cast<double>(read_audio(write_sound(dir / "s.ogg", tone, 8000, 1, SF_FORMAT_OGG | SF_FORMAT_VORBIS)).samples.size()),
              2000, 200);
  EXPECT_EQ(audio_frames(dir / "s.wav"), 2000);
}

TEST(AudioFile, ResamplingKeepsTheTone) {
  for (int from : {8000, 11025, 44100, 48000}) {
    const Audio a = resample({sine(440, from, static_cast<std::size_t>(from)), from}, 16000);
    EXPECT_NEAR(static_cast<double>(a.samples.size()), 16000, 2);
    const std::vector<float> expected = sine(440, 16000, 16000);
    for (std::size_t i = 2000; i < 14000; ++i) ASSERT_NEAR(a.samples[i], expected[i], 5e-3) << from;
  }
}

TEST(AudioFile, FilesThatCannotBeRead) {
  TempDir dir;
  EXPECT_TRUE(contains(message_of([&] { read_audio(dir / "none.wav"); }), "none.wav: no such file"));
  EXPECT_TRUE(contains(message_of([&] { read_audio(dir.write("text.wav", "hello, hello")); }), "text.wav: cannot be read as sound"));
  EXPECT_TRUE(contains(message_of([&] { read_audio(dir.write("empty.wav", "")); }), "empty.wav: cannot be read as sound"));
  EXPECT_TRUE(contains(message_of([&] {
                         read_audio(write_sound(dir / "nan.wav", {0, NAN, 0}, 8000, 1, SF_FORMAT_WAV | SF_FORMAT_FLOAT));
                       }),
                       "not a finite number"));
}

TEST(Standardiser, MeanZeroDeviationOne) {
  const std::vector<float> a{1, 5, 3, 5}, b{8, 5};
  const Standardiser s = Standardiser::fit({a, b}, 2);
  std::vector<float> x{1, 5, 3, 5, 8, 5};
  s.apply(x);
  EXPECT_NEAR(x[0] + x[2] + x[4], 0, 1e-5);
  EXPECT_NEAR((x[0] * x[0] + x[2] * x[2] + x[4] * x[4]) / 3, 1, 1e-5);
  EXPECT_EQ(x[1], 0);
}

TEST(SpecAugment, MasksShiftsAndRepeats) {
  AugmentSettings s;
  s.time_masks = 2;
  s.freq_masks = 1;
  s.freq_width = 3;
  bool time_seen = false, band_seen = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<float> x(30 * 20, 1.0f), y = x;
    std::vector<i64> none;
    augment(s, RngKey(seed), x, 30, 10, 2, none);
    augment(s, RngKey(seed), y, 30, 10, 2, none);
    EXPECT_EQ(x, y);
    i64 frames = 0, bands = 0;
    for (i64 t = 0; t < 30; ++t) frames += std::all_of(x.begin() + t * 20, x.begin() + (t + 1) * 20, [](float v) { return v == 0; });
    for (i64 f = 0; f < 10; ++f) {
      bool masked = true;
      for (i64 t = 0; t < 30; ++t)
        masked = masked && x[static_cast<std::size_t>(t * 20 + f)] == 0 && x[static_cast<std::size_t>(t * 20 + 10 + f)] == 0;
      bands += masked;
    }
    EXPECT_LE(frames, 12);  // two masks of at most a fifth
    EXPECT_LE(bands, 3);
    time_seen = time_seen || frames > 0;
    band_seen = band_seen || bands > 0;
  }
  EXPECT_TRUE(time_seen && band_seen);
}

TEST(SpecAugment, ShiftMovesLabelsWithFrames) {
  AugmentSettings s;
  s.time_shift = 3;
  std::vector<float> x{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<i64> labels{0, 1, 2, 3, 4, 5, 6, 7};
  augment(s, RngKey(2), x, 8, 1, 1, labels);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(static_cast<i64>(x[i]), labels[i]);
}

TEST(SpecAugment, NothingByDefault) {
  std::vector<float> x{0, 1, 2, 3}, y = x;
  std::vector<i64> labels;
  augment({}, RngKey(2), x, 4, 1, 1, labels);
  EXPECT_EQ(x, y);
}

}  // namespace
}  // namespace tapeformer
