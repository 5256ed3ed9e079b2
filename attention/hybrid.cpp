// hybrid.cpp: a different attention in each head, or the union of several patterns in every head.
// Child et al. 2019 (arXiv 1904.10509) alternate heads; Roy et al. 2021 (arXiv 2003.05997) mix local and routed heads.
#include <algorithm>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct HybridConfig {
  std::string combine = "per_head";
  std::vector<ConfigNode> heads;
  std::optional<double> scale;
};
template <class V>
void visit_fields(V& v, HybridConfig& c) {
  v("combine", c.combine, OneOf{"per_head", "union"},
    "a variant in each head, or one softmax over the union of the listed patterns in every head");
  v("heads", c.heads, "list of {type: ..., repeat: n, its keys}: one entry a head after repeat (per_head), or any number (union)");
  v("scale", c.scale, above(0), "union only: factor of q.k; null = 1/sqrt(d)");
}

class Union final : public kernels::Pattern {
 public:
  explicit Union(std::vector<std::shared_ptr<const kernels::Pattern>> parts) : parts_(std::move(parts)) {}
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    Cover best = Cover::None;
    for (const auto& p : parts_) {
      const Cover c = p ? p->cover(b, h, q0, q1, k0, k1) : Cover::Full;
      if (c == Cover::Full) return c;
      if (c == Cover::Partial) best = c;
    }
    return best;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    thread_local std::vector<std::uint8_t> one;
    std::fill_n(allowed, k1 - k0, std::uint8_t{0});
    for (const auto& p : parts_) {
      one.assign(static_cast<std::size_t>(k1 - k0), std::uint8_t{1});
      if (p) p->row(b, h, i, k0, k1, one.data());
      for (std::size_t j = 0; j < one.size(); ++j) allowed[j] |= one[j];
    }
  }
  void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const override {
    for (const auto& p : parts_) {
      if (!p) {
        for (i64 t = 0; t * tile < keys; ++t) out.push_back(t);
      } else {
        p->key_tiles(b, h, q0, q1, keys, tile, out);
      }
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
  }
  bool same_for_samples() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& p) { return !p || p->same_for_samples(); });
  }
  bool same_for_heads() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& p) { return !p || p->same_for_heads(); });
  }

 private:
  std::vector<std::shared_ptr<const kernels::Pattern>> parts_;
};

// A part without the pairs that others hold already, which are asked by position.
class Without final : public kernels::Pattern {
 public:
  Without(ops::AttentionPart part, std::vector<std::shared_ptr<const kernels::Pattern>> others)
      : part_(std::move(part)), others_(std::move(others)) {}
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    return part_.pattern && part_.pattern->cover(b, h, q0, q1, k0, k1) == Cover::None ? Cover::None : Cover::Partial;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    if (part_.pattern) part_.pattern->row(b, h, i, k0, k1, allowed);
    const i64 query = position(part_.queries, b, h, i);
    for (i64 j = k0; j < k1; ++j)
      for (std::size_t other = 0; other < others_.size() && allowed[j - k0]; ++other) {
        const i64 key = position(part_.keys, b, h, j);
        std::uint8_t held = 1;
        if (query >= 0 && key >= 0) others_[other]->row(b, h, query, key, key + 1, &held);
        allowed[j - k0] = !held;
      }
  }
  void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const override {
    part_.pattern ? part_.pattern->key_tiles(b, h, q0, q1, keys, tile, out) : Pattern::key_tiles(b, h, q0, q1, keys, tile, out);
  }

 private:
  static i64 position(const Tensor& order, i64 b, i64 h, i64 place) {
    if (!order.defined()) return place;
    if (order.rank() == 1) return order.ptr<i64>()[place];
    return order.ptr<i64>()[(order.dim(0) > 1 ? b : 0) * order.stride(0) + (order.dim(1) > 1 ? h : 0) * order.stride(1) + place];
  }
  ops::AttentionPart part_;
  std::vector<std::shared_ptr<const kernels::Pattern>> others_;
};

