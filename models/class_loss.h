// class_loss.h: cross-entropy of class labels, with smoothing and class weights in training.
#pragma once
#include <vector>

#include "models/model.h"

namespace tapeformer {

struct ClassLossConfig {
  double label_smoothing = 0;
  std::vector<double> class_weights;
};
template <class V>
void visit_fields(V& v, ClassLossConfig& c) {
  v("label_smoothing", c.label_smoothing, Range{0, 0.9}, "share of the target spread over all classes, in training");
  v("class_weights", c.class_weights, above(0), "factor of each class in the training loss, in label order; [] = 1 each");
}

class ClassLoss {
 public:
  ClassLoss(const ClassLossConfig&, const DataInfo&);  // ConfigError: fewer than two classes, another number of weights
  // logits [..., C], labels i64 [...]; loss.sum undefined where there are no labels
  Output operator()(const Tensor& logits, const Tensor& labels, const Ctx&) const;

 private:
  double smoothing_;
  Tensor weights_;  // [C] or undefined
};

}  // namespace tapeformer
