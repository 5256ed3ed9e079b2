// clips.h: the features of many sound files, computed in parallel and kept on disk when a folder for them is named.
#pragma once
#include <string>
#include <vector>

#include "data/acoustic_features.h"
#include "data/problems.h"

namespace tapeformer {

struct Clip {
  std::vector<float> values;  // [frames, dim], not normalised
  i64 frames = 0, rate = 0;   // rate: Hz of the file, before resampling
  Fault fault = Fault::Bad;   // what kind of problem
  std::string problem;        // why there are no features, or ""
};

class ClipReader {
 public:
  ClipReader(const FeatureSettings&, i64 sample_rate);
  const FeatureExtractor& extractor() const { return extractor_; }
  Clip read(const std::string& path) const;  // never throws for a bad file: see problem
  // cache_dir: "" = no cache. A cached set is found by the settings and the content of every file.
  std::vector<Clip> read_all(const std::vector<std::string>& paths, const std::string& cache_dir) const;

 private:
  std::vector<Clip> compute(const std::vector<std::string>& paths) const;
  std::string cache_key(const std::vector<std::string>& paths) const;
  FeatureExtractor extractor_;
  i64 sample_rate_;
  std::string settings_;  // everything that the values depend on
};

}  // namespace tapeformer
