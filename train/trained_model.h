// trained_model.h: a model read back from a checkpoint, ready to evaluate or predict with: weights, tokenizer or feature settings, labels.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "train/checkpoint.h"
#include "train/config.h"
#include "train/evaluation.h"

namespace tapeformer {

// A checkpoint file, or a run directory: its best checkpoint, or its last where there is no best. IoError when there is none.
std::string find_checkpoint(const std::string& path);

struct Prediction {
  i64 classes = 0;
  std::vector<float> probabilities;  // [positions, classes]: one position a sequence, or one a frame
  i64 positions() const { return classes > 0 ? static_cast<i64>(probabilities.size()) / classes : 0; }
  std::span<const float> at(i64 position) const { return {probabilities.data() + position * classes, static_cast<std::size_t>(classes)}; }
  std::vector<i64> top(i64 position, i64 k) const;  // the k likeliest classes, likeliest first
};

class TrainedModel {
 public:
  explicit TrainedModel(const std::string& path, int threads = 0);
  const RunConfig& config() const { return config_; }
  const Preprocessor& preprocessor() const { return *preprocessor_; }
  const DataInfo& info() const { return preprocessor_->info(); }
  const std::string& file() const { return file_; }
  Model& model() { return *model_; }
  std::unique_ptr<Dataset> dataset(Part) const;  // as the configuration names it; ConfigError when it names none
  Metrics evaluate(const Dataset&, const EachBatch& = {}) const;
  std::vector<Prediction> predict(const std::vector<Sample>&) const;  // as one batch

 private:
  std::string file_;
  RunConfig config_;
  std::shared_ptr<Preprocessor> preprocessor_;
  std::unique_ptr<Model> model_;
};

// Row b of a batch's output.
Prediction prediction_of(const Output&, const Batch&, i64 row, const DataInfo&);

}  // namespace tapeformer
