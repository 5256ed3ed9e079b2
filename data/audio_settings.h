// audio_settings.h: the keys of `data` for sound.
#pragma once
#include "data/acoustic_features.h"
#include "data/phone_labels.h"
#include "data/problems.h"
#include "data/spec_augment.h"

namespace tapeformer {

struct AudioColumns {
  std::string path = "path", label = "label", frames;
};
template <class V>
void visit_fields(V& v, AudioColumns& c) {
  v("path", c.path, "column of the sound file, relative to the manifest's folder");
  v("label", c.label, "column of the clip's label");
  v("frames", c.frames, "column of a .phn alignment; given: every frame gets a label, and the label column is not read");
}

struct AudioSettings {
  ConfigNode train, valid, test;
  AudioColumns columns;
  i64 sample_rate = 16000;
  FeatureSettings features;
  std::string normalise = "global";
  int stack = 1;
  double max_seconds = 0;
  std::string silence;
  FoldingSettings folding;
  AugmentSettings augment;
  std::string cache_dir;
  Policies policies;
  bool labels_frames() const { return !columns.frames.empty(); }
};
template <class V>
void visit_fields(V& v, AudioSettings& s) {
  v("train", s.train, "training manifest (TSV or CSV); labels and statistics are fitted on it");
  v("valid", s.valid, "clips to choose by while training");
  v("test", s.test, "clips to report on");
  v("columns", s.columns, "which column of the manifest holds what");
  v("sample_rate", s.sample_rate, Range{1000, 384000}, "Hz; other rates are resampled (telephone speech: 8000)");
  v("features", s.features, "what is computed from the sound");
  v("normalise", s.normalise, OneOf{"none", "utterance", "global"},
    "mean 0 and deviation 1 of each feature: over the clip, or over the training part");
  v("stack", s.stack, Range{1, 64}, "join so many frames into one, which shortens the clip as much");
  v("max_seconds", s.max_seconds, Range{0, 36000}, "longer clips keep their beginning; 0 = as long as the longest training clip");
  v("silence", s.silence, "frame labels: the phone outside all segments (TIMIT: h#); empty = such frames have no label");
  v("folding", s.folding, "frame labels: joins phones into classes");
  v("augment", s.augment, "random changes while training");
  v("cache_dir", s.cache_dir, "folder to keep computed features in; empty = none");
  visit_fields(v, s.policies);
}

AudioSettings read_audio_settings(const ConfigNode& data);  // ConfigError
ConfigNode write_audio_settings(const AudioSettings&);

}  // namespace tapeformer
