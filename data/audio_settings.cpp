#include "data/audio_settings.h"

namespace tapeformer {
namespace {

void validate(const AudioSettings& s, const ConfigNode& data) {
  std::vector<std::string> errors;
  const auto complain = [&](const char* key, const std::string& what) {
    errors.push_back(fmt::format("{}.{}: {}", data.path().empty() ? "data" : data.path(), key, what));
  };
  if (s.labels_frames() && s.stack > 1) complain("stack", fmt::format("got {}, expected 1 with frame labels (columns.frames)", s.stack));
  if (!s.labels_frames() && !s.silence.empty()) complain("silence", "is for frame labels, which need columns.frames");
  if (!s.labels_frames() && !s.folding.file.empty()) complain("folding", "is for frame labels, which need columns.frames");
  if (!s.folding.file.empty() && s.folding.to.empty()) complain("folding.to", "got nothing, expected the column that holds the class");
  if (s.features.type != "log_mel" && (s.augment.freq_masks > 0 || s.augment.gain > 0))
    complain("augment", "freq_masks and gain need features.type: log_mel");
  if (!errors.empty()) throw ConfigError(join(errors, "\n"));
  FeatureExtractor(s.features, s.sample_rate);
}

}  // namespace

AudioSettings read_audio_settings(const ConfigNode& data) {
  AudioSettings s = read_config<AudioSettings>(data, AudioSettings(), {"type"});
  validate(s, data);
  return s;
}

ConfigNode write_audio_settings(const AudioSettings& s) {
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("audio"));
  const ConfigNode fields = write_config(s);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  return out;
}

}  // namespace tapeformer
