// sinkhorn.cpp: a small network sorts blocks of keys: each block of queries sees its own block and the block sorted to it.
// Tay et al., "Sparse Sinkhorn Attention", 2020 (arXiv 2002.11296); Gumbel-Sinkhorn: Mena et al. 2018 (arXiv 1802.08665), eq. 3-6.
#include <algorithm>
#include <cmath>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct SinkhornConfig {
  std::optional<double> scale;
  i64 block_size = 64;
  std::optional<i64> max_blocks, sort_hidden;
  i64 iters = 8;
  double temperature = 0.75;
  std::string pool = "mean", normalise = "sinkhorn";
  bool hard = false;
  i64 sortcut = 0;
};
template <class V>
void visit_fields(V& v, SinkhornConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("block_size", c.block_size, at_least(1), "positions a block");
  v("max_blocks", c.max_blocks, at_least(1), "most blocks of an input; null = ceil(max_len / block_size)");
  v("sort_hidden", c.sort_hidden, at_least(1), "hidden width of the sorting network; null = D");
  v("iters", c.iters, at_least(1), "Sinkhorn iterations");
  v("temperature", c.temperature, above(0), "divides the sorting logits");
  v("pool", c.pool, OneOf{"mean", "sum"}, "how a block's tokens form its descriptor");
  v("normalise", c.normalise, OneOf{"sinkhorn", "softmax"}, "rows and columns in turn, or one softmax a row");
  v("hard", c.hard, "the largest entry of each row alone, straight-through gradient");
  v("sortcut", c.sortcut, at_least(0), "> 0: every query sees only the first so many sorted blocks");
}

// Keys are the N local ones, then the sorted slots. Query i of block c sees the local keys of its block (j <= i when causal) and slots
// [c b, (c+1) b); with sortcut all slots and no local key. Slots may be dropped, by sample and head.
class SortedBlocks final : public kernels::Pattern {
 public:
  SortedBlocks(i64 N, i64 block, i64 slots, bool causal, bool sortcut, Tensor kept)
      : N_(N), block_(block), slots_(slots), causal_(causal), sortcut_(sortcut), kept_(std::move(kept)) {}

  Cover cover(i64, i64, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    const bool local = !sortcut_ && k0 < N_ && overlaps(q0, q1, k0, std::min(k1, N_));
    const bool sorted = k1 > N_ && (sortcut_ || overlaps(q0, q1, std::max(k0, N_) - N_, k1 - N_));
    return local || sorted ? Cover::Partial : Cover::None;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    const i64 first = i / block_ * block_, last = std::min(first + block_, N_);
    const std::uint8_t* kept = kept_.ptr<std::uint8_t>() + (b * kept_.dim(1) + h) * slots_;
    for (i64 j = k0; j < k1; ++j) {
      const i64 slot = j - N_;
      allowed[j - k0] = slot < 0 ? !sortcut_ && j >= first && j < last && (!causal_ || j <= i)
                                 : (sortcut_ || (slot >= first && slot < first + block_)) && kept[slot] != 0;
    }
  }
  bool same_for_samples() const override { return false; }
  bool same_for_heads() const override { return false; }

 private:
  bool overlaps(i64 q0, i64 q1, i64 k0, i64 k1) const { return k1 > q0 / block_ * block_ && k0 < ((q1 - 1) / block_ + 1) * block_; }
  i64 N_, block_, slots_;
  bool causal_, sortcut_;
  Tensor kept_;  // u8 [B, H, slots]
};

class Sinkhorn final : public AttentionCore {
 public:
  using Config = SinkhornConfig;
  static AttentionInfo describe() {
    return {.name = "sinkhorn",
            .summary = "a learned, differentiable sorting of key blocks; each block sees itself and the block sorted to it",
            .formula = "P = Sinkhorn((R(x) + gumbel) / t); keys of block i: its own and sum_u P_iu K_u",
            .paper = "Tay et al. 2020, arXiv 2002.11296",
            .cost = "time N b d + N^2 d / b, memory N d + (N/b)^2",
            .example = "{block_size: 4}"};
  }
  Sinkhorn(Config c, const AttentionSpec& s, RngKey key)
      : config_(c),
        spec_(s),
        max_blocks_(c.max_blocks.value_or(std::max<i64>(1, (s.max_len + c.block_size - 1) / c.block_size))),
        hidden_(c.sort_hidden.value_or(s.dim)),
        W1_(this, "W1", {s.dim, hidden_}, Init::xavier(s.dim, hidden_), key),
        b1_(this, "b1", {hidden_}, Init::zeros(), key, false),
        W2_(this, "W2", {s.heads, hidden_, max_blocks_}, Init::xavier(hidden_, max_blocks_), key),
        b2_(this, "b2", {s.heads, max_blocks_}, Init::zeros(), key, false) {
    if (c.sortcut > 0 && s.causal) throw ConfigError("sortcut has no causal form: it lets queries see later blocks");
    if (s.max_len > 0 && c.sortcut > max_blocks_)
      warn_unused(fmt::format("attention.sinkhorn: sortcut: {} is more than the {} blocks of the longest input", c.sortcut, max_blocks_));
    if (max_blocks_ * c.block_size < s.max_len)
      throw ConfigError(fmt::format("max_blocks: got {}, expected at least {} for inputs of {} positions", max_blocks_,
                                    (s.max_len + c.block_size - 1) / c.block_size, s.max_len));
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 B = in.q.dim(0), N = in.q.dim(2), b = config_.block_size, nb = (N + b - 1) / b;
    if (nb > max_blocks_) throw ShapeError(fmt::format("[sinkhorn] the input has {} blocks, max_blocks is {}", nb, max_blocks_));
    const Tensor mask = in.mask.defined() ? in.mask : Tensor::full({B, N}, 1, DType::U8);
    const Sorting s = sort(in, mask, nb, ctx);
    return look(in, mask, s, nb, ctx);
  }

