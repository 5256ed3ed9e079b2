// config.h: a whole run as one file: data, model, optim, schedule, train. Every mistake of the file is reported at once.
#pragma once
#include <string>
#include <vector>

#include "core/config.h"
#include "core/kernels/gemm.h"
#include "core/shape.h"

namespace tapeformer {

struct TrainConfig {
  i64 steps = 0, epochs = 0;  // one of them is above 0 once resolved
  i64 batch_size = 32, token_budget = 0, bucket = 0;
  int prefetch = 2;
  i64 accumulate = 1;
  double clip = 1;
  i64 validate_every = 0, save_every = 0, log_every = 50;
  i64 eval_batch_size = 0;  // 0 until resolved
  i64 patience = 0;
  double ema = 0;
  std::string metric = "accuracy";
  std::string math = "f32", save_as = "f32", matmul = "onednn";
  bool augment = true;
};
template <class V>
void visit_fields(V& v, TrainConfig& c) {
  v("steps", c.steps, at_least(0), "optimizer steps; 0: as `epochs` says");
  v("epochs", c.epochs, at_least(0), "passes over the training data; 0: as `steps` says (10 where both are 0)");
  v("batch_size", c.batch_size, at_least(1), "samples a batch; with token_budget at most so many");
  v("token_budget", c.token_budget, at_least(0), "above 0: batches of similar length with at most so many positions, padding included");
  v("bucket", c.bucket, at_least(0), "samples of similar length share a batch, within windows of so many batches; 0: no");
  v("prefetch", c.prefetch, Range{0, 64}, "batches prepared ahead");
  v("accumulate", c.accumulate, at_least(1), "batches a step");
  v("clip", c.clip, at_least(0), "largest norm of the gradient; 0: none");
  v("validate_every", c.validate_every, at_least(0), "steps between validations; 0: after each epoch");
  v("save_every", c.save_every, at_least(0), "steps between checkpoints beside those of the validations; 0: those only");
  v("log_every", c.log_every, at_least(1), "steps between log lines");
  v("eval_batch_size", c.eval_batch_size, at_least(0), "samples a batch in validation and evaluation; 0: batch_size");
  v("patience", c.patience, at_least(0), "stop after so many validations without a better metric; 0: never");
  v("ema", c.ema, Range{0, 0.999999}, "above 0: validate, save and use an average of the weights with this memory");
  v("metric", c.metric, OneOf{"accuracy", "macro_f1", "loss"}, "decides which weights are best");
  v("math", c.math, OneOf{"f32", "bf16"}, "inputs of large matrix products");
  v("save_as", c.save_as, OneOf{"f32", "bf16"}, "activations kept for the backward pass");
  v("matmul", c.matmul, OneOf{"onednn", "openblas"}, "library of the matrix products; they differ in the last bits");
  v("augment", c.augment, "random changes of training samples, where the data section asks for some");
}
kernels::Math math_of(const TrainConfig&);

struct RunConfig {
  i64 seed = 1;
  int threads = 0;  // 0: every usable core; changes no result
  ConfigNode data, model, optim, schedule;
  TrainConfig train;
};
// Reads a file's tree and fills in every default. ConfigError lists all mistakes, one a line.
RunConfig resolve_run_config(const ConfigNode& file);
ConfigNode write_run_config(const RunConfig&);  // resolved, reads back as the same

// Keys in which two resolved configurations differ, except those that change no result of a continued run (threads, intervals, and the
// length of training).
std::vector<std::string> changes_that_matter(const ConfigNode& a, const ConfigNode& b);

// Help for a key: "train", "train.clip", "optim.adamw", "schedule.cosine", "data.text", "model.encoder_classifier", "attention.full", or ""
// for an overview. ConfigError with the nearest spelling for others.
std::string explain_key(const std::string& key);

}  // namespace tapeformer
