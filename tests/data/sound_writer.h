// sound_writer.h: sound files for tests.
#pragma once
#include <sndfile.h>

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

namespace tapeformer {

inline std::vector<float> sine(double hertz, double rate, std::size_t samples, double level = 0.5) {
  std::vector<float> out(samples);
  for (std::size_t i = 0; i < samples; ++i)
    out[i] = static_cast<float>(level * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  return out;
}

// samples: interleaved channels
inline std::string write_sound(const std::string& path, const std::vector<float>& samples, int rate, int channels = 1,
                               int format = SF_FORMAT_WAV | SF_FORMAT_PCM_16) {
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = channels;
  info.format = format;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  if (file == nullptr) throw std::runtime_error(path + ": " + sf_strerror(nullptr));
  sf_writef_float(file, samples.data(), static_cast<sf_count_t>(samples.size()) / channels);
  sf_close(file);
  return path;
}

}  // namespace tapeformer
