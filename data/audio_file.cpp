#include "data/audio_file.h"

#include <fmt/format.h>
#include <samplerate.h>
#include <sndfile.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "core/error.h"

namespace tapeformer {
namespace {

constexpr i64 kMostSamples = i64{1} << 31;  // over all channels: 18 hours of 16 kHz stereo

using SoundFile = std::unique_ptr<SNDFILE, decltype(&sf_close)>;

SoundFile open(const std::string& path, SF_INFO& info) {
  if (!std::filesystem::exists(path)) throw IoError(path + ": no such file");
  SoundFile file(sf_open(path.c_str(), SFM_READ, &info), &sf_close);
  if (!file) throw IoError(fmt::format("{}: cannot be read as sound: {}", path, sf_strerror(nullptr)));
  if (info.channels < 1 || info.samplerate < 1)
    throw IoError(fmt::format("{}: has {} channels at {} Hz", path, info.channels, info.samplerate));
  return file;
}

std::vector<float> mix(const std::vector<float>& interleaved, int channels) {
  std::vector<float> mono(interleaved.size() / static_cast<std::size_t>(channels));
  for (std::size_t i = 0; i < mono.size(); ++i) {
    float sum = 0;
    for (int c = 0; c < channels; ++c) sum += interleaved[i * static_cast<std::size_t>(channels) + static_cast<std::size_t>(c)];
    mono[i] = sum / static_cast<float>(channels);
  }
  return mono;
}

}  // namespace

Audio read_audio(const std::string& path) {
  SF_INFO info{};
  const SoundFile file = open(path, info);
  if (info.frames < 0 || info.frames > kMostSamples / info.channels) throw IoError(fmt::format("{}: claims {} samples", path, info.frames));
  std::vector<float> all(static_cast<std::size_t>(info.frames * info.channels));
  const sf_count_t got = sf_readf_float(file.get(), all.data(), info.frames);
  if (got != info.frames) throw IoError(fmt::format("{}: ends after {} of {} samples", path, got, info.frames));
  for (float x : all)
    if (!std::isfinite(x)) throw DataError(path + ": holds a sample that is not a finite number");
  return {info.channels == 1 ? std::move(all) : mix(all, info.channels), info.samplerate};
}

Audio resample(Audio audio, i64 rate) {
  if (audio.rate == rate || audio.samples.empty()) {
    audio.rate = rate;
    return audio;
  }
  const double ratio = static_cast<double>(rate) / static_cast<double>(audio.rate);
  std::vector<float> out(static_cast<std::size_t>(std::ceil(static_cast<double>(audio.samples.size()) * ratio)) + 16);
  SRC_DATA job{};
  job.data_in = audio.samples.data();
  job.input_frames = static_cast<long>(audio.samples.size());
  job.data_out = out.data();
  job.output_frames = static_cast<long>(out.size());
  job.src_ratio = ratio;
  const int error = src_simple(&job, SRC_SINC_MEDIUM_QUALITY, 1);
  if (error != 0) throw DataError(fmt::format("cannot be resampled from {} to {} Hz: {}", audio.rate, rate, src_strerror(error)));
  out.resize(static_cast<std::size_t>(job.output_frames_gen));
  return {std::move(out), rate};
}

i64 audio_frames(const std::string& path) {
  SF_INFO info{};
  open(path, info);
  return info.frames;
}

}  // namespace tapeformer