 private:
  struct Sorting {
    Tensor P;     // [B, H, nb, nb]: row i asks, column u gives
    Tensor real;  // [B, 1, nb, b] 1 = real token, as numbers
  };

  Sorting sort(const AttentionInput& in, const Tensor& mask, i64 nb, const Ctx& ctx) const {
    const i64 B = mask.dim(0), N = mask.dim(1), b = config_.block_size, H = in.q.dim(1);
    Tensor real = Tensor::zeros({B, nb * b}, in.x.dtype());
    real.slice(1, 0, N).copy_from(mask.to(in.x.dtype()));
    const Tensor p = descriptors(in.x, mask, real, nb);
    const Tensor hidden = ops::relu(ops::linear(p, W1_.get(), b1_.get()));  // [B, nb, hid]
    const Tensor w2 = ops::slice(W2_.get(), 2, 0, nb), bias = ops::reshape(ops::slice(b2_.get(), 1, 0, nb), {H, 1, nb});
    Tensor Z = ops::add(ops::matmul(ops::reshape(hidden, {B, 1, nb, hidden_}), w2), bias);  // [B, H, nb, nb]
    if (const Tensor* fixed = in.find("gumbel"))
      Z = ops::add(Z, *fixed);
    else if (ctx.training)
      Z = ops::add(Z, gumbel(B, H, nb, ctx).to(Z.dtype()));
    Z = ops::scale(Z, 1 / config_.temperature);
    const Tensor P = permutation(Z, allowed_blocks(real, B, nb));
    if (in.extra) (*in.extra)["P"] = P;
    return {P, real.view({B, 1, nb, b})};
  }

  // Sum or mean of a block's real tokens; causal: of all real tokens up to the block's first. real: [B, nb b].
  Tensor descriptors(const Tensor& x, const Tensor& mask, const Tensor& real, i64 nb) const {
    const i64 B = x.dim(0), N = x.dim(1), D = x.dim(2), b = config_.block_size;
    const Tensor rows = real_rows(x, mask);
    if (spec_.causal) {
      Tensor first = Tensor::empty({nb}, DType::I64);
      for (i64 u = 0; u < nb; ++u) first.mut_ptr<i64>()[u] = u * b;
      const auto up_to = [&](const Tensor& t) { return ops::gather(ops::cumsum(t, 1), 1, first); };
      return pooled(up_to(rows), up_to(real.view({B, nb * b, 1})));
    }
    const Tensor padded = nb * b == N ? rows : ops::pad(rows, 1, 0, nb * b - N);
    return pooled(ops::sum(ops::reshape(padded, {B, nb, b, D}), {2}), ops::sum(real.view({B, nb, b, 1}), {2}));
  }
  Tensor pooled(const Tensor& sums, const Tensor& counts) const {  // [B, nb, D], [B, nb, 1]
    return config_.pool == "sum" ? sums : ops::div(sums, ops::maximum(counts, Tensor::full({}, 1, counts.dtype())));
  }

  // u8 [B, 1, nb, nb]: blocks with a real token take part; causal: earlier blocks only.
  Tensor allowed_blocks(const Tensor& real, i64 B, i64 nb) const {
    const i64 b = config_.block_size;
    const std::vector<double> m = real.to_vector();
    std::vector<std::uint8_t> valid(static_cast<std::size_t>(B * nb), 0);
    for (std::size_t t = 0; t < m.size(); ++t) valid[t / static_cast<std::size_t>(b)] |= m[t] != 0;
    Tensor keep = Tensor::empty({B, 1, nb, nb}, DType::U8);
    std::uint8_t* k = keep.mut_ptr<std::uint8_t>();
    for (i64 s = 0; s < B; ++s)
      for (i64 i = 0; i < nb; ++i)
        for (i64 u = 0; u < nb; ++u)
          k[(s * nb + i) * nb + u] =
              valid[static_cast<std::size_t>(s * nb + i)] && valid[static_cast<std::size_t>(s * nb + u)] && (!spec_.causal || u < i);
    return keep;
  }

