// evaluation.h: a model's loss and metrics on a data set. Batches come in a fixed order, so the numbers are the same bits for any number of
// threads, in the trainer and in `evaluate`.
#pragma once
#include <functional>

#include "core/kernels/gemm.h"
#include "data/loader.h"
#include "models/model.h"
#include "train/config.h"
#include "train/metrics.h"

namespace tapeformer {

LoaderConfig evaluation_batches(const TrainConfig&);  // no shuffling, no augmentation
using EachBatch = std::function<void(const Batch&, const Output&)>;
Metrics evaluate(const Model&, const Dataset&, const DataInfo&, const TrainConfig&, const EachBatch& each = {});

}  // namespace tapeformer
