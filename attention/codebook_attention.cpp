// codebook_attention.cpp: softmax attention whose keys are rows of a table, k_j = c[ids_j]: keys that share a code share their weight, so
// the sum over positions is a sum over codes. Exact, and linear in the length. (An extension: the case in which the reordering of
// Katharopoulos et al. 2020 has a finite feature map for the exponential, phi(k_j) = the unit vector of its code.)
#include <cmath>
#include <limits>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct CodebookAttentionConfig {
  std::optional<i64> codes;
  std::optional<double> scale;
};
template <class V>
void visit_fields(V& v, CodebookAttentionConfig& c) {
  v("codes", c.codes, at_least(1), "rows of the codebook; must be set, above every id");
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
}

class CodebookAttention final : public AttentionCore {
 public:
  using Config = CodebookAttentionConfig;
  static AttentionInfo describe() {
    return {.name = "codebook_attention",
            .summary = "keys are rows of a learned table chosen by the token's id: exactly softmax attention, linear in the length",
            .formula = "o_i = sum_m exp(q_i.c_m) S_m / sum_m exp(q_i.c_m) Z_m;  S_m, Z_m: sum and number of the values with code m",
            .paper = "softmax attention with k_j = c[id_j], reordered as in Katharopoulos et al. 2020, arXiv 2006.16236",
            .cost = "time N M d for M codes, memory N d, causal N (M + d)",
            .example = "{codes: 5}",
            .k = false};
  }
  CodebookAttention(Config c, const AttentionSpec& s, RngKey key) : config_(c), codes_(c.codes.value_or(0)), causal_(s.causal) {
    if (s.dropout > 0) warn_unused("attention.codebook_attention: attention_dropout has no effect, there are no weights to drop");
    if (!c.codes) throw ConfigError("codes: missing, expected the number of rows of the codebook");
    codebook_ = std::make_unique<Weight>(this, "codebook", Shape{s.heads, codes_, s.head_dim}, Init::normal(1), key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  // side ids i64 [B, N], the same for all heads, or else token_ids. extra softmax: plain attention with k_j = c[ids_j].
  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    const double scale = config_.scale.value_or(1 / std::sqrt(static_cast<double>(in.q.dim(3))));
    const Tensor codes = codes_of(in), book = codebook_->get();
    if (in.extra)
      (*in.extra)["softmax"] = ops::attention(in.q.detach(), keys(book.detach(), codes), in.v.detach(),
                                              {.scale = scale, .causal = causal_, .query_mask = in.mask, .key_mask = in.mask});
    return causal_ ? up_to_each(in, codes, book, scale) : over_codes(in, codes, book, scale);
  }

 private:
  // The code of each real token, -1 at padding.
  Tensor codes_of(const AttentionInput& in) const {
    const Tensor *given = in.find("ids"), *ids = given ? given : in.find("token_ids");
    const i64 B = in.v.dim(0), N = in.v.dim(2);
    if (!ids) throw ConfigError("[codebook_attention] needs the side input 'ids' or 'token_ids', which this batch does not have");
    if (ids->shape() != Shape{B, N} || ids->dtype() != DType::I64)
      throw ShapeError(
          fmt::format("[codebook_attention] ids is {} {}, expected i64 [{}, {}]", name_of(ids->dtype()), ids->shape().str(), B, N));
    Tensor codes = ids->clone();
    const Tensor mask = in.mask.defined() ? in.mask.to_contiguous() : Tensor();
    i64* c = codes.mut_ptr<i64>();
    for (i64 i = 0; i < B * N; ++i) {
      if (mask.defined() && !mask.ptr<std::uint8_t>()[i])
        c[i] = -1;
      else if (c[i] < 0 || c[i] >= codes_)
        throw ShapeError(fmt::format("[codebook_attention] sample {}, position {}: got id {}, expected 0 to {} (codes: {})", i / N, i % N,
                                     c[i], codes_ - 1, codes_));
    }
    return codes;
  }

  // Softmax attention over the codes that occur: each code's key is c_m, its value the mean of its values, its weight the number of them.
  Tensor over_codes(const AttentionInput& in, const Tensor& codes, const Tensor& book, double scale) const {
    const i64 B = in.v.dim(0), H = in.v.dim(1), N = in.v.dim(2), dv = in.v.dim(3), M = codes_;
    Tensor bins = codes.clone();
    std::vector<double> number(static_cast<std::size_t>(B * M), 0), log_number(number.size()), share(number.size());
    Tensor occurs = Tensor::zeros({B, M}, DType::U8);
    for (i64 i = 0; i < B * N; ++i) {
      i64& bin = bins.mut_ptr<i64>()[i];
      if (bin < 0) continue;
      bin += i / N * M;
      number[static_cast<std::size_t>(bin)] += 1;
      occurs.mut_ptr<std::uint8_t>()[bin] = 1;
    }
    for (std::size_t m = 0; m < number.size(); ++m) {
      const double n = std::max(number[m], 1.0);
      log_number[m] = std::log(n);
      share[m] = 1 / n;
    }
    const DType t = in.v.dtype();
    const Tensor values = ops::reshape(ops::permute(in.v, {0, 2, 1, 3}), {B * N, H * dv});
    const Tensor sums = ops::scatter_add(values, 0, bins.view({B * N}), B * M);
    const Tensor means = ops::mul(sums, Tensor::from<double>(share, {B * M, 1}).to(t));
    ops::AttentionOptions o{.scale = scale, .query_mask = in.mask, .key_mask = occurs};
    o.key_bias = Tensor::from<double>(log_number, {B, 1, M}).to(t);
    return ops::attention(in.q, ops::reshape(book, {1, H, M, book.dim(2)}), ops::permute(ops::reshape(means, {B, M, H, dv}), {0, 2, 1, 3}),
                          o);
  }

  // Running sums: the exponent of a key is 0 in its code and minus infinity in the others.
  Tensor up_to_each(const AttentionInput& in, const Tensor& codes, const Tensor& book, double scale) const {
    const i64 B = in.v.dim(0), H = in.v.dim(1), N = in.v.dim(2), M = codes_;
    Tensor keys = Tensor::full({B, 1, N, M}, -std::numeric_limits<double>::infinity(), in.v.dtype());
    for (i64 i = 0; i < B * N; ++i)
      if (const i64 code = codes.ptr<i64>()[i]; code >= 0) keys.view({B * N, M}).slice(0, i, i + 1).slice(1, code, code + 1).fill(0);
    const Tensor a = ops::matmul(real_rows(in.q, in.mask), ops::transpose(ops::scale(book, scale), 1, 2));
    return ops::linear_attention(a, keys.expand({B, H, N, M}), in.v,
                                 {.mask = in.mask, .form = kernels::LinearForm::Exponents, .causal = true});
  }

  static Tensor keys(const Tensor& book, const Tensor& codes) {  // [B, H, N, d]
    const Tensor rows = ops::gather(book, 1, codes.view({codes.numel()}));
    return ops::permute(ops::reshape(rows, {book.dim(0), codes.dim(0), codes.dim(1), book.dim(2)}), {1, 0, 2, 3});
  }

  Config config_;
  i64 codes_;
  bool causal_;
  std::unique_ptr<Weight> codebook_;
};

[[maybe_unused]] const bool kRegistered = register_attention<CodebookAttention>();

}  // namespace
}  // namespace tapeformer
