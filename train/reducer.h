// reducer.h: the only thing in training that knows of other processes. Gradients, losses and counts are sums, so reducing is adding.
#pragma once
#include <span>

#include "autograd/tape.h"

namespace tapeformer {

class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual void begin(std::span<Parameter* const>) = 0;  // a step starts; the same parameters in the same order on every rank
  virtual void ready(Parameter&) = 0;                   // this gradient can no longer change on this rank
  virtual void finish() = 0;                            // every gradient is the sum over the ranks
  virtual void sum(std::span<double> values) = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
};

class SingleReducer final : public Reducer {  // one process: nothing to do
 public:
  void begin(std::span<Parameter* const>) override {}
  void ready(Parameter&) override {}
  void finish() override {}
  void sum(std::span<double>) override {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
};

}  // namespace tapeformer
