// The reversible Transformer against its blocks run one by one on the tape.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "models/transformer.h"

namespace tapeformer {
namespace {

TransformerConfig config_of(const std::string& attention, i64 layers) {
  TransformerConfig c;
  c.dim = 16;
  c.layers = layers;
  c.heads = 2;
  c.ff_dim = 24;
  c.dropout = 0.1;
  c.attention_dropout = 0.1;
  c.reversible = true;
  c.max_len = 40;
  c.attention = {ConfigNode::parse(attention, "run.yaml")};
  return c;
}

struct Problem {
  Tensor x, mask;
  std::vector<i64> rows{5, 2, 9};
  Ctx ctx;
  explicit Problem(DType t) {
    Tensor numbers = Tensor::empty({3, 40, 16}, DType::F32);
    fill_normal(numbers, RngKey(2), 0, 1);
    x = numbers.to(t);
    mask = Tensor::full({3, 40}, 1, DType::U8);
    mask.slice(0, 1, 2).slice(1, 30, 40).fill(0);
    ctx = {.training = true, .key = RngKey(6), .rows = rows};
  }
};

std::vector<Tensor> run(Transformer& model, const Problem& p, bool kept) {  // output, gradients of x and of the weights
  Tape tape({.leaves = Tape::Leaves::Capture});
  const Tensor x = tape.watch(p.x);
  Tensor y;
  if (kept) {
    Tensor y1 = x, y2 = x;
    for (std::size_t i = 0; i < model.blocks().size(); ++i) {
      TransformerBlock& block = **model.blocks()[i];
      const Ctx here = p.ctx.at(static_cast<i64>(i));
      y1 = ops::add(y1, block.attend(y2, p.mask, {}, here));
      y2 = ops::add(y2, block.feed(y1, here));
    }
    y = ops::scale(ops::add(y1, y2), 0.5);
    y = ops::layer_norm(y, Tensor::full({16}, 1, y.dtype()), Tensor::zeros({16}, y.dtype()));
  } else {
    y = model.forward(x, p.mask, {}, p.ctx).x;
  }
  y = ops::mask_rows(y, p.mask);
  Tensor seed = Tensor::empty(y.shape(), DType::F32);
  fill_normal(seed, RngKey(3), 0, 1);
  tape.backward(y, seed.to(y.dtype()));
  std::vector<Tensor> out{y, tape.grad(x)};
  for (Parameter* w : model.parameters())
    if (w->name.rfind("norm.", 0) != 0) out.push_back(tape.grad(*w));
  return out;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0, size = 1e-3;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return worst / size;
}

const char* const kAttentions[] = {"{type: full}", "{type: local, window: 3}", "{type: linear_transformer}",
                                   "{type: reformer, chunk_len: 4, n_buckets: 8}", "{type: strided, pattern: strided, stride: 6}"};

TEST(ReversibleTransformer, AgreesWithStoredValuesAtDepthTwelve) {
  for (DType t : {DType::F64, DType::F32})
    for (const char* attention : kAttentions) {
      SCOPED_TRACE(std::string(attention) + " " + std::string(name_of(t)));
      const DTypeScope scope(t);
      Transformer model(config_of(attention, 12), RngKey(1));
      const Problem p(t);
      const auto kept = run(model, p, true), back = run(model, p, false);
      ASSERT_EQ(kept.size(), back.size());
      for (std::size_t i = 0; i < kept.size(); ++i) {
        ASSERT_EQ(kept[i].defined(), back[i].defined()) << i;
        if (kept[i].defined()) EXPECT_LE(relative_difference(back[i], kept[i]), t == DType::F64 ? 1e-11 : 1e-4) << i;
      }
    }
}

TEST(ReversibleTransformer, KeepsTheSameAtAnyDepth) {
  const auto saved = [](i64 layers, bool reversible) {
    TransformerConfig c = config_of("{type: full}", layers);
    c.reversible = reversible;
    Transformer model(c, RngKey(1));
    const Problem p(DType::F32);
    Tape tape({.leaves = Tape::Leaves::Capture});
    model.forward(tape.watch(p.x), p.mask, {}, p.ctx);
    return tape.saved_bytes();
  };
  EXPECT_EQ(saved(2, true), saved(24, true));
  EXPECT_GT(saved(24, false), 8 * saved(2, false));
}

TEST(ReversibleTransformer, RefusesWhatDoesNotFit) {
  const auto message = [](auto change) {
    TransformerConfig c = config_of("{type: full}", 2);
    change(c);
    try {
      Transformer(c, RngKey(1));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message([](auto& c) { c.norm_position = "post"; }).find("model.reversible: needs model.norm_position: pre"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.recompute = true; }).find("recompute is part of it"), std::string::npos);
  if (attention_registry().contains("reduced_query"))
    EXPECT_NE(
        message([](auto& c) { c.attention = {ConfigNode::parse("{type: reduced_query}", "run.yaml")}; }).find("shortens the sequence"),
        std::string::npos);
}

}  // namespace
}  // namespace tapeformer
