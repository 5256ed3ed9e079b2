#include "models/transformer.h"

#include <algorithm>

#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "autograd/reversible.h"

namespace tapeformer {
namespace {

AttentionSpec spec_of(const TransformerConfig& c, i64 layer, SharedWeights* shared) {
  return {.dim = c.dim,
          .heads = c.heads,
          .head_dim = c.head_dim.value_or(c.dim / c.heads),
          .max_len = c.max_len,
          .causal = c.causal,
          .dropout = c.attention_dropout,
          .place = RngKey(static_cast<std::uint64_t>(layer)),
          .shared = shared};
}

}  // namespace

void validate(const TransformerConfig& c) {
  if (!c.head_dim && c.dim % c.heads != 0)
    throw ConfigError(fmt::format("model.dim: got {}, expected a multiple of model.heads ({}); or set model.head_dim", c.dim, c.heads));
  if (c.rotary && c.head_dim.value_or(c.dim / c.heads) % 2 != 0)
    throw ConfigError(fmt::format("model.positions: rotary needs an even head size, got {}", c.head_dim.value_or(c.dim / c.heads)));
  if (c.reversible && c.norm_position != "pre") throw ConfigError("model.reversible: needs model.norm_position: pre");
  if (c.reversible && c.recompute) throw ConfigError("model.reversible: recompute is part of it; leave model.recompute out");
  if (c.attention.size() > 1 && static_cast<i64>(c.attention.size()) != c.layers)
    throw ConfigError(
        fmt::format("model.attention: the list has {} entries, expected one for each of the {} layers", c.attention.size(), c.layers));
}

void require_side(const AttentionInfo& info, const std::vector<std::string>& offered) {
  for (const std::string& name : info.side)
    if (std::find(offered.begin(), offered.end(), name) == offered.end())
      throw ConfigError(fmt::format("model.attention: {} needs the side input '{}', the data offers: {}", info.name, name,
                                    offered.empty() ? "none" : join(offered)));
}

TransformerBlock::TransformerBlock(const TransformerConfig& c, const ConfigNode& attention, i64 layer, SharedWeights* shared, RngKey key)
    : pre_(c.norm_position == "pre"),
      whole_(attention_registry().get(attention_type(attention)).info.place == Place::Block),
      dropout_(c.dropout),
      attention_(this, "attention",
                 std::make_unique<AttentionLayer>(attention, spec_of(c, layer, shared), c.bias, c.rotary, key.fold_in("attention"))) {
  if (whole_) return;
  const auto norm = [&](const char* name) {
    return std::make_unique<Child<Norm>>(this, name, std::make_unique<Norm>(c.norm, c.dim, c.norm_eps, key.fold_in(name)));
  };
  norm1_ = norm("norm1");
  norm2_ = norm("norm2");
  feed_forward_ = std::make_unique<Child<FeedForward>>(
      this, "feed_forward",
      std::make_unique<FeedForward>(c.dim, c.ff_dim.value_or(4 * c.dim), c.activation, c.dropout, key.fold_in("feed_forward")));
}

Tensor TransformerBlock::forward(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  if (whole_) return attention_->forward(x, mask, side, ctx.at("attention"));
  const AttentionCore& core = attention_->core();
  const Tensor shortcut = core.shortens() ? core.shorten(x, mask).x : x, attended = attend(x, mask, side, ctx);
  Tensor y = shortcut.defined() ? ops::add(shortcut, attended) : attended;
  if (!pre_) y = (*norm1_)->forward(y);
  const Tensor z = ops::add(y, feed(y, ctx));
  return pre_ ? z : (*norm2_)->forward(z);
}

Tensor TransformerBlock::attend(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  return dropped(attention_->forward(pre_ ? (*norm1_)->forward(x) : x, mask, side, ctx.at("attention")), "drop1", ctx);
}

Tensor TransformerBlock::feed(const Tensor& x, const Ctx& ctx) const {
  return dropped((*feed_forward_)->forward(pre_ ? (*norm2_)->forward(x) : x, ctx.at("feed_forward")), "drop2", ctx);
}

Tensor TransformerBlock::dropped(const Tensor& x, const char* name, const Ctx& ctx) const {
  return ctx.training ? ops::dropout(x, dropout_, ctx.at(name).key, ctx.rows) : x;
}

Transformer::Transformer(const TransformerConfig& c, RngKey key)
    : recompute_(c.recompute), reversible_(c.reversible), shared_(this, "shared", std::make_unique<SharedWeights>()) {
  validate(c);
  for (i64 i = 0; i < c.layers; ++i) {
    const ConfigNode& attention =
        c.attention.empty() ? ConfigNode() : c.attention[c.attention.size() == 1 ? 0 : static_cast<std::size_t>(i)];
    blocks_.push_back(std::make_unique<Child<TransformerBlock>>(
        this, "blocks." + std::to_string(i),
        std::make_unique<TransformerBlock>(c, attention, i, &*shared_, key.fold_in(static_cast<std::uint64_t>(i)))));
  }
  make_external_tokens(c.dim, key);
  if (reversible_) check_reversible();
  if (c.norm_position == "pre")
    last_norm_ = std::make_unique<Child<Norm>>(this, "norm", std::make_unique<Norm>(c.norm, c.dim, c.norm_eps, key));
}

void Transformer::make_external_tokens(i64 dim, RngKey key) {
  i64 rows = 0;
  for (const auto& block : blocks_) {
    const i64 wanted = (*block)->attention().core().external_tokens();
    if (rows > 0 && wanted > 0 && wanted != rows)
      throw ConfigError(
          fmt::format("model.attention: one layer asks for {} external tokens, another for {}; they are the same rows", rows, wanted));
    rows = std::max(rows, wanted);
  }
  if (rows == 0) return;
  if (shortens()) throw ConfigError("model.attention: external tokens and a layer that shortens the sequence do not go together");
  external_ = std::make_unique<Weight>(this, "external_tokens", Shape{rows, dim}, Init::normal(0.02), key, false);
}

void Transformer::check_reversible() const {
  for (const auto& block : blocks_) {
    const AttentionCore& core = (*block)->attention().core();
    if ((*block)->whole() || core.shortens())
      throw ConfigError(fmt::format("model.reversible: attention '{}' {}, expected one that keeps the length beside a feed-forward half",
                                    core.info().name, core.shortens() ? "shortens the sequence" : "stands in place of the block"));
  }
}

bool Transformer::shortens() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const auto& b) { return (*b)->attention().core().shortens(); });
}

