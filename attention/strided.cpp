// strided.cpp: keys at regular distances. With r = j - i and s = stride:
//   dilated: r mod s = 0, |r| <= reach s
//   strided: first |r| <= s, second r mod s = 0
//   fixed:   first the same block of s positions, second the last `summary` columns of every block
// Child et al. 2019 (arXiv 1904.10509), the second and third with causal: true.
#include <algorithm>
#include <limits>

#include "attention/attention.h"

namespace tapeformer {
namespace {

struct StridedConfig {
  std::optional<double> scale;
  std::string pattern = "dilated";
  i64 stride = 3;
  std::optional<i64> reach = 1;
  bool include_self = true;
  i64 summary = 1;
  std::string part = "union";
};
template <class V>
void visit_fields(V& v, StridedConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("pattern", c.pattern, OneOf{"dilated", "strided", "fixed"},
    "every stride-th key; that and the neighbours; own block and summary columns");
  v("stride", c.stride, at_least(1), "distance of the keys; fixed: length of a block");
  v("reach", c.reach, at_least(0), "dilated: keys seen on each side; null = all");
  v("include_self", c.include_self, "dilated: a position sees itself");
  v("summary", c.summary, at_least(1), "fixed: columns at the end of each block that everyone sees, at most stride");
  v("part", c.part, OneOf{"first", "second", "union"}, "strided and fixed: one half of the pattern, or both");
}

constexpr i64 kAll = std::numeric_limits<i64>::max() / 4;

struct Rule {  // config and causality as numbers
  enum class Kind { Dilated, Strided, Fixed } kind;
  i64 stride, reach, summary;
  bool first, second, self, causal;
  Rule(const StridedConfig& c, bool causal_)
      : kind(c.pattern == "dilated"   ? Kind::Dilated
             : c.pattern == "strided" ? Kind::Strided
                                      : Kind::Fixed),
        stride(c.stride),
        reach(kind == Kind::Dilated && c.reach ? std::min(*c.reach, kAll / c.stride) : kAll / c.stride),
        summary(c.summary),
        first(kind != Kind::Dilated && c.part != "second"),
        second(kind == Kind::Dilated || c.part != "first"),
        self(kind != Kind::Dilated || c.include_self),
        causal(causal_) {}
  i64 block(i64 i) const { return i / stride; }
};

i64 floor_div(i64 a, i64 b) { return a / b - (a % b < 0); }

// The whole set by position, before causality.
class ByPosition final : public kernels::Pattern {
 public:
  explicit ByPosition(const Rule& rule) : rule_(rule) {}

  Cover cover(i64, i64, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    Cover best = Cover::None;
    if (rule_.first) best = first(q0, q1, k0, k1);
    if (rule_.second && best != Cover::Full)
      best = std::max(best, rule_.kind == Rule::Kind::Fixed ? columns(k0, k1) : multiples(k0 - q1 + 1, k1 - 1 - q0));
    return best;
  }
  void row(i64, i64, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    for (i64 j = k0; j < k1; ++j) allowed[j - k0] = (rule_.first && near(i, j)) || (rule_.second && far(i, j));
  }

 private:
  bool near(i64 i, i64 j) const {
    return rule_.kind == Rule::Kind::Fixed ? rule_.block(i) == rule_.block(j) : std::abs(j - i) <= rule_.stride;
  }
  bool far(i64 i, i64 j) const {
    if (rule_.kind == Rule::Kind::Fixed) return j % rule_.stride >= rule_.stride - rule_.summary;
    const i64 r = j - i;
    return r % rule_.stride == 0 && std::abs(r) <= rule_.reach * rule_.stride && (r != 0 || rule_.self);
  }
  Cover first(i64 q0, i64 q1, i64 k0, i64 k1) const {
    if (rule_.kind == Rule::Kind::Fixed) {
      const i64 a = rule_.block(q0), b = rule_.block(q1 - 1), c = rule_.block(k0), d = rule_.block(k1 - 1);
      if (d < a || c > b) return Cover::None;
      return a == d && b == c ? Cover::Full : Cover::Partial;
    }
    const i64 low = k0 - q1 + 1, high = k1 - 1 - q0;  // the distances that occur
    if (low > rule_.stride || high < -rule_.stride) return Cover::None;
    return low >= -rule_.stride && high <= rule_.stride ? Cover::Full : Cover::Partial;
  }
  Cover multiples(i64 low, i64 high) const {  // of the stride among the distances low to high
    const i64 from = std::max(-floor_div(-low, rule_.stride), -rule_.reach), to = std::min(floor_div(high, rule_.stride), rule_.reach);
    if (from > to || (from == 0 && to == 0 && !rule_.self)) return Cover::None;
    const bool zero = from <= 0 && to >= 0;
    return to - from == high - low && (rule_.self || !zero) ? Cover::Full : Cover::Partial;
  }
  Cover columns(i64 k0, i64 k1) const {  // summary columns among the keys
    const auto before = [&](i64 j) {
      return rule_.block(j) * rule_.summary + std::max<i64>(0, j % rule_.stride - rule_.stride + rule_.summary);
    };
    const i64 n = before(k1) - before(k0);
    return n == 0 ? Cover::None : n == k1 - k0 ? Cover::Full : Cover::Partial;
  }
  Rule rule_;
};

// Places are positions sorted by residue: place p sees those of its own residue at most `reach` away and more than `gap`.
class Residues final : public kernels::IntervalPattern {
 public:
  Residues(i64 N, const Rule& rule, i64 gap) : stride_(rule.stride), long_(N % stride_), size_(N / stride_), rule_(rule), gap_(gap) {}
  Range keys(i64, i64, i64 p) const override {
    const i64 wide = long_ * (size_ + 1);  // the first N mod s classes have one more
    const i64 start = p < wide ? p / (size_ + 1) * (size_ + 1) : wide + (p - wide) / size_ * size_,
              end = start + (p < wide ? size_ + 1 : size_);
    return {std::max(start, p - rule_.reach), rule_.causal ? p + 1 : std::min(end, p + rule_.reach + 1)};
  }
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    const Cover c = IntervalPattern::cover(b, h, q0, q1, k0, k1);
    return c == Cover::Full && k0 - gap_ < q1 && k1 + gap_ > q0 ? Cover::Partial : c;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    IntervalPattern::row(b, h, i, k0, k1, allowed);
    for (i64 j = std::max(k0, i - gap_); j < std::min(k1, i + gap_ + 1); ++j) allowed[j - k0] = 0;
  }

