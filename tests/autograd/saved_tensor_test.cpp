// What backward keeps: cheap outputs are computed again with the same bits, and values changed meanwhile are noticed.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

Tensor normal(const Shape& s, std::uint64_t seed) {
  Tensor t = Tensor::empty(s);
  fill_normal(t, RngKey(seed), 0, 1);
  return t;
}

using Op = std::function<Tensor(const Tensor&)>;

// Bytes kept by x -> f -> matrix product, and the gradients of the product's weight and of x.
struct Outcome {
  std::size_t saved;
  std::vector<double> dw, dx;
};
Outcome run(const Op& f, bool replay) {
  Tape tape;
  const Tensor x = tape.watch(normal({64, 32}, 1)), w = tape.watch(normal({32, 16}, 2));
  const Tensor h = f(x);
  const Tensor y = replay ? ops::linear(h, w) : ops::linear(ops::add(h, Tensor::zeros({})), w);  // add's output is kept, not replayed
  tape.backward(y, normal({64, 16}, 3));
  return {tape.saved_bytes(), tape.grad(w).to_vector(), tape.grad(x).to_vector()};
}

std::vector<std::pair<std::string, Op>> cheap_ops() {
  static const Tensor gain = normal({32}, 8), bias = normal({32}, 9);
  return {{"layer_norm", [](const Tensor& x) { return ops::layer_norm(x, gain, bias); }},
          {"rms_norm", [](const Tensor& x) { return ops::rms_norm(x, gain); }},
          {"gelu", ops::gelu},
          {"gelu_tanh", ops::gelu_tanh},
          {"relu", ops::relu},
          {"silu", ops::silu},
          {"softplus", ops::softplus},
          {"tanh", ops::tanh},
          {"norm, gelu", [](const Tensor& x) { return ops::gelu(ops::layer_norm(x, gain, bias)); }},
          {"gelu, dropout", [](const Tensor& x) { return ops::dropout(ops::gelu(x), 0.2, RngKey(4)); }},
          {"gelu, scale", [](const Tensor& x) { return ops::scale(ops::gelu(x), 3, 1); }},
          {"gelu, reshape, transpose",
           [](const Tensor& x) {
             return ops::transpose(ops::reshape(ops::transpose(ops::gelu(x), 0, 1), {32, 64}), 0, 1);
           }},
          {"six in a row", [](const Tensor& x) { return ops::tanh(ops::silu(ops::gelu(ops::tanh(ops::silu(ops::gelu(x)))))); }}};
}

TEST(SavedTensor, ReplayGivesTheSameBitsForLessMemory) {
  for (const auto& [name, f] : cheap_ops()) {
    const Outcome with = run(f, true), without = run(f, false);
    EXPECT_EQ(with.dw, without.dw) << name;
    EXPECT_EQ(with.dx, without.dx) << name;
    if (name != "six in a row") EXPECT_LE(with.saved + 64 * 32 * 4, without.saved) << name;  // one activation less
  }
}

TEST(SavedTensor, InputOfACheapOpIsKeptOnce) {
  Tape tape;
  const Tensor w = tape.watch(normal({32, 32}, 2));
  const Tensor a = ops::linear(normal({64, 32}, 1), w);
  const std::size_t before = tape.saved_bytes();
  const Tensor h = ops::gelu(a);
  ops::linear(h, w);
  ops::linear(h, w);
  EXPECT_EQ(tape.saved_bytes() - before,
            64u * 32 * 4 + 2 * 32 * 32 * 4);  // gelu's input, and the weight for each product
}

TEST(SavedTensor, ChangeInPlaceIsAnError) {
  Tensor x = normal({4}, 1);
  Tape tape;
  const Tensor w = tape.watch(x);
  const Tensor y = ops::mul(w, w);
  x.fill(3);
  try {
    tape.backward(y, normal({4}, 2));
    FAIL() << "the change was not noticed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("[mul] a value saved for backward was modified in place: saved at version "), std::string::npos)
        << e.what();
  }
}

TEST(SavedTensor, ChangeOfAReplayedOpsInputIsAnError) {
  Tensor x = normal({4, 4}, 1);
  Tape tape;
  const Tensor w = tape.watch(normal({4, 4}, 2));
  const Tensor y = ops::matmul(ops::relu(tape.watch(x)), w);
  x.mut<float>()[0] = 7;
  EXPECT_THROW(tape.backward(y, normal({4, 4}, 3)), Error);
}

TEST(SavedTensor, Bf16HalvesWhatMayBeRounded) {
  std::size_t bytes[2];
  std::vector<double> dw[2];
  for (int round : {0, 1}) {
    Tape::Options options;
    options.save_as = round ? DType::BF16 : DType::F32;
    Tape tape(options);
    const Tensor w = tape.watch(normal({32, 16}, 2));
    const Tensor y = ops::linear(normal({64, 32}, 1), w);
    tape.backward(y, normal({64, 16}, 3));
    bytes[round] = tape.saved_bytes();
    dw[round] = tape.grad(w).to_vector();
  }
  EXPECT_EQ(bytes[1] * 2, bytes[0]);
  double worst = 0;
  for (std::size_t i = 0; i < dw[0].size(); ++i) worst = std::max(worst, std::abs(dw[0][i] - dw[1][i]));
  EXPECT_GT(worst, 0);                // it did round
  EXPECT_LT(worst, 64 * 4 * 0x1p-9);  // by bf16's unit, over 64 terms
}

TEST(SavedTensor, ExactValuesAndDoublesAreNeverRounded) {
  Tape::Options options;
  options.save_as = DType::BF16;
  Tape tape(options);
  const Tensor x = normal({5}, 1);
  EXPECT_EQ(SavedTensor(x, Keep::Exact).get("test").to_vector(), x.to_vector());
  const Tensor wide = x.to(DType::F64);
  EXPECT_EQ(SavedTensor(wide).get("test").to_vector(), wide.to_vector());
  EXPECT_EQ(SavedTensor(x).get("test").dtype(), DType::F32);
  EXPECT_NE(SavedTensor(x).get("test").to_vector(), x.to_vector());
  EXPECT_FALSE(SavedTensor().defined());
  EXPECT_FALSE(SavedTensor(Tensor()).get("test").defined());
}

}  // namespace
}  // namespace tapeformer
