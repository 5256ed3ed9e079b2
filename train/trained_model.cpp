#include "train/trained_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "train/run.h"

namespace tapeformer {

namespace fs = std::filesystem;

std::string find_checkpoint(const std::string& path) {
  if (!fs::exists(path)) throw IoError(path + ": no such file or run directory");
  if (!fs::is_directory(path)) return path;
  for (const char* name : {"checkpoints/best.h5", "checkpoints/last.h5", "best.h5", "last.h5"})
    if (fs::exists(fs::path(path) / name)) return (fs::path(path) / name).string();
  throw IoError(path + ": holds no checkpoint (looked for checkpoints/best.h5 and checkpoints/last.h5)");
}

std::vector<i64> Prediction::top(i64 position, i64 k) const {
  std::vector<i64> order(static_cast<std::size_t>(classes));
  std::iota(order.begin(), order.end(), i64{0});
  const auto p = at(position);
  std::stable_sort(order.begin(), order.end(),
                   [&](i64 a, i64 b) { return p[static_cast<std::size_t>(a)] > p[static_cast<std::size_t>(b)]; });
  order.resize(static_cast<std::size_t>(std::min(k, classes)));
  return order;
}

TrainedModel::TrainedModel(const std::string& path, int threads) : file_(find_checkpoint(path)) {
  const Checkpoint checkpoint(file_);
  config_ = resolve_run_config(checkpoint.config());
  apply_settings(config_, threads);
  preprocessor_ = checkpoint.preprocessor();
  model_ = build_model(config_.model, preprocessor_->info(), RngKey(static_cast<std::uint64_t>(config_.seed)).fold_in("init"));
  checkpoint.load_best_weights(*model_);
}

std::unique_ptr<Dataset> TrainedModel::dataset(Part part) const {
  ConfigNode data = config_.data;
  for (Part other : {Part::Train, Part::Valid, Part::Test})
    if (other != part) data.erase(name_of(other));
  DataSet set = load_data(data, preprocessor_);
  std::unique_ptr<Dataset> found = std::move(part == Part::Train ? set.train : part == Part::Valid ? set.valid : set.test);
  if (!found)
    throw ConfigError(
        fmt::format("{}: its configuration names no {} data; give some with --data or choose another --split", file_, name_of(part)));
  return found;
}

Metrics TrainedModel::evaluate(const Dataset& data, const EachBatch& each) const {
  return tapeformer::evaluate(*model_, data, info(), config_.train, each);
}

Prediction prediction_of(const Output& out, const Batch& batch, i64 row, const DataInfo& info) {
  const i64 classes = out.logits.dim(-1);
  i64 positions = 1, stride = 1;
  if (info.target == DataInfo::Target::Frame) {
    stride = out.logits.dim(1);
    const auto mask =
        batch.mask.data<std::uint8_t>().subspan(static_cast<std::size_t>(row * batch.length()), static_cast<std::size_t>(batch.length()));
    positions = std::min<i64>(stride, std::count(mask.begin(), mask.end(), 1));
  }
  const Tensor logits = out.logits.to_contiguous();
  const auto x = logits.data<float>().subspan(static_cast<std::size_t>(row * stride * classes));
  Prediction p;
  p.classes = classes;
  for (i64 n = 0; n < positions; ++n) {
    const auto z = x.subspan(static_cast<std::size_t>(n * classes), static_cast<std::size_t>(classes));
    const double most = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (float v : z) sum += std::exp(v - most);
    for (float v : z) p.probabilities.push_back(static_cast<float>(std::exp(v - most) / sum));
  }
  return p;
}

std::vector<Prediction> TrainedModel::predict(const std::vector<Sample>& samples) const {
  if (samples.empty()) return {};
  std::vector<i64> rows(samples.size());
  std::iota(rows.begin(), rows.end(), i64{0});
  const NoGrad no_grad;
  const kernels::PrecisionScope precision(math_of(config_.train));
  const Batch batch = collate(samples, rows, info());
  const Output out = model_->forward(batch, {.rows = batch.rows});
  std::vector<Prediction> predictions;
  for (i64 row = 0; row < batch.size(); ++row) predictions.push_back(prediction_of(out, batch, row, info()));
  return predictions;
}

}  // namespace tapeformer
