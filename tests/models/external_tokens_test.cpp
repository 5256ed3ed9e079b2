// Learned tokens before the sequence: one matrix of the model that every layer carries along.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/error.h"
#include "models/transformer.h"

namespace tapeformer {
namespace {

TransformerConfig config_of(const std::vector<std::string>& attention, bool causal = false) {
  TransformerConfig c{.dim = 8, .layers = static_cast<i64>(attention.size()), .heads = 2, .ff_dim = 6, .dropout = 0};
  c.causal = causal;
  c.max_len = 20;
  for (const std::string& a : attention) c.attention.push_back(ConfigNode::parse(a, "run.yaml"));
  return c;
}

Tensor random_tensor(Shape shape, std::uint64_t seed) {
  Tensor x = Tensor::empty(shape, default_dtype());
  fill_normal(x, RngKey(seed), 0, 1);
  return x;
}

Tensor mask_of(i64 B, i64 N) {  // sample b has N - 2 b real rows, the last one none
  Tensor m = Tensor::zeros({B, N}, DType::U8);
  for (i64 b = 0; b + 1 < B; ++b) m.slice(0, b, b + 1).slice(1, 0, N - 2 * b).fill(1);
  return m;
}

double difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::isnan(x[i] - y[i]) ? INFINITY : std::abs(x[i] - y[i]));
  return worst;
}

Parameter* find(Module& m, const std::string& name) {
  for (Parameter* p : m.parameters())
    if (p->name == name) return p;
  return nullptr;
}

const std::vector<std::string> kLayers{"{type: global, mode: external, num_global: 2, include_self: true}",
                                       "{type: bigbird, block_size: 2, num_global_ext: 2, global_blocks: [], seed: 1}", "{type: full}",
                                       "{type: local, window: 1}"};

// The same as rows that stand there already, for which the first layer's variant is told so in other words.
TEST(ExternalTokens, AreRowsInFrontOfTheSequence) {
  const DTypeScope f64(DType::F64);
  const i64 B = 3, N = 9, g = 2;
  Transformer model(config_of({kLayers[0], kLayers[2]}), RngKey(1));
  Transformer rows(config_of({"{type: global, global_positions: [0, 1], include_self: true}", kLayers[2]}), RngKey(2));
  Parameter* E = find(model, "external_tokens");
  ASSERT_NE(E, nullptr);
  EXPECT_EQ(E->value.shape(), (Shape{g, 8}));
  EXPECT_EQ(model.external_tokens(), g);
  for (Parameter* p : rows.parameters()) p->value.copy_from(find(model, p->name)->value);
  E->value.copy_from(random_tensor({g, 8}, 5));
  const Tensor x = random_tensor({B, N, 8}, 3), mask = mask_of(B, N);
  const Encoded a = model.forward(x, mask, {}, {});
  const Tensor front = ops::expand(E->value.view({1, g, 8}), {B, g, 8}), real = Tensor::full({B, g}, 1, DType::U8);
  const Encoded b = rows.forward(ops::concat({front, x}, 1), ops::concat({real, mask}, 1), {}, {});
  EXPECT_LE(difference(a.external, b.x.slice(1, 0, g)), 1e-12);
  EXPECT_LE(difference(a.x, b.x.slice(1, g, g + N)), 1e-12);
  EXPECT_EQ(difference(a.mask.to(DType::F64), mask.to(DType::F64)), 0);
}

TEST(ExternalTokens, GetTheGradientOfTheWholeBatch) {
  const DTypeScope f64(DType::F64);
  const i64 B = 3, N = 6;
  const Tensor mask = mask_of(B, N);
  for (bool causal : {false, true}) {
    Transformer model(config_of(kLayers, causal), RngKey(1));
    const auto f = [&](const std::vector<Tensor>& in) {
      const Encoded e = model.forward(in[0], mask, {}, {});
      return ops::concat({e.external, ops::mask_rows(e.x, mask)}, 1);
    };
    EXPECT_EQ(gradcheck(f, {random_tensor({B, N, 8}, 3)}, {find(model, "external_tokens")}), "") << causal;
  }
}

TEST(ExternalTokens, CausalOnesKnowNothingOfTheInput) {
  Transformer model(config_of(kLayers, true), RngKey(1));
  const Tensor x = random_tensor({1, 9, 8}, 3), y = random_tensor({1, 9, 8}, 4);
  const Encoded a = model.forward(x, {}, {}, {}), b = model.forward(y, {}, {}, {});
  EXPECT_EQ(difference(a.external, b.external), 0);
  EXPECT_GT(difference(a.x, b.x), 1e-3);
}

TEST(ExternalTokens, AreTheSameRowsInEveryLayer) {
  try {
    Transformer model(config_of({kLayers[0], "{type: global, mode: external, num_global: 3}"}), RngKey(1));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("one layer asks for 2 external tokens, another for 3"), std::string::npos) << e.what();
  }
  EXPECT_EQ(Transformer(config_of({kLayers[2], kLayers[3]}), RngKey(1)).external_tokens(), 0);
  // A head of a hybrid has tokens of its own: no rows.
  Transformer hybrid(config_of({"{type: hybrid, heads: [{type: global, mode: external}, {type: full}]}"}), RngKey(1));
  EXPECT_EQ(hybrid.external_tokens(), 0);
  EXPECT_NE(find(hybrid, "blocks.0.attention.core.heads.0.ek"), nullptr);
}

}  // namespace
}  // namespace tapeformer
