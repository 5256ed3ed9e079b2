#include "models/transformer.h"

#include "autograd/ops.h"
#include "autograd/recompute.h"

namespace tapeformer {
namespace {

AttentionSpec spec_of(const TransformerConfig& c) {
  return {.dim = c.dim,
          .heads = c.heads,
          .head_dim = c.head_dim.value_or(c.dim / c.heads),
          .max_len = c.max_len,
          .causal = c.causal,
          .dropout = c.attention_dropout};
}

}  // namespace

void validate(const TransformerConfig& c) {
  if (!c.head_dim && c.dim % c.heads != 0)
    throw ConfigError(fmt::format("model.dim: got {}, expected a multiple of model.heads ({}); or set model.head_dim", c.dim, c.heads));
  if (c.rotary && c.head_dim.value_or(c.dim / c.heads) % 2 != 0)
    throw ConfigError(fmt::format("model.positions: rotary needs an even head size, got {}", c.head_dim.value_or(c.dim / c.heads)));
  if (c.attention.size() > 1 && static_cast<i64>(c.attention.size()) != c.layers)
    throw ConfigError(
        fmt::format("model.attention: the list has {} entries, expected one for each of the {} layers", c.attention.size(), c.layers));
}

TransformerBlock::TransformerBlock(const TransformerConfig& c, const ConfigNode& attention, RngKey key)
    : pre_(c.norm_position == "pre"),
      dropout_(c.dropout),
      norm1_(this, "norm1", std::make_unique<Norm>(c.norm, c.dim, c.norm_eps, key.fold_in("norm1"))),
      norm2_(this, "norm2", std::make_unique<Norm>(c.norm, c.dim, c.norm_eps, key.fold_in("norm2"))),
      attention_(this, "attention", std::make_unique<AttentionLayer>(attention, spec_of(c), c.bias, c.rotary, key.fold_in("attention"))),
      feed_forward_(
          this, "feed_forward",
          std::make_unique<FeedForward>(c.dim, c.ff_dim.value_or(4 * c.dim), c.activation, c.dropout, key.fold_in("feed_forward"))) {}

Tensor TransformerBlock::forward(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  const auto add = [&](const Tensor& a, const Tensor& b, const char* name) {
    return ops::add(a, ctx.training ? ops::dropout(b, dropout_, ctx.at(name).key, ctx.rows) : b);
  };
  if (pre_) {
    const Tensor y = add(x, attention_->forward(norm1_->forward(x), mask, side, ctx.at("attention")), "drop1");
    return add(y, feed_forward_->forward(norm2_->forward(y), ctx.at("feed_forward")), "drop2");
  }
  const Tensor y = norm1_->forward(add(x, attention_->forward(x, mask, side, ctx.at("attention")), "drop1"));
  return norm2_->forward(add(y, feed_forward_->forward(y, ctx.at("feed_forward")), "drop2"));
}

Transformer::Transformer(const TransformerConfig& c, RngKey key) : recompute_(c.recompute) {
  validate(c);
  for (i64 i = 0; i < c.layers; ++i) {
    const ConfigNode& attention =
        c.attention.empty() ? ConfigNode() : c.attention[c.attention.size() == 1 ? 0 : static_cast<std::size_t>(i)];
    blocks_.push_back(std::make_unique<Child<TransformerBlock>>(
        this, "blocks." + std::to_string(i), std::make_unique<TransformerBlock>(c, attention, key.fold_in(static_cast<std::uint64_t>(i)))));
  }
  if (c.norm_position == "pre")
    last_norm_ = std::make_unique<Child<Norm>>(this, "norm", std::make_unique<Norm>(c.norm, c.dim, c.norm_eps, key));
}

Tensor Transformer::forward(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  Tensor y = x;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    TransformerBlock& block = **blocks_[i];
    const Ctx here = ctx.at(static_cast<i64>(i));
    if (!recompute_ || Tape::current() == nullptr) {
      y = block.forward(y, mask, side, here);
      continue;
    }
    const std::vector<i64> rows(ctx.rows.begin(), ctx.rows.end());
    auto first = std::make_shared<bool>(true);
    y = recompute(
        [&block, mask, side, here, rows, first](std::span<const Tensor> in) {
          Ctx inner = here;
          inner.rows = rows;
          if (!*first) inner.effects = nullptr;  // the second forward must not act twice
          *first = false;
          return block.forward(in[0], mask, side, inner);
        },
        {y}, block.parameters());
  }
  return last_norm_ ? (*last_norm_)->forward(y) : y;
}

}  // namespace tapeformer