std::vector<ConfigNode> expand(const std::vector<ConfigNode>& heads) {
  std::vector<ConfigNode> out;
  for (const ConfigNode& head : heads) {
    if (!head.is_map()) throw ConfigError(head.place() + ": expected {type: ...}");
    if (head["causal"]) throw ConfigError(head["causal"].place() + ": causality belongs to the model, not to a head");
    if (attention_registry().get(attention_type(head)).info.place != Place::Core)
      throw ConfigError(fmt::format("{}: '{}' does not work on heads and cannot be one of a hybrid", head.place(), attention_type(head)));
    if (attention_type(head) == "hybrid") throw ConfigError(head.place() + ": a hybrid cannot hold a hybrid");
    i64 repeat = 1;
    if (const ConfigNode& r = head["repeat"]) {
      detail::read_scalar(r, repeat);
      detail::check(r, static_cast<double>(repeat), at_least(1));
    }
    ConfigNode one = head;
    one.erase("repeat");
    out.insert(out.end(), static_cast<std::size_t>(repeat), one);
  }
  return out;
}

Tensor heads_of(const Tensor& t, i64 from, i64 to, int axis = 1) { return t.defined() ? ops::slice(t, axis, from, to) : t; }

// Side inputs with a row for each head, and the axis of the heads: fixed draws and projections that are given.
constexpr std::pair<const char*, int> kByHead[] = {{"gumbel", 1}, {"rotations", 0}, {"rand_blocks", 0}, {"centroids", 0},  {"edge_bias", 0},
                                                   {"qg", 1},     {"kg", 1},        {"vg", 1},          {"gate_logits", 1}};

// Keys of a head's own that stand before the sequence, where the variant has external tokens. In a hybrid they are no rows of the model:
// the core runs on g more rows, which are keys only.
class OwnTokens {
 public:
  OwnTokens(Module* owner, const std::string& path, i64 tokens, const AttentionSpec& s, RngKey key)
      : tokens_(tokens),
        ek_(owner, path + ".ek", {1, tokens, s.head_dim}, Init::normal(0.02), key, false),
        ev_(owner, path + ".ev", {1, tokens, s.dv()}, Init::normal(0.02), key, false) {}

  Tensor attend(const AttentionCore& core, AttentionInput in, const Ctx& ctx) const {
    const i64 B = in.q.dim(0), N = in.q.dim(2), g = tokens_;
    const auto put = [&](Tensor& t, const Tensor& front) {
      t = ops::concat({ops::expand(ops::reshape(front, {1, 1, g, t.dim(3)}), {B, 1, g, t.dim(3)}), t}, 2);
    };
    put(in.q, Tensor::zeros({g, in.q.dim(3)}, in.q.dtype()));
    put(in.k, ek_.get());
    put(in.v, ev_.get());
    const Tensor mask = in.mask.defined() ? in.mask : Tensor::full({B, N}, 1, DType::U8);
    in.mask = ops::concat({Tensor::zeros({B, g}, DType::U8), mask}, 1);
    in.key_mask = ops::concat({Tensor::full({B, g}, 1, DType::U8), mask}, 1);
    in.external = g;
    return ops::slice(core.attend(in, ctx), 2, g, g + N);
  }

 private:
  i64 tokens_;
  Weight ek_, ev_;
};

// Runs each head's core on its slice. Neighbouring heads with the same parameter-free config run as one call.
class Hybrid final : public AttentionCore {
 public:
  using Config = HybridConfig;
  static AttentionInfo describe() {
    return {.name = "hybrid",
            .summary = "a different attention in each head, or the union of patterns in every head",
            .formula = "o[:, h] = variant_h(q[:, h], k[:, h], v[:, h])",
            .paper = "Child et al. 2019, arXiv 1904.10509; Roy et al. 2021, arXiv 2003.05997",
            .cost = "the sum of its heads; one full head makes it quadratic",
            .example = "{heads: [{type: local, window: 3}, {type: linear_transformer}]}"};
  }

