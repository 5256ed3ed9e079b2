// module.h: things with parameters. A weight registers itself where it is declared, so no second list has to be kept in step:
//   Weight weight_{this, "weight", {in, out}, Init::fan_in(in), key};
// Modules are neither copied nor moved. Mode and randomness travel in Ctx; nothing in a module changes between training and evaluation.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "core/rng.h"

namespace tapeformer {

// What a layer may send back while training (auxiliary losses, buffers that follow the data). The trainer adds the losses and commits the
// buffers once, after the optimizer's step. Absent in evaluation; the second forward of a recomputed block sends its losses for their
// gradients, and what it proposes is dropped.
class StepEffects {
 public:
  struct Loss {
    std::string name;
    Tensor sum;  // [] on the tape
    double count = 1;
  };
  void add_loss(std::string name, Tensor sum, double count) { losses.push_back({std::move(name), std::move(sum), count}); }
  // buffer <- decided from summed `sums` and `counts` by commit, after the step. Merged over micro-batches by adding.
  void propose(Tensor* buffer, Tensor sums, Tensor counts,
               std::function<void(Tensor& buffer, const Tensor& sums, const Tensor& counts)> commit);
  void assign(Tensor* buffer, Tensor value);  // buffer <- value after the step; proposed again in a window: the last one counts
  void propose_all_of(const StepEffects&);    // another's proposals, as if made here
  void commit();                              // applies and clears the proposals; clears losses
  std::vector<Loss> losses;

 private:
  struct Proposal {
    Tensor* buffer;
    Tensor sums, counts;
    std::function<void(Tensor&, const Tensor&, const Tensor&)> apply;
  };
  std::vector<Proposal> proposals_;
};

struct Ctx {
  bool training = false;
  RngKey key{0};
  std::span<const i64> rows;  // global sample index of each batch row; empty = 0..B-1
  i64 step = 0;               // optimizer step, for layers that redraw by step
  StepEffects* effects = nullptr;
  Ctx at(std::string_view name) const {  // the same with the name folded into the key
    Ctx c = *this;
    c.key = key.fold_in(name);
    return c;
  }
  Ctx at(i64 index) const {
    Ctx c = *this;
    c.key = key.fold_in(static_cast<std::uint64_t>(index));
    return c;
  }
};

struct Init {  // start values of a weight
  enum class Kind { Zeros, Ones, Normal, Uniform } kind = Kind::Zeros;
  double scale = 0;  // standard deviation, or half width
  static Init zeros() { return {}; }
  static Init ones() { return {Kind::Ones, 0}; }
  static Init normal(double stddev) { return {Kind::Normal, stddev}; }
  static Init uniform(double bound) { return {Kind::Uniform, bound}; }
  static Init fan_in(i64 n);            // normal with variance 1/n
  static Init xavier(i64 in, i64 out);  // uniform +- sqrt(6 / (in + out))
  void fill(Tensor&, RngKey) const;
};

class Weight;
class Buffer;

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  std::vector<Parameter*> parameters();  // own and children's, in registration order; names are filled with their paths
  struct NamedBuffer {
    std::string path;
    Tensor* tensor;
  };
  std::vector<NamedBuffer> buffers();  // constants and running statistics that a checkpoint must hold

 private:
  friend class Weight;
  friend class Buffer;
  template <class M>
  friend class Child;
  struct Slot {  // exactly one pointer is set
    std::string name;
    Weight* weight = nullptr;
    Tensor* buffer = nullptr;
    Module* child = nullptr;
  };
  void collect(const std::string& prefix, std::vector<Parameter*>* parameters, std::vector<NamedBuffer>* buffers);
  std::vector<Slot> slots_;
};

i64 count_parameters(Module&);  // numbers in all its weights

class Weight {
 public:
  Weight(Module* owner, std::string name, Shape, Init, RngKey, bool decay = true);  // the key is folded with the name
  Weight(const Weight&) = delete;
  Tensor get() const;  // on the current tape
  Parameter& parameter() { return parameter_; }
  const Shape& shape() const { return parameter_.value.shape(); }

 private:
  friend class Module;
  mutable Parameter parameter_;
};

class Buffer {  // a named constant in the checkpoint, never trained
 public:
  Buffer(Module* owner, std::string name, Tensor value);
  Buffer(const Buffer&) = delete;
  const Tensor& get() const { return value_; }
  Tensor& value() { return value_; }

 private:
  Tensor value_;
};

template <class M>
class Child {  // an owned sub-module under a name; the empty name adds nothing to the paths of what it holds
 public:
  Child(Module* owner, std::string name, std::unique_ptr<M> module) : module_(std::move(module)) {
    Module::Slot slot;
    slot.name = std::move(name);
    slot.child = module_.get();
    owner->slots_.push_back(std::move(slot));
  }
  Child(Child&&) = default;  // the module itself stays where it is
  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }

 private:
  std::unique_ptr<M> module_;
};

}  // namespace tapeformer