Tensor Transformer::run_block(std::size_t i, const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  TransformerBlock& block = **blocks_[i];
  if (!recompute_ || Tape::current() == nullptr) return block.forward(x, mask, side, ctx);
  const std::vector<i64> rows(ctx.rows.begin(), ctx.rows.end());
  // The function has one result, so losses of the block's own (StepEffects) stand behind its rows.
  struct FirstRun {
    bool over = false;
    Shape shape;
    std::vector<StepEffects::Loss> losses;
  };
  const auto seen = std::make_shared<FirstRun>();
  const Tensor packed = recompute(
      [&block, mask, side, ctx, rows, seen](std::span<const Tensor> in) {
        StepEffects effects;
        Ctx inner = ctx;
        inner.rows = rows;
        inner.effects = ctx.effects ? &effects : nullptr;
        const Tensor y = block.forward(in[0], mask, side, inner);
        if (!seen->over) {
          *seen = {true, y.shape(), effects.losses};
          if (ctx.effects) ctx.effects->propose_all_of(effects);
        }
        if (effects.losses.empty()) return y;
        std::vector<Tensor> parts{ops::reshape(y, {-1})};
        for (const StepEffects::Loss& loss : effects.losses) parts.push_back(ops::reshape(loss.sum, {1}));
        return ops::concat(parts, 0);
      },
      {x}, weights_of(block));
  if (seen->losses.empty()) return packed;
  i64 at = seen->shape.numel();
  for (const StepEffects::Loss& loss : seen->losses) {
    ctx.effects->add_loss(loss.name, ops::reshape(ops::slice(packed, 0, at, at + 1), Shape{}), loss.count);
    ++at;
  }
  return ops::reshape(ops::slice(packed, 0, 0, seen->shape.numel()), seen->shape);
}

std::vector<Parameter*> Transformer::weights_of(TransformerBlock& block) const {
  std::vector<Parameter*> weights = block.parameters();
  for (Parameter* p : shared_->parameters()) weights.push_back(p);
  return weights;
}

// Both streams start as x; the result is their mean.
Tensor Transformer::run_reversible(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  const auto rows = std::make_shared<const std::vector<i64>>(ctx.rows.begin(), ctx.rows.end());
  std::vector<ReversibleBlock> blocks;
  std::vector<Parameter*> weights = shared_->parameters();
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    TransformerBlock& block = **blocks_[i];
    for (Parameter* p : block.parameters()) weights.push_back(p);
    const auto inner = [rows, here = ctx.at(static_cast<i64>(i))](bool again) {
      Ctx c = here;
      c.rows = *rows;
      if (again) c.effects = nullptr;
      return c;
    };
    blocks.push_back({[&block, mask, side, inner](const Tensor& h, bool again) { return block.attend(h, mask, side, inner(again)); },
                      [&block, inner](const Tensor& h, bool again) { return block.feed(h, inner(again)); }});
  }
  const std::size_t losses = ctx.effects ? ctx.effects->losses.size() : 0;
  const Tensor streams = reversible(std::move(blocks), x, x, std::move(weights));
  if (ctx.effects && ctx.effects->losses.size() > losses)
    throw ConfigError(fmt::format("model.reversible: a layer's own loss ('{}') would have no gradient; set its weight to 0",
                                  ctx.effects->losses.back().name));
  return ops::mean(streams, {0});
}

Encoded Transformer::forward(const Tensor& x, const Tensor& mask, const SideInputs& given, const Ctx& ctx) const {
  Encoded out{x, mask, {}};
  SideInputs side = given;
  const i64 B = x.dim(0), D = x.dim(2), g = external_tokens();
  if (g > 0) {
    out.x = ops::concat({ops::expand(ops::reshape(external_->get(), {1, g, D}), {B, g, D}), x}, 1);
    if (mask.defined()) out.mask = in_front(mask, g, 1);
    for (auto& [name, t] : side.tensors)
      if (name != "edges" && t.rank() == 2 && t.dim(0) == B && t.dim(1) == x.dim(1)) t = in_front(t, g, name == "token_ids" ? -1 : 0);
    side.external = g;
  }
  if (reversible_) out.x = run_reversible(out.x, out.mask, side, ctx);
  for (std::size_t i = 0; i < blocks_.size() && !reversible_; ++i) {
    const AttentionCore& core = (*blocks_[i])->attention().core();
    const Tensor y = run_block(i, out.x, out.mask, side, ctx.at(static_cast<i64>(i)));
    if (core.shortens()) {  // rows are no longer positions
      out.mask = core.shorten(out.x, out.mask).mask;
      side.tensors.clear();
    }
    out.x = y;
  }
  if (last_norm_) out.x = (*last_norm_)->forward(out.x);
  if (g > 0) {
    out.external = ops::slice(out.x, 1, 0, g);
    out.x = ops::slice(out.x, 1, g, out.x.dim(1));
    out.mask = mask;
  }
  return out;
}

}  // namespace tapeformer
