#include "autograd/reversible.h"

#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

Tensor both(const Tensor& a, const Tensor& b) {  // [2, ...]
  Shape one{1};
  for (int i = 0; i < a.rank(); ++i) one.push_back(a.dim(i));
  return ops::concat({a.detach().view(one), b.detach().view(one)}, 0);
}

Tensor half_of(const Tensor& pair, i64 which) {
  Shape shape;
  for (int i = 1; i < pair.rank(); ++i) shape.push_back(pair.dim(i));
  return pair.detach().slice(0, which, which + 1).view(shape);
}

Tensor add(const Tensor& x, const Tensor& residual) {
  if (residual.shape() != x.shape())
    throw ShapeError(fmt::format("[reversible] a half made {} of {}, expected the same shape", residual.shape().str(), x.shape().str()));
  return ops::add(x, residual);
}

struct Reversible final : Node {
  static constexpr std::string_view kName = "reversible";
  std::vector<ReversibleBlock> blocks;
  std::vector<Parameter*> params;
  SavedTensor y;
  Tape::Options options;
  Reversible(std::vector<ReversibleBlock> b, std::vector<Parameter*> p, const Tensor& out)
      : blocks(std::move(b)), params(std::move(p)), y(out, Keep::Exact), options(Tape::current()->options()) {
    options.leaves = Tape::Leaves::Capture;
  }
  std::string_view name() const override { return kName; }

  Grads backward(const Tensor& dy) override {
    const Tensor out = y.get(kName);
    y = SavedTensor();
    Tensor y1 = half_of(out, 0), y2 = half_of(out, 1), d1 = half_of(dy, 0), d2 = half_of(dy, 1);
    Grads grads(2 + params.size());
    for (; !blocks.empty(); blocks.pop_back()) {
      y2 = ops::sub(y2, run(blocks.back().G, y1, d2, d1, grads));
      y1 = ops::sub(y1, run(blocks.back().F, y2, d1, d2, grads));
    }
    grads[0] = d1;
    grads[1] = d2;
    return grads;
  }

  // half(x); adds half'(x)^T d to dx, and the parameters' share to grads.
  Tensor run(const ReversibleBlock::Half& half, const Tensor& x, const Tensor& d, Tensor& dx, Grads& grads) const {
    Tape tape(options);
    tape.allow_leaves(params);
    const Tensor in = tape.watch(x), value = half(in, true);
    if (value.grad_ref()) {
      tape.backward(value, d);
      for (std::size_t p = 0; p < params.size(); ++p) accumulate(grads[2 + p], tape.grad(*params[p]));
      accumulate(dx, tape.grad(in));
    }
    return value.detach();
  }
  static void accumulate(Tensor& sum, const Tensor& g) {
    if (!g.defined()) return;
    const NoGrad no_grad;
    sum = sum.defined() ? ops::add(sum.detach(), g.detach()) : g.detach();
  }
};

}  // namespace

Tensor reversible(std::vector<ReversibleBlock> blocks, const Tensor& x1, const Tensor& x2, std::vector<Parameter*> params) {
  if (x1.shape() != x2.shape())
    throw ShapeError(fmt::format("[reversible] got x1 {} and x2 {}, expected equal shapes", x1.shape().str(), x2.shape().str()));
  Tape* tape = Tape::current();
  std::vector<GradRef> refs{x1.grad_ref(), x2.grad_ref()};
  for (Parameter* p : params) refs.push_back(tape ? tape->leaf(*p).grad_ref() : GradRef{});
  Tensor y;
  {
    const NoGrad no_grad;
    Tensor y1 = x1.detach(), y2 = x2.detach();
    for (const ReversibleBlock& block : blocks) {
      y1 = add(y1, block.F(y2, false));
      y2 = add(y2, block.G(y1, false));
    }
    y = both(y1, y2);
  }
  if (tape == nullptr) return y;
  auto node = std::make_unique<Reversible>(std::move(blocks), std::move(params), y);
  return tape->push(y, std::move(node), std::move(refs));
}

}  // namespace tapeformer
