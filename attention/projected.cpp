#include "attention/projected.h"

#include "autograd/ops.h"
#include "layers/embedding.h"

namespace tapeformer {
namespace {

i64 value_dim(const AttentionCore& core, const AttentionSpec& spec) { return core.value_dim() > 0 ? core.value_dim() : spec.head_dim; }

AttentionSpec layer_spec(AttentionSpec spec, bool bias) {
  spec.bias = bias;
  return spec;
}

}  // namespace

Tensor in_front(const Tensor& t, i64 rows, double value) {
  Tensor out = Tensor::full({t.dim(0), rows + t.dim(1)}, value, t.dtype());
  out.slice(1, rows, rows + t.dim(1)).copy_from(t);
  return out;
}

AttentionLayer::AttentionLayer(const ConfigNode& config, const AttentionSpec& spec, bool bias, bool rotary, RngKey key)
    : spec_(spec), rotary_(rotary), core_(this, "core", build_attention(config, layer_spec(spec, bias), key.fold_in("core"))) {
  const auto linear = [&](const char* name, i64 in, i64 out, bool with_bias, Init init) {
    return std::make_unique<Child<Linear>>(this, name, std::make_unique<Linear>(in, out, key.fold_in(name), with_bias, init));
  };
  const i64 width = spec.heads * spec.head_dim, values = spec.heads * value_dim(*core_, spec);
  if (core_->info().place != Place::Core) {  // what it puts out may be of another width
    if (core_->info().place == Place::Mix && core_->value_dim() > 0 && core_->value_dim() != spec.dim)
      out_ = linear("out", core_->value_dim(), spec.dim, bias, Init::xavier(core_->value_dim(), spec.dim));
    return;
  }
  const bool q = core_->wants_q(), k = core_->wants_k();
  in_ = linear("in", spec.dim, (q + k) * width + values, bias, Init::xavier(spec.dim, width));
  const i64 joined = core_->averages_heads() ? value_dim(*core_, spec) : values;
  if (core_->output_projection())
    out_ = linear("out", joined, spec.dim, bias, Init::xavier(joined, spec.dim));
  else if (joined != spec.dim)
    throw ConfigError(
        fmt::format("attention '{}': its heads give {} values, the model's width is {}", core_->info().name, joined, spec.dim));
  const auto part = [&](const Tensor& t, i64 from, i64 to) {
    return t.defined() ? t.slice(t.rank() - 1, from, to).to_contiguous() : Tensor();
  };
  const Tensor W = (*in_)->weight().value, b = (*in_)->bias() ? (*in_)->bias()->value : Tensor();
  Projections start;
  i64 at = 0;
  if (q) start.Wq = part(W, 0, width), start.bq = part(b, 0, width), at += width;
  if (k) start.Wk = part(W, at, at + width), start.bk = part(b, at, at + width), at += width;
  start.Wv = part(W, at, at + values), start.bv = part(b, at, at + values);
  core_->start_from(start);
}

Tensor AttentionLayer::forward(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  AttentionInput in;
  in.x = x;
  in.mask = mask;
  in.side = side.tensors;
  in.external = side.external;
  require_side(*core_, in);
  if (core_->info().place != Place::Core) {
    in.rotary = rotary_;
    const Tensor y = core_->attend(in, ctx.at("core"));
    return out_ ? (*out_)->forward(y) : y;
  }
  const Tensor all = (*in_)->forward(x);
  i64 at = 0;
  const auto next = [&](i64 width) {
    const Tensor part = all.dim(2) == width ? all : ops::slice(all, 2, at, at + width);
    at += width;
    return ops::split_heads(part, spec_.heads);
  };
  const i64 width = spec_.heads * spec_.head_dim;
  if (core_->wants_q()) in.q = next(width);
  if (core_->wants_k()) in.k = next(width);
  in.v = next(spec_.heads * value_dim(*core_, spec_));
  if (rotary_ && in.q.defined()) {
    in.rotary = true;
    in.q = tapeformer::rotary(in.q);
    if (in.k.defined()) in.k = tapeformer::rotary(in.k);
  }
  const Tensor heads = core_->attend(in, ctx.at("core"));
  const Tensor y = core_->averages_heads() ? ops::mean(heads, {1}) : ops::merge_heads(heads);
  return out_ ? (*out_)->forward(y) : y;
}

}  // namespace tapeformer
