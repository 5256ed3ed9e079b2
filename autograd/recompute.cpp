#include "autograd/recompute.h"

#include "autograd/node.h"

namespace tapeformer {
namespace {

using Function = std::function<Tensor(std::span<const Tensor>)>;

struct Recompute final : Node {
  static constexpr std::string_view kName = "recompute";
  Function fn;
  std::vector<SavedTensor> inputs;
  std::vector<bool> wanted;
  std::vector<Parameter*> params;
  Tape::Options options;
  Recompute(Function f, const std::vector<Tensor>& in, std::vector<Parameter*> p) : fn(std::move(f)), params(std::move(p)) {
    options = Tape::current()->options();
    options.leaves = Tape::Leaves::Capture;
    for (const Tensor& t : in) {
      inputs.emplace_back(t, Keep::Exact);
      wanted.push_back(static_cast<bool>(t.grad_ref()));
    }
  }
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    Tape tape(options);
    tape.allow_leaves(params);
    std::vector<Tensor> roots;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor value = inputs[i].get(kName);
      roots.push_back(wanted[i] ? tape.watch(value) : value);
    }
    const Tensor y = fn(roots);
    Grads grads(inputs.size() + params.size());
    if (!y.grad_ref()) return grads;
    tape.backward(y, dy);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (wanted[i]) grads[i] = tape.grad(roots[i]);
    for (std::size_t i = 0; i < params.size(); ++i) grads[inputs.size() + i] = tape.grad(*params[i]);
    return grads;
  }
};

}  // namespace

Tensor recompute(Function fn, std::vector<Tensor> inputs, std::vector<Parameter*> params) {
  Tape* tape = Tape::current();
  if (tape == nullptr) return fn(inputs);
  std::vector<GradRef> refs;
  for (const Tensor& t : inputs) refs.push_back(t.grad_ref());
  for (Parameter* p : params) refs.push_back(tape->leaf(*p).grad_ref());
  Tensor y;
  {
    const NoGrad no_grad;
    std::vector<Tensor> values;
    for (const Tensor& t : inputs) values.push_back(t.detach());
    y = fn(values);
  }
  auto node = std::make_unique<Recompute>(std::move(fn), inputs, std::move(params));
  return tape->push(y.detach(), std::move(node), std::move(refs));
}

}  // namespace tapeformer