 private:
  i64 stride_, long_, size_;
  Rule rule_;
  i64 gap_;  // -1: none
};

class Neighbours final : public kernels::IntervalPattern {  // the first half
 public:
  explicit Neighbours(const Rule& rule) : rule_(rule) {}
  Range keys(i64, i64, i64 i) const override {
    const bool fixed = rule_.kind == Rule::Kind::Fixed;
    const i64 first = fixed ? rule_.block(i) * rule_.stride : i - rule_.stride, last = fixed ? first + rule_.stride : i + rule_.stride + 1;
    return {first, rule_.causal ? i + 1 : last};
  }

 private:
  Rule rule_;
};

// Key places are the summary columns; own = those of the query's block are left out.
class Summaries final : public kernels::IntervalPattern {
 public:
  Summaries(const Rule& rule, i64 columns, bool own) : rule_(rule), columns_(columns), own_(own) {}
  Range keys(i64, i64, i64 i) const override { return {0, rule_.causal ? own(i).first + (own_ ? rule_.summary : 0) : columns_}; }
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    const Cover c = IntervalPattern::cover(b, h, q0, q1, k0, k1);
    return c == Cover::Full && !own_ && own(q0).first < k1 && own(q1 - 1).last > k0 ? Cover::Partial : c;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    IntervalPattern::row(b, h, i, k0, k1, allowed);
    if (own_) return;
    for (i64 j = std::max(k0, own(i).first); j < std::min(k1, own(i).last); ++j) allowed[j - k0] = 0;
  }

 private:
  Range own(i64 i) const { return {rule_.block(i) * rule_.summary, (rule_.block(i) + 1) * rule_.summary}; }
  Rule rule_;
  i64 columns_;
  bool own_;
};

Tensor by_residue(i64 N, i64 stride) {
  Tensor order = Tensor::empty({N}, DType::I64);
  i64* next = order.mut_ptr<i64>();
  for (i64 residue = 0; residue < std::min(N, stride); ++residue)
    for (i64 i = residue; i < N; i += stride) *next++ = i;
  return order;
}

Tensor summary_columns(i64 N, const Rule& rule) {
  std::vector<i64> columns;
  for (i64 j = 0; j < N; ++j)
    if (j % rule.stride >= rule.stride - rule.summary) columns.push_back(j);
  if (columns.empty()) columns.push_back(-1);
  return Tensor::from(columns, {static_cast<i64>(columns.size())});
}

class Strided final : public PatternCore {
 public:
  using Config = StridedConfig;
  static AttentionInfo describe() {
    return {.name = "strided",
            .summary = "keys at regular distances: dilated, or the two halves of the Sparse Transformer",
            .formula = "o_i = sum_j softmax_j(q_i.k_j / sqrt(d)) v_j over (j - i) mod s = 0, |j - i| <= reach s",
            .paper = "Child et al. 2019, arXiv 1904.10509",
            .cost = "time N (2 reach + 1) d, without reach N (N / s + s) d, memory N d",
            .example = "{stride: 3, reach: 2}"};
  }
  Strided(Config c, const AttentionSpec& spec, RngKey) : PatternCore(spec, c.scale), rule_(c, spec.causal) {
    if (c.pattern == "fixed" && c.summary > c.stride)
      throw ConfigError(fmt::format("summary: got {}, expected at most stride ({})", c.summary, c.stride));
    const Config fresh;
    if (c.pattern != "dilated" && (c.reach != fresh.reach || c.include_self != fresh.include_self))
      warn_unused("attention.strided: reach and include_self have no effect with pattern: " + c.pattern);
    if (c.pattern != "fixed" && c.summary != fresh.summary)
      warn_unused("attention.strided: summary has no effect with pattern: " + c.pattern);
    if (c.pattern == "dilated" && c.part != fresh.part) warn_unused("attention.strided: part has no effect with pattern: dilated");
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput&) const override { return std::make_shared<ByPosition>(rule_); }

  std::vector<ops::AttentionPart> parts(const AttentionInput& in) const override {
    const i64 N = in.q.dim(2);
    std::vector<ops::AttentionPart> out;
    if (rule_.first) out.push_back({.queries = {}, .keys = {}, .pattern = std::make_shared<Neighbours>(rule_)});
    if (!rule_.second) return out;
    if (rule_.kind == Rule::Kind::Fixed) {
      const Tensor columns = summary_columns(N, rule_);
      out.push_back({.queries = {}, .keys = columns, .pattern = std::make_shared<Summaries>(rule_, columns.dim(0), !rule_.first)});
    } else {
      const Tensor order = by_residue(N, rule_.stride);
      const i64 gap = rule_.first ? 1 : rule_.self ? -1 : 0;  // beside the neighbours: without distances 0 and s
      out.push_back({.queries = order, .keys = order, .pattern = std::make_shared<Residues>(N, rule_, gap)});
    }
    return out;
  }

 private:
  Rule rule_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Strided>();

}  // namespace
}  // namespace tapeformer
