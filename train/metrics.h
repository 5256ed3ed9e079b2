// metrics.h: what a set of predictions is worth, as sums that add up over batches and processes: the confusion matrix and the loss.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

class Metrics {
 public:
  explicit Metrics(i64 classes = 0);
  // logits [..., C], labels i64 [...]; positions labelled kIgnoreLabel take no part. The largest logit counts, the first of equal ones.
  void add(const Tensor& logits, const Tensor& labels);
  void add_loss(double sum, double count);
  void add(const Metrics&);

  i64 classes() const { return classes_; }
  i64 count() const;  // labelled positions
  i64 at(i64 label, i64 predicted) const { return confusion_[static_cast<std::size_t>(label * classes_ + predicted)]; }
  double loss() const;      // mean; NaN without labels
  double accuracy() const;  // 0 without labels
  double macro_f1() const;  // over the classes that occur as label or prediction
  struct OfClass {
    double precision = 0, recall = 0, f1 = 0;
    i64 support = 0;
  };
  OfClass of_class(i64) const;
  double majority() const;                        // accuracy of always saying the most frequent label
  double score(const std::string& metric) const;  // accuracy, macro_f1 or loss, negated where lower is better
  double value(const std::string& metric) const;

 private:
  i64 classes_;
  std::vector<i64> confusion_;  // [label, predicted]
  double loss_sum_ = 0, loss_count_ = 0;
};

}  // namespace tapeformer
