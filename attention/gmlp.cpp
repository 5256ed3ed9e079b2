// gmlp.cpp: a network whose hidden layer is gated by a linear map over positions: Liu et al., "Pay Attention to MLPs", NeurIPS 2021,
// eq. 1-3 and section 4.3 (tiny attention). A whole block. Positions are absolute, as in mlp_mixer.
#include "attention/attention.h"
#include "autograd/ops.h"
#include "layers/feed_forward.h"
#include "layers/linear.h"
#include "layers/norm.h"

namespace tapeformer {
namespace {

struct GmlpConfig {
  std::optional<i64> max_len, ffn;
  i64 tiny_attention = 0;
  std::string activation = "gelu";
  double ln_eps = 1e-5, init_eps = 1e-3;
};
template <class V>
void visit_fields(V& v, GmlpConfig& c) {
  v("max_len", c.max_len, at_least(1), "longest input, L; L^2 parameters; null = the model's");
  v("ffn", c.ffn, at_least(2), "hidden width, even; null = 4 D");
  v("tiny_attention", c.tiny_attention, at_least(0), "width of one head of attention added to the gate; 0 = none, 64 in the paper");
  v("activation", c.activation, OneOf{"gelu", "gelu_tanh", "relu", "silu"}, "of the hidden layer; gelu is the exact one");
  v("ln_eps", c.ln_eps, above(0), "added to the variance of both norms");
  v("init_eps", c.init_eps, at_least(0), "the weights over positions start uniform in +- init_eps / L");
}

// tril(W) s for W [N, N], s [B, N, D], in blocks of rows: what lies above the diagonal blocks is neither read nor computed.
Tensor lower_triangle(const Tensor& W, const Tensor& s) {
  constexpr i64 kRows = 128;
  const i64 N = s.dim(1);
  std::vector<Tensor> out;
  for (i64 from = 0; from < N; from += kRows) {
    const i64 to = std::min(N, from + kRows), n = to - from;
    Tensor keep = Tensor::zeros({n, n}, s.dtype());
    for (i64 i = 0; i < n; ++i) keep.slice(0, i, i + 1).slice(1, 0, i + 1).fill(1);
    const Tensor rows = ops::slice(W, 0, from, to);
    const Tensor here = ops::matmul(ops::mul(ops::slice(rows, 1, from, to), keep), ops::slice(s, 1, from, to));
    out.push_back(from == 0 ? here : ops::add(here, ops::matmul(ops::slice(rows, 1, 0, from), ops::slice(s, 1, 0, from))));
  }
  return out.size() == 1 ? out[0] : ops::concat(out, 1);
}

class Gmlp final : public AttentionCore {
 public:
  using Config = GmlpConfig;
  static AttentionInfo describe() {
    return {.name = "gmlp",
            .summary = "a network whose hidden layer is gated by a linear map over positions; a whole block",
            .formula = "o = x + V (z1 * (Ws LN(z2) + bs)) + bV;  (z1, z2) = f(U LN(x) + bU)",
            .paper = "Liu et al. 2021, arXiv 2105.08050",
            .cost = "time N^2 ffn + N D ffn, memory N ffn, parameters L^2",
            .place = Place::Block,
            .q = false,
            .k = false,
            .v = false};
  }
  Gmlp(Config c, const AttentionSpec& s, RngKey key)
      : config_(c),
        spec_(s),
        length_(table_length(c.max_len, s)),
        half_(c.ffn.value_or(4 * s.dim) / 2),
        norm_(this, "ln_", s.dim, c.ln_eps, key),
        in_(this, "U", "bU", s.dim, 2 * half_, key),
        gate_norm_(this, "sln_", half_, c.ln_eps, key),
        Ws_(this, "Ws", {length_, length_}, Init::uniform(c.init_eps / static_cast<double>(length_)), key),
        bs_(this, "bs", {length_}, Init::ones(), key, false),
        out_(this, "V", "bV", half_, s.dim, key) {
    if (c.ffn && *c.ffn % 2 != 0) throw ConfigError(fmt::format("ffn: got {}, expected an even number", *c.ffn));
    if (c.tiny_attention == 0) return;
    qkv_ = std::make_unique<NamedLinear>(this, "Wqkv", "", s.dim, 3 * c.tiny_attention, key);
    tiny_out_ = std::make_unique<NamedLinear>(this, "Wo", "bo", c.tiny_attention, half_, key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 N = in.x.dim(1);
    check_length(describe().name, N, length_);
    const Tensor x = real_rows(in.x, in.mask), y = norm_.forward(x), z = activate(config_.activation, in_.forward(y));
    const Tensor s = real_rows(gate_norm_.forward(ops::slice(z, 2, half_, 2 * half_)), in.mask);
    const Tensor W = ops::slice(ops::slice(Ws_.get(), 0, 0, N), 1, 0, N), b = ops::reshape(ops::slice(bs_.get(), 0, 0, N), {N, 1});
    Tensor gate = ops::add(spec_.causal ? lower_triangle(W, s) : ops::matmul(W, s), b);
    if (qkv_) gate = ops::add(gate, tiny(y, in.mask, ctx));
    return real_rows(ops::add(x, out_.forward(ops::mul(ops::slice(z, 2, 0, half_), gate))), in.mask);
  }

 private:
  Tensor tiny(const Tensor& y, const Tensor& mask, const Ctx& ctx) const {  // one head on the block's input
    const Tensor all = qkv_->forward(y);
    const auto part = [&](i64 i) {
      return ops::split_heads(ops::slice(all, 2, i * config_.tiny_attention, (i + 1) * config_.tiny_attention), 1);
    };
    ops::AttentionOptions o{.causal = spec_.causal, .query_mask = mask, .key_mask = mask};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return tiny_out_->forward(ops::merge_heads(ops::attention(part(0), part(1), part(2), o)));
  }
  Config config_;
  AttentionSpec spec_;
  i64 length_, half_;
  NamedLayerNorm norm_;
  NamedLinear in_;
  NamedLayerNorm gate_norm_;
  Weight Ws_, bs_;  // [L, L], [L]
  NamedLinear out_;
  std::unique_ptr<NamedLinear> qkv_, tiny_out_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Gmlp>();

}  // namespace
}  // namespace tapeformer
