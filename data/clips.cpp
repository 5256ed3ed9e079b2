#include "data/clips.h"

#include <xxhash.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/hdf5_file.h"
#include "core/log.h"
#include "core/parallel.h"
#include "data/audio_file.h"

namespace tapeformer {
namespace {

constexpr int kCacheVersion = 1;  // raised when the same settings give other values

std::string file_content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

void save_clips(const std::string& path, const std::vector<Clip>& clips, i64 dim) {
  std::vector<float> values;
  std::vector<i64> frames, rates;
  for (const Clip& clip : clips) {
    values.insert(values.end(), clip.values.begin(), clip.values.end());
    frames.push_back(clip.frames);
    rates.push_back(clip.rate);
  }
  save_checked(path, [&](Hdf5File& file) {
    file.write("/features", Tensor::from(values, {static_cast<i64>(values.size()) / dim, dim}));
    file.write("/frames", Tensor::from(frames, {static_cast<i64>(frames.size())}));
    file.write("/rates", Tensor::from(rates, {static_cast<i64>(rates.size())}));
  });
}

std::vector<Clip> load_clips(const std::string& path, std::size_t count, i64 dim) {
  const Hdf5File file = open_checked(path);
  const Tensor values = file.read("/features"), frames = file.read("/frames"), rates = file.read("/rates");
  std::vector<Clip> clips(count);
  std::span<const float> rest = values.data<float>();
  for (std::size_t i = 0; i < count; ++i) {
    clips[i].frames = frames.data<i64>()[i];
    clips[i].rate = rates.data<i64>()[i];
    const auto size = static_cast<std::size_t>(clips[i].frames * dim);
    clips[i].values.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size));
    rest = rest.subspan(size);
  }
  return clips;
}

}  // namespace

ClipReader::ClipReader(const FeatureSettings& s, i64 sample_rate) : extractor_(s, sample_rate), sample_rate_(sample_rate) {
  settings_ = fmt::format("{} {} {}", kCacheVersion, sample_rate, write_config(s).json());
}

Clip ClipReader::read(const std::string& path) const {
  Clip clip;
  try {
    Audio audio = read_audio(path);
    clip.rate = audio.rate;
    const double seconds = static_cast<double>(audio.samples.size()) / static_cast<double>(audio.rate);
    audio = resample(std::move(audio), sample_rate_);
    clip.frames = extractor_.frames(static_cast<i64>(audio.samples.size()));
    clip.values = extractor_(audio.samples);
    if (clip.frames == 0) {
      clip.fault = Fault::Empty;
      clip.problem = fmt::format("{}: lasts {:.1f} ms, shorter than one window", path, seconds * 1e3);
    }
  } catch (const Error& e) {
    clip.problem = e.what();
  }
  return clip;
}

std::vector<Clip> ClipReader::compute(const std::vector<std::string>& paths) const {
  std::vector<Clip> clips(paths.size());
  parallel_for(static_cast<i64>(paths.size()), 4, [&](i64 begin, i64 end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) clips[i] = read(paths[i]);
  });
  return clips;
}

std::string ClipReader::cache_key(const std::vector<std::string>& paths) const {
  std::vector<XXH64_hash_t> hashes(paths.size() + 1);
  parallel_for(static_cast<i64>(paths.size()), 16, [&](i64 begin, i64 end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const std::string content = file_content(paths[i]);
      hashes[i] = XXH3_64bits(content.data(), content.size());
    }
  });
  hashes.back() = XXH3_64bits(settings_.data(), settings_.size());
  const XXH128_hash_t all = XXH3_128bits(hashes.data(), hashes.size() * sizeof hashes[0]);
  return fmt::format("{:016x}{:016x}", all.high64, all.low64);
}

std::vector<Clip> ClipReader::read_all(const std::vector<std::string>& paths, const std::string& cache_dir) const {
  if (cache_dir.empty()) return compute(paths);
  const std::string file = (std::filesystem::path(cache_dir) / (cache_key(paths) + ".h5")).string();
  if (std::filesystem::exists(file)) {
    try {
      return load_clips(file, paths.size(), extractor_.dim());
    } catch (const Error& e) {
      log::warn(fmt::format("{}: computed again: {}", file, e.what()));
    }
  }
  std::vector<Clip> clips = compute(paths);
  for (const Clip& clip : clips)
    if (!clip.problem.empty()) return clips;
  std::filesystem::create_directories(cache_dir);
  save_clips(file, clips, extractor_.dim());
  return clips;
}

}  // namespace tapeformer