  Tensor permutation(Tensor Z, const Tensor& keep) const {
    if (spec_.causal || config_.normalise == "softmax") return ops::softmax(Z, keep);
    const Tensor keep_t = keep.transpose(2, 3);
    for (i64 n = 0; n < config_.iters; ++n) {
      Z = ops::log_softmax(Z, keep);
      Z = ops::transpose(ops::log_softmax(ops::transpose(Z, 2, 3), keep_t), 2, 3);
    }
    return ops::where(keep, ops::exp(Z), Tensor::zeros({}, Z.dtype()));
  }

  // -log(-log u), a function of (key, global sample, head, i, u).
  Tensor gumbel(i64 B, i64 H, i64 nb, const Ctx& ctx) const {
    Tensor g = Tensor::empty({B, H, nb, nb}, DType::F64);
    double* p = g.mut_ptr<double>();
    const i64 size = H * nb * nb;
    for (i64 s = 0; s < B; ++s) {
      const RngKey key =
          ctx.at("gumbel").key.fold_in(static_cast<std::uint64_t>(ctx.rows.empty() ? s : ctx.rows[static_cast<std::size_t>(s)]));
      for (i64 i = 0; i < size; ++i)
        p[s * size + i] = -std::log(-std::log(key.uniform(static_cast<std::uint64_t>(i)) * (1 - 0x1p-52) + 0x1p-53));
    }
    return g;
  }

  // One-hot of each row's maximum (lowest index among equals); a row of zeros stays.
  static Tensor one_hot(const Tensor& P) {
    Tensor hard = Tensor::zeros(P.shape(), DType::F64);
    const std::vector<double> p = P.to_vector();
    const i64 n = P.dim(3);
    for (i64 r = 0; r < P.numel() / n; ++r) {
      const auto row = p.begin() + r * n;
      const auto best = std::max_element(row, row + n);
      if (*best > 0) hard.mut_ptr<double>()[r * n + (best - row)] = 1;
    }
    return hard.to(P.dtype());
  }

  Tensor look(const AttentionInput& in, const Tensor& mask, const Sorting& s, i64 nb, const Ctx& ctx) const {
    const i64 B = mask.dim(0), H = in.q.dim(1), N = mask.dim(1), b = config_.block_size;
    const i64 asked = config_.sortcut > 0 ? std::min(config_.sortcut, nb) : nb;  // sorted blocks in use
    Tensor P = config_.hard ? ops::straight_through(one_hot(s.P), s.P) : s.P;
    if (asked < nb) P = ops::slice(P, 2, 0, asked);
    const Tensor mass = ops::matmul(P, s.real.expand({B, H, nb, b}));  // [B, H, asked, b]: sum_u P m
    const Tensor zero = Tensor::zeros({}, mass.dtype()), one = Tensor::full({}, 1, mass.dtype());
    const Tensor kept = ops::greater(mass.detach(), zero);
    const auto blocks = [&](const Tensor& t) {  // [B, H, N, d] -> sorted slots [B, H, asked b, d]
      const i64 d = t.dim(3);
      const Tensor rows = ops::mask_rows(t, mask.view({B, 1, N}).expand({B, H, N}));
      const Tensor padded = nb * b == N ? rows : ops::pad(rows, 2, 0, nb * b - N);
      return ops::reshape(ops::matmul(P, ops::reshape(padded, {B, H, nb, b * d})), {B, H, asked * b, d});
    };
    ops::AttentionOptions o{.scale = config_.scale, .query_mask = mask};
    if (!config_.hard) {  // log w, w = sum_u P m / sum_u P
      const Tensor total = ops::sum(P, {3}, true);
      const Tensor share = ops::div(ops::where(kept, mass, one), ops::where(ops::greater(total.detach(), zero), total, one));
      const Tensor log_w = ops::reshape(ops::where(kept, ops::log(share), zero), {B, H, asked * b});
      o.key_bias = ops::concat({Tensor::zeros({B, H, N}, log_w.dtype()), log_w}, 2);
    }
    const Tensor slot_mask = Tensor::full({B, asked * b}, 1, DType::U8);
    o.key_mask = ops::concat({mask, slot_mask}, 1);
    o.pattern = std::make_shared<SortedBlocks>(N, b, asked * b, spec_.causal, config_.sortcut > 0, kept.view({B, H, asked * b}));
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return ops::attention(in.q, ops::concat({in.k, blocks(in.k)}, 2), ops::concat({in.v, blocks(in.v)}, 2), o);
  }

  Config config_;
  AttentionSpec spec_;
  i64 max_blocks_, hidden_;
  Weight W1_, b1_, W2_, b2_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Sinkhorn>();

}  // namespace
}  // namespace tapeformer
