// loader.h: which samples form which batch, in which order, and their delivery ahead of time. Batch n of epoch e is a
// pure function of (data set, config, key, e, n): resume needs the cursor only, and any number of prefetch threads
// gives the same batches.
#pragma once
#include <memory>

#include "data/dataset.h"

namespace tapeformer {

struct LoaderConfig {
  i64 batch_size = 32;   // samples a batch; with token_budget: at most so many
  i64 token_budget = 0;  // > 0: batches of similar length holding at most so many positions, padding included
  i64 bucket = 0;        // samples of similar length are batched together within windows of this many batches; 0 = no
                         // bucketing (with a token budget: windows of 50 batches)
  bool shuffle = true;
  bool augment = true;      // pass an augmentation key to Dataset::get
  int prefetch = 2;         // batches prepared ahead on background threads (std::jthread); 0 = none
  i64 rank = 0, ranks = 1;  // gets batches n with n mod ranks = rank; a Cursor counts these. Shuffled, each rank
                            // has equally many: a rest of fewer than `ranks` batches is left out of the epoch
};

struct Cursor {
  i64 epoch = 0, batch = 0;  // the next batch to deliver
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

class Loader {
 public:
  Loader(const Dataset&, const DataInfo&, LoaderConfig, RngKey);
  ~Loader();
  Batch next(Cursor&);                     // the batch at the cursor, which is moved on (into the next epoch at the end)
  i64 batches(i64 epoch) const;            // batches of an epoch (depends on it with token budgets and shuffling)
  std::vector<i64> indices(Cursor) const;  // sample indices of one batch, in order
  double padding_share(i64 epoch) const;   // padded positions / all positions
  Cursor largest_batch(i64 epoch) const;   // the batch with the most positions

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tapeformer
