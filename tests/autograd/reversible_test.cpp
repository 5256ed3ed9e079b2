// Reversible blocks against the same blocks on the tape.
#include "autograd/reversible.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "core/error.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

struct Stack {  // F(x) = tanh(x W_l) with dropout, G(x) = the same with V_l; one more weight is shared by all layers
  std::vector<std::unique_ptr<Parameter>> weights;
  std::vector<Parameter*> all;
  i64 layers, D;
  Stack(i64 n, i64 dim, DType t) : layers(n), D(dim) {
    for (i64 l = 0; l < 2 * n + 1; ++l) {
      Tensor w = Tensor::empty({D, D}, DType::F32);
      fill_normal(w, RngKey(static_cast<std::uint64_t>(l)), 0, 1 / std::sqrt(static_cast<double>(D)));
      weights.push_back(std::make_unique<Parameter>(Parameter{.name = "w", .value = w.to(t), .grad = {}}));
      all.push_back(weights.back().get());
    }
  }
  static Tensor of(Parameter* p) { return Tape::current() ? Tape::current()->leaf(*p) : p->value; }
  ReversibleBlock::Half half(i64 l) const {
    Parameter *own = all[static_cast<std::size_t>(l)], *shared = all.back();
    return [=](const Tensor& x, bool) {
      const Tensor h = ops::dropout(ops::tanh(ops::linear(x, of(own))), 0.2, RngKey(7).fold_in(static_cast<std::uint64_t>(l)));
      return ops::linear(h, of(shared));
    };
  }
  std::vector<ReversibleBlock> blocks() const {
    std::vector<ReversibleBlock> out;
    for (i64 l = 0; l < layers; ++l) out.push_back({half(2 * l), half(2 * l + 1)});
    return out;
  }
};

std::vector<Tensor> run(const Stack& s, const Tensor& x, bool kept) {  // output, then gradients of x and of every weight
  Tape tape({.leaves = Tape::Leaves::Capture});
  const Tensor in = tape.watch(x);
  Tensor y;
  if (kept) {
    Tensor y1 = in, y2 = in;
    for (const ReversibleBlock& b : s.blocks()) {
      y1 = ops::add(y1, b.F(y2, false));
      y2 = ops::add(y2, b.G(y1, false));
    }
    y = ops::concat({ops::reshape(y1, {1, x.dim(0), x.dim(1)}), ops::reshape(y2, {1, x.dim(0), x.dim(1)})}, 0);
  } else {
    y = reversible(s.blocks(), in, in, s.all);
  }
  Tensor seed = Tensor::empty(y.shape(), DType::F32);
  fill_normal(seed, RngKey(3), 0, 1);
  tape.backward(y, seed.to(y.dtype()));
  std::vector<Tensor> out{y, tape.grad(in)};
  for (Parameter* p : s.all) out.push_back(tape.grad(*p));
  return out;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return worst / size;
}

Tensor input(DType t) {
  Tensor x = Tensor::empty({20, 16}, DType::F32);
  fill_normal(x, RngKey(1), 0, 1);
  return x.to(t);
}

// Values computed back at depth 12 drift by rounding alone.
TEST(Reversible, AgreesWithStoredValues) {
  for (const auto& [t, tolerance] : {std::pair{DType::F64, 1e-13}, {DType::F32, 2e-5}})
    for (i64 layers : {0, 1, 12}) {
      const Stack s(layers, 16, t);
      const auto kept = run(s, input(t), true), back = run(s, input(t), false);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        ASSERT_EQ(kept[i].defined(), back[i].defined());
        if (kept[i].defined()) EXPECT_LE(relative_difference(back[i], kept[i]), tolerance) << name_of(t) << " " << layers << " " << i;
      }
    }
}

TEST(Reversible, KeepsTwoTensorsAtAnyDepth) {
  for (i64 layers : {1, 4, 32}) {
    const Stack s(layers, 16, DType::F32);
    const Tensor x = input(DType::F32);
    Tape tape({.leaves = Tape::Leaves::Capture});
    const Tensor y = reversible(s.blocks(), tape.watch(x), x, s.all);
    EXPECT_EQ(tape.saved_bytes(), 2 * x.bytes()) << layers;
  }
}

TEST(Reversible, RefusesOtherShapes) {
  const Stack s(1, 16, DType::F32);
  const Tensor x = input(DType::F32);
  EXPECT_THROW(reversible(s.blocks(), x, x.slice(0, 0, 3), s.all), ShapeError);
  const auto shorter = [](const Tensor& h, bool) { return ops::slice(h, 0, 0, 1); };
  EXPECT_THROW(reversible({{shorter, shorter}}, x, x, {}), ShapeError);
}

}  // namespace
}  // namespace tapeformer
