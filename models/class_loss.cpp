#include "models/class_loss.h"

#include "autograd/ops.h"

namespace tapeformer {

ClassLoss::ClassLoss(const ClassLossConfig& c, const DataInfo& data) : smoothing_(c.label_smoothing) {
  if (data.classes() < 2)
    throw ConfigError(fmt::format("data: the training part has {} label(s), a classifier needs at least 2", data.classes()));
  if (c.class_weights.empty()) return;
  if (static_cast<i64>(c.class_weights.size()) != data.classes())
    throw ConfigError(fmt::format("model.class_weights: got {} values, the data has {} classes: {}", c.class_weights.size(), data.classes(),
                                  join(data.labels)));
  weights_ = Tensor::from<double>(c.class_weights, {data.classes()});
}

Output ClassLoss::operator()(const Tensor& logits, const Tensor& labels, const Ctx& ctx) const {
  Output out{.logits = logits};
  if (!labels.defined()) return out;
  ops::CrossEntropyOptions o{.ignore = kIgnoreLabel};
  if (ctx.training) {
    o.smoothing = smoothing_;
    o.class_weights = weights_;
  }
  for (double label : labels.to_vector()) out.loss.count += label != kIgnoreLabel;
  out.loss.sum = ops::cross_entropy(logits, labels, o);
  return out;
}

}  // namespace tapeformer