  Hybrid(Config c, const AttentionSpec& spec, RngKey key) : config_(std::move(c)), spec_(spec) {
    const std::vector<ConfigNode> heads = expand(config_.heads);
    if (heads.empty()) throw ConfigError("heads: missing; give a list of {type: ...}");
    if (config_.combine == "per_head")
      per_head(heads, key);
    else
      united(heads, key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    if (config_.combine == "union") return (*parts_[0].core)->attend(in, ctx);
    std::vector<Tensor> out;
    for (const PartOf& p : parts_) {
      AttentionInput one = in;
      require_side(**p.core, in);
      one.q = heads_of(in.q, p.from, p.to);
      one.k = heads_of(in.k, p.from, p.to);
      one.v = heads_of(in.v, p.from, p.to);
      for (const auto& [name, axis] : kByHead)
        if (const auto it = one.side.find(name); it != one.side.end()) it->second = heads_of(it->second, p.from, p.to, axis);
      one.extra = nullptr;
      const Ctx here = ctx.at(p.from);
      out.push_back(p.tokens ? p.tokens->attend(**p.core, one, here) : (*p.core)->attend(one, here));
    }
    return out.size() == 1 ? out[0] : ops::concat(out, 1);
  }
  void start_from(const Projections& all) override {
    const auto cut = [&](const Tensor& t, const PartOf& p) {  // columns of its heads
      const i64 d = t.defined() ? t.dim(-1) / spec_.heads : 0;
      return t.defined() ? t.slice(t.rank() - 1, p.from * d, p.to * d).to_contiguous() : t;
    };
    for (const PartOf& p : parts_)
      (*p.core)->start_from({.Wq = cut(all.Wq, p),
                             .Wk = cut(all.Wk, p),
                             .Wv = cut(all.Wv, p),
                             .bq = cut(all.bq, p),
                             .bk = cut(all.bk, p),
                             .bv = cut(all.bv, p)});
  }
  bool wants_q() const override {
    return config_.combine == "union" || std::any_of(parts_.begin(), parts_.end(), [](const PartOf& p) { return (*p.core)->wants_q(); });
  }
  bool wants_k() const override {
    return config_.combine == "union" || std::any_of(parts_.begin(), parts_.end(), [](const PartOf& p) { return (*p.core)->wants_k(); });
  }

 private:
  struct PartOf {
    i64 from, to;  // heads
    std::unique_ptr<Child<AttentionCore>> core;
    std::unique_ptr<OwnTokens> tokens;
  };

  // The union of several pattern cores, as a pattern core of its own.
  class UnionCore final : public PatternCore {
   public:
    UnionCore(const std::vector<ConfigNode>& parts, const AttentionSpec& spec, std::optional<double> scale, RngKey key)
        : PatternCore(spec, scale) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        AttentionSpec one = spec;
        one.hybrid = true;
        one.place = spec.place.fold_in(i);
        std::unique_ptr<AttentionCore> core = build_attention(parts[i], one, key.fold_in(i));
        const bool is_full = attention_type(parts[i]) == "full";
        auto* pattern = dynamic_cast<PatternCore*>(core.get());
        if ((!pattern && !is_full) || core->external_tokens() > 0)
          throw ConfigError(
              fmt::format("{}: '{}' is no pattern of keys and cannot be part of a union", parts[i].place(), core->info().name));
        if (parts[i]["scale"] && !parts[i]["scale"].is_null())
          throw ConfigError(parts[i]["scale"].place() + ": in a union the scale belongs to the hybrid");
        patterns_.push_back(pattern);
        cores_.emplace_back(this, std::to_string(i), std::move(core));
      }
    }
    const AttentionInfo& info() const override {
      static const AttentionInfo i = describe();
      return i;
    }
    std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput& in) const override {
      std::vector<std::shared_ptr<const kernels::Pattern>> parts;
      for (const PatternCore* p : patterns_) parts.push_back(p ? p->pattern(in) : nullptr);
      return std::make_shared<Union>(std::move(parts));
    }
    // Patterns that run as they are form one part; each of the others keeps its own parts, without the pairs before it.
    std::vector<ops::AttentionPart> parts(const AttentionInput& in) const override {
      std::vector<std::shared_ptr<const kernels::Pattern>> held;
      std::vector<std::pair<const PatternCore*, std::vector<ops::AttentionPart>>> ordered;
      for (const PatternCore* p : patterns_) {
        std::vector<ops::AttentionPart> own = p ? p->parts(in) : std::vector<ops::AttentionPart>(1);
        const bool plain = own.size() == 1 && !own[0].queries.defined() && !own[0].keys.defined();
        if (plain && own[0].pattern == nullptr) return own;  // every pair
        if (plain)
          held.push_back(own[0].pattern);
        else
          ordered.emplace_back(p, std::move(own));
      }
      std::vector<ops::AttentionPart> out;
      if (!held.empty()) out.push_back({.queries = {}, .keys = {}, .pattern = std::make_shared<Union>(held)});
      for (auto& [core, own] : ordered) {
        for (ops::AttentionPart& part : own) {
          out.push_back(part);
          if (!held.empty()) out.back().pattern = std::make_shared<Without>(std::move(part), held);
        }
        held.push_back(core->pattern(in));
      }
      return out;
    }

   private:
    std::vector<Child<AttentionCore>> cores_;
    std::vector<const PatternCore*> patterns_;  // null = full
  };

  void add(i64 from, i64 to, const std::string& name, std::unique_ptr<AttentionCore> core, std::unique_ptr<OwnTokens> tokens = nullptr) {
    parts_.push_back({from, to, std::make_unique<Child<AttentionCore>>(this, name, std::move(core)), std::move(tokens)});
  }

  // What a head cannot be: its rows would not fit beside those of the others.
  void check_head(const ConfigNode& head, const AttentionCore& core) const {
    if (core.shortens()) throw ConfigError(fmt::format("{}: '{}' gives fewer rows than other heads", head.place(), core.info().name));
    if (core.value_dim() > 0 && core.value_dim() != spec_.dv())
      throw ConfigError(fmt::format("{}: this head gives {} values, the others {}", head.place(), core.value_dim(), spec_.dv()));
  }

  static bool has_no_weights(AttentionCore& core) {  // nothing learned or kept for each head; a seed is no such thing
    const auto buffers = core.buffers();
    return core.parameters().empty() && core.external_tokens() == 0 &&
           std::all_of(buffers.begin(), buffers.end(), [](const NamedBuffer& b) { return b.tensor->rank() == 0; });
  }

  void per_head(const std::vector<ConfigNode>& heads, RngKey key) {
    const i64 H = static_cast<i64>(heads.size());
    if (H != spec_.heads) throw ConfigError(fmt::format("heads: the list gives {} heads after repeat, the model has {}", H, spec_.heads));
    if (config_.scale) throw ConfigError("scale: with combine: per_head each head has its own scale");
    for (i64 h = 0; h < H;) {
      const ConfigNode& head = heads[static_cast<std::size_t>(h)];
      const RngKey own = key.fold_in(static_cast<std::uint64_t>(h));
      AttentionSpec one = spec_;
      one.heads = 1;
      one.hybrid = true;
      one.place = spec_.place.fold_in(static_cast<std::uint64_t>(h));
      std::unique_ptr<AttentionCore> core = build_attention(head, one, own);
      check_head(head, *core);
      i64 to = h + 1;
      while (to < H && has_no_weights(*core) && heads[static_cast<std::size_t>(to)] == head) ++to;
      if (to > h + 1) {
        one.heads = to - h;
        core = build_attention(head, one, own);
      }
      const std::string name = "heads." + std::to_string(h);
      const i64 tokens = core->external_tokens();
      add(h, to, name, std::move(core), tokens > 0 ? std::make_unique<OwnTokens>(this, name, tokens, one, own) : nullptr);
      h = to;
    }
  }

  void united(const std::vector<ConfigNode>& heads, RngKey key) {
    add(0, spec_.heads, "union", std::make_unique<UnionCore>(heads, spec_, config_.scale, key));
  }

  Config config_;
  AttentionSpec spec_;
  std::vector<PartOf> parts_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Hybrid>();

}  // namespace
}  // namespace tapeformer
