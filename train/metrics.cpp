#include "train/metrics.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "data/dataset.h"

namespace tapeformer {

Metrics::Metrics(i64 classes) : classes_(classes), confusion_(static_cast<std::size_t>(classes * classes), 0) {}

void Metrics::add(const Tensor& logits, const Tensor& labels) {
  if (logits.dim(-1) != classes_ || logits.numel() != labels.numel() * classes_)
    throw ShapeError("[metrics] got logits " + logits.shape().str() + " and labels " + labels.shape().str() + ", expected [..., " +
                     std::to_string(classes_) + "] and [...]");
  const Tensor flat = logits.to(DType::F32).to_contiguous();
  const auto x = flat.data<float>();
  const auto y = labels.data<i64>();
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] == kIgnoreLabel) continue;
    if (y[i] < 0 || y[i] >= classes_)
      throw ShapeError("[metrics] got label " + std::to_string(y[i]) + ", expected 0 to " + std::to_string(classes_ - 1));
    const auto row = x.begin() + static_cast<std::ptrdiff_t>(i) * classes_;
    const i64 best = std::max_element(row, row + classes_) - row;
    ++confusion_[static_cast<std::size_t>(y[i] * classes_ + best)];
  }
}

void Metrics::add_loss(double sum, double count) {
  loss_sum_ += sum;
  loss_count_ += count;
}

void Metrics::add(const Metrics& other) {
  TAPEFORMER_ASSERT(classes_ == other.classes_, "metrics of other classes are added");
  for (std::size_t i = 0; i < confusion_.size(); ++i) confusion_[i] += other.confusion_[i];
  add_loss(other.loss_sum_, other.loss_count_);
}

i64 Metrics::count() const { return std::accumulate(confusion_.begin(), confusion_.end(), i64{0}); }

double Metrics::loss() const { return loss_count_ > 0 ? loss_sum_ / loss_count_ : std::numeric_limits<double>::quiet_NaN(); }

double Metrics::accuracy() const {
  i64 right = 0;
  for (i64 c = 0; c < classes_; ++c) right += at(c, c);
  const i64 n = count();
  return n > 0 ? static_cast<double>(right) / static_cast<double>(n) : 0;
}

Metrics::OfClass Metrics::of_class(i64 c) const {
  OfClass out;
  i64 predicted = 0;
  for (i64 k = 0; k < classes_; ++k) {
    out.support += at(c, k);
    predicted += at(k, c);
  }
  const double right = static_cast<double>(at(c, c));
  if (predicted > 0) out.precision = right / static_cast<double>(predicted);
  if (out.support > 0) out.recall = right / static_cast<double>(out.support);
  if (predicted + out.support > 0) out.f1 = 2 * right / static_cast<double>(predicted + out.support);
  return out;
}

double Metrics::macro_f1() const {
  double sum = 0;
  i64 seen = 0;
  for (i64 c = 0; c < classes_; ++c) {
    i64 any = 0;
    for (i64 k = 0; k < classes_; ++k) any += at(c, k) + at(k, c);
    if (any == 0) continue;
    sum += of_class(c).f1;
    ++seen;
  }
  return seen > 0 ? sum / static_cast<double>(seen) : 0;
}

double Metrics::majority() const {
  i64 most = 0;
  for (i64 c = 0; c < classes_; ++c) most = std::max(most, of_class(c).support);
  return count() > 0 ? static_cast<double>(most) / static_cast<double>(count()) : 0;
}

double Metrics::value(const std::string& metric) const {
  if (metric == "loss") return loss();
  if (metric == "macro_f1") return macro_f1();
  return accuracy();
}

double Metrics::score(const std::string& metric) const { return metric == "loss" ? -loss() : value(metric); }

}  // namespace tapeformer
