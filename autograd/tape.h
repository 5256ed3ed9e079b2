// tape.h: a scoped, flat tape. Opening a Tape starts recording on this thread; without one nothing is recorded, so inference is the
// default. Entries stand in creation order, which is a topological order: backward walks them from the end and frees each as it goes. There
// is no graph of pointers, no sort and no recursion.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

struct Parameter {  // a learned tensor; owned by a Module, known by its path
  std::string name;
  Tensor value, grad;  // grad undefined = none yet
  bool decay = true;   // weight decay applies (not to norms and biases)
  bool trainable = true;
};

using Grads = std::vector<Tensor>;  // one per input, undefined = no gradient

class Node {  // one recorded op: what backward needs
 public:
  virtual ~Node() = default;
  virtual std::string_view name() const = 0;
  virtual Grads backward(const Tensor& dy) = 0;
  // Ops that touch a region of their first input only (slice, embedding) add its gradient into `buffer` (shaped like that input,
  // contiguous) instead of making a full-size tensor: true from adds_into_buffer() means backward_into is called and backward is not.
  virtual bool adds_into_buffer() const { return false; }
  virtual void backward_into(const Tensor& /*dy*/, Tensor& /*buffer*/) {}
  // Cheap outputs (norms, activations) are computed again in backward instead of being kept: see SavedTensor.
  virtual bool can_replay() const { return false; }
  virtual Tensor replay() const { return {}; }
  virtual int replay_depth() const { return 1; }  // ops that replay() runs, one inside the other
};

class Tape {
 public:
  enum class Leaves { Accumulate, Capture };
  struct Options {
    DType save_as = DType::F32;          // BF16 halves saved activations that may be rounded
    bool check_finite = false;           // every op's output is checked; NumericError names the op
    Leaves leaves = Leaves::Accumulate;  // Capture: parameter gradients stay on the tape (recompute)
  };
  explicit Tape(Options);
  Tape() : Tape(Options{}) {}
  ~Tape();
  Tape(const Tape&) = delete;

  static Tape* current();                                   // of this thread; null under NoGrad or without a tape
  Tensor leaf(Parameter&);                                  // one entry per parameter per tape
  Tensor watch(const Tensor&);                              // a root that is not a parameter
  void backward(const Tensor& loss);                        // seeds a one-element loss with 1; once
  void backward(const Tensor& output, const Tensor& seed);  // any shape, with the upstream gradient given
  Tensor grad(const Tensor& watched) const;                 // undefined when no gradient arrived
  Tensor grad(const Parameter&) const;                      // Capture only
  std::function<void(Parameter&)> on_final;                 // this parameter's gradient can no longer change

  const Options& options() const { return options_; }
  std::uint64_t id() const { return id_; }
  std::size_t size() const;
  std::size_t saved_bytes() const { return saved_bytes_; }  // bytes kept for backward
  void allow_leaves(std::span<Parameter* const>);           // leaf() of any other parameter throws (recompute)

  // For record() and SavedTensor.
  Tensor push(Tensor y, std::unique_ptr<Node>, std::vector<GradRef> inputs);
  const Node* node(GradRef) const;  // null for leaves and other tapes
  void count_saved(std::size_t bytes) { saved_bytes_ += bytes; }

 private:
  struct Entry {
    std::unique_ptr<Node> node;  // null for leaves
    std::vector<GradRef> inputs;
    Tensor grad;
    Parameter* parameter = nullptr;
    Shape shape;
    DType dtype = DType::F32;
  };
  void accumulate(std::size_t entry, Tensor grad);
  Tensor& writable_grad(std::size_t entry);
  void finish_leaf(Entry&);
  Options options_;
  std::uint64_t id_;
  Tape* outer_;
  std::vector<Entry> entries_;
  std::vector<std::pair<Parameter*, std::int32_t>> leaves_;
  std::vector<Parameter*> allowed_;
  bool restrict_leaves_ = false, done_ = false;
  std::size_t saved_bytes_ = 0;
};

class NoGrad {  // hides the current tape
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;

 private:
  Tape* hidden_;
};

// Element type of new parameters on this thread: f32, or f64 while a DTypeScope is open (gradient checks, reference results).
DType default_dtype();
class DTypeScope {
 public:
  explicit DTypeScope(DType);
  ~DTypeScope();
  DTypeScope(const DTypeScope&) = delete;

 private:
  DType previous_;
};

}  // namespace tapeformer
