#include "attention/projected.h"

#include "autograd/ops.h"
#include "layers/embedding.h"

namespace tapeformer {
namespace {

i64 projections(const AttentionCore& core) { return core.wants_q() + core.wants_k() + 1; }

}  // namespace

AttentionLayer::AttentionLayer(const ConfigNode& config, const AttentionSpec& spec, bool bias, bool rotary, RngKey key)
    : spec_(spec),
      rotary_(rotary),
      core_(this, "core", build_attention(config, spec, key.fold_in("core"))),
      in_(this, "in",
          std::make_unique<Linear>(spec.dim, projections(*core_) * spec.heads * spec.head_dim, key.fold_in("in"), bias,
                                   Init::xavier(spec.dim, spec.heads * spec.head_dim))),
      out_(this, "out", std::make_unique<Linear>(spec.heads * spec.head_dim, spec.dim, key.fold_in("out"), bias)) {}

Tensor AttentionLayer::forward(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx& ctx) const {
  const i64 width = spec_.heads * spec_.head_dim;
  const Tensor all = in_->forward(x);
  i64 at = 0;
  const auto next = [&] {
    const Tensor part = all.dim(2) == width ? all : ops::slice(all, 2, at, at + width);
    at += width;
    return ops::split_heads(part, spec_.heads);
  };
  AttentionInput in;
  in.x = x;
  in.mask = mask;
  in.side = side.tensors;
  if (core_->wants_q()) in.q = next();
  if (core_->wants_k()) in.k = next();
  in.v = next();
  if (rotary_ && in.q.defined() && in.k.defined()) {
    in.q = tapeformer::rotary(in.q);
    in.k = tapeformer::rotary(in.k);
  }
  return out_->forward(ops::merge_heads(core_->attend(in, ctx.at("core"))));
}

}  // namespace tapeformer
