#include "train/evaluation.h"

namespace tapeformer {

LoaderConfig evaluation_batches(const TrainConfig& c) {
  LoaderConfig l;
  l.batch_size = c.eval_batch_size;
  l.token_budget = c.token_budget;
  l.bucket = c.bucket;
  l.prefetch = c.prefetch;
  l.shuffle = l.augment = false;
  return l;
}

Metrics evaluate(const Model& model, const Dataset& data, const DataInfo& info, const TrainConfig& config, const EachBatch& each) {
  const NoGrad no_grad;
  const kernels::PrecisionScope precision(math_of(config));
  Loader loader(data, info, evaluation_batches(config), RngKey(0));
  Metrics metrics(info.classes());
  for (Cursor cursor; cursor.epoch == 0;) {
    const Batch batch = loader.next(cursor);
    const Output out = model.forward(batch, {.rows = batch.rows});
    if (out.loss.sum.defined()) metrics.add_loss(out.loss.sum.item(), out.loss.count);
    if (batch.labels.defined()) metrics.add(out.logits, batch.labels);
    if (each) each(batch, out);
  }
  return metrics;
}

}  // namespace tapeformer
