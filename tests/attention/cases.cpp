#include "tests/attention/cases.h"

#include <cmath>
#include <cstring>

#include "autograd/tape.h"

namespace tapeformer::suite {
namespace {

const std::vector<Case>& further_cases() {
  static const std::vector<Case> cases{
      {.type = "full", .config = "{scale: 0.3}"},
      {.type = "full", .config = "{impl: naive}", .quadratic = true},
      {.type = "local", .config = "{window: 0}"},
      {.type = "local", .config = "{window: 1}"},  // the first key of a tile's first row ends the tile before
      {.type = "local", .config = "{window_left: 64, window_right: 63}"},
      {.type = "local", .config = "{window_left: 4, window_right: 1}"},
      {.type = "local", .config = "{window_left: 0, window_right: 2, scale: 0.7}"},
      {.type = "local", .config = "{mode: block, block_size: 3}"},
      {.type = "local", .config = "{mode: block, block_size: 4, look_back: 2, look_forward: 0}"},
      {.type = "local", .config = "{mode: block, block_size: 2, look_back: 0, look_forward: 1}"},
      {.type = "linear_transformer", .config = "{feature_map: relu, eps: 1e-2, chunk: 3}"},
      {.type = "linear_transformer", .config = "{feature_map: exp, chunk: 2}"},
      {.type = "linear_transformer", .config = "{feature_map: identity, normalize: false, scale: 0.5, chunk: 4}"},
      {.type = "synthesizer", .config = "{kind: dense}"},
      {.type = "synthesizer", .config = "{kind: dense, hidden: 3}"},
      {.type = "synthesizer", .config = "{kind: fixed_random}"},
      {.type = "sinkhorn", .config = "{block_size: 3, pool: sum, iters: 3, sort_hidden: 5}"},
      {.type = "sinkhorn", .config = "{block_size: 2, normalise: softmax, temperature: 0.5}"},
      {.type = "sinkhorn", .config = "{block_size: 3, hard: true}", .exact_gradient = false},
      {.type = "sinkhorn", .config = "{block_size: 3, hard: true, normalise: softmax}", .exact_gradient = false},
      {.type = "sinkhorn", .config = "{block_size: 3, sortcut: 2}"},
      {.type = "sinkhorn", .config = "{block_size: 2, sortcut: 1, normalise: softmax}"},
      {.type = "sinkhorn", .config = "{block_size: 3, sortcut: 2, hard: true}", .exact_gradient = false},
      {.type = "hybrid", .config = "{heads: [{type: full}, {type: local, window: 2}]}"},
      {.type = "hybrid", .config = "{heads: [{type: sinkhorn, block_size: 3}, {type: synthesizer, kind: dense}]}"},
      {.type = "hybrid", .config = "{heads: [{type: synthesizer}, {type: full, scale: 0.4}]}"},
      {.type = "hybrid", .config = "{heads: [{type: linear_transformer, repeat: 2}]}"},
      {.type = "hybrid", .config = "{heads: [{type: sinkhorn, block_size: 4, repeat: 2}]}"},
      {.type = "hybrid", .config = "{combine: union, heads: [{type: local, window: 1}, {type: local, mode: block, block_size: 3}]}"},
      {.type = "hybrid", .config = "{combine: union, scale: 0.6, heads: [{type: local, window_left: 3, window_right: 0}]}"},
      {.type = "hybrid", .config = "{combine: union, heads: [{type: full}, {type: local, window: 1}]}"},
  };
  return cases;
}

bool has_causal_form(const Case& c) {
  return attention_registry().get(c.type).info.causal && c.config.find("sortcut") == std::string::npos;
}

i64 samples_of(const AttentionInput& in) { return in.any().dim(0); }

}  // namespace

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.type << " " << c.config << (c.causal ? " causal" : ""); }

std::vector<Case> all_cases() {
  std::vector<Case> plain;
  for (const std::string& name : attention_registry().names())
    plain.push_back({.type = name, .config = attention_registry().get(name).info.example, .name = "example"});
  for (Case c : further_cases()) {
    c.name = std::to_string(plain.size());
    plain.push_back(c);
  }
  std::vector<Case> out;
  for (Case c : plain) {
    c.name = c.type + "_" + c.name;
    out.push_back(c);
    if (!has_causal_form(c)) continue;
    c.causal = true;
    c.name += "_causal";
    out.push_back(c);
  }
  return out;
}

AttentionSpec spec_of(const Case& c, const Sizes& s, double dropout) {
  return {.dim = s.dim(), .heads = s.H, .head_dim = s.d, .max_len = s.N, .causal = c.causal, .dropout = dropout};
}

ConfigNode config_of(const Case& c) {
  ConfigNode node = ConfigNode::parse(c.config, "test.yaml");
  node.set("type", ConfigNode::scalar(c.type));
  return node;
}

std::unique_ptr<AttentionCore> build(const Case& c, const AttentionSpec& spec, std::uint64_t seed) {
  auto core = build_attention(config_of(c), spec, RngKey(seed));
  for (Parameter* p : core->parameters()) {
    const Tensor noise = random_tensor(p->value.shape(), DType::F64, RngKey(seed).fold_in(p->name).value());
    std::vector<double> v = p->value.to_vector();
    for (std::size_t i = 0; i < v.size(); ++i) v[i] += 0.2 * noise.data<double>()[i];
    p->value.copy_from(Tensor::from<double>(v, p->value.shape()));
  }
  return core;
}

void copy_parameters(AttentionCore& from, AttentionCore& to) {
  const auto a = from.parameters(), b = to.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) b[i]->value.copy_from(a[i]->value);
  const auto c = from.buffers(), d = to.buffers();
  for (std::size_t i = 0; i < c.size(); ++i) d[i].tensor->copy_from(*c[i].tensor);
}

Tensor random_tensor(Shape shape, DType t, std::uint64_t seed) {  // the same numbers in f32 and f64
  Tensor x = Tensor::empty(shape, DType::F32);
  fill_normal(x, RngKey(seed), 0, 1);
  return x.to(t);
}

AttentionInput random_input(const AttentionCore& core, const Sizes& s, DType t, std::uint64_t seed) {
  AttentionInput in;
  const RngKey key(seed);
  in.x = random_tensor({s.B, s.N, s.dim()}, t, key.fold_in("x").value());
  if (core.wants_q()) in.q = random_tensor({s.B, s.H, s.N, s.d}, t, key.fold_in("q").value());
  if (core.wants_k()) in.k = random_tensor({s.B, s.H, s.N, s.d}, t, key.fold_in("k").value());
  in.v = random_tensor({s.B, s.H, s.N, s.d}, t, key.fold_in("v").value());
  Tensor ids = Tensor::empty({s.B, s.N}, DType::I64);
  for (i64 i = 0; i < ids.numel(); ++i) ids.mut_ptr<i64>()[i] = static_cast<i64>(key.below(static_cast<std::uint64_t>(i), 5));
  in.side["token_ids"] = ids;
  return in;
}

Tensor mixed_mask(i64 B, i64 N) {
  Tensor m = Tensor::full({B, N}, 1, DType::U8);
  std::uint8_t* p = m.mut_ptr<std::uint8_t>();
  for (i64 b = 0; b < B; ++b)
    for (i64 n = 0; n < N; ++n) {
      const i64 kind = B == 1 ? 1 : b;
      if (kind == 0)
        p[b * N + n] = n >= N / 3;
      else if (kind == 1)
        p[b * N + n] = n % 3 != 1;
      else
        p[b * N + n] = kind == 2 ? 0 : n < N - N / 4 - 1;
    }
  return m;
}

Tensor stack_rows(const Tensor& t, const std::vector<i64>& rows) {
  if (!t.defined()) return t;
  Shape shape = t.shape();
  shape[0] = static_cast<i64>(rows.size());
  Tensor out = Tensor::empty(shape, t.dtype());
  for (std::size_t i = 0; i < rows.size(); ++i)
    out.slice(0, static_cast<i64>(i), static_cast<i64>(i) + 1).copy_from(t.slice(0, rows[i], rows[i] + 1));
  return out;
}

AttentionInput take_samples(const AttentionInput& in, const std::vector<i64>& samples) {
  AttentionInput out = in;
  for (Tensor* t : {&out.x, &out.q, &out.k, &out.v, &out.mask}) *t = stack_rows(*t, samples);
  for (auto& [name, t] : out.side) t = stack_rows(t, samples);
  return out;
}

Tensor overwrite(const Tensor& t, const Tensor& where, bool when, double value) {
  Tensor out = t.clone();
  const bool heads = t.rank() == 4;
  for (i64 b = 0; b < where.dim(0); ++b)
    for (i64 n = 0; n < where.dim(1); ++n)
      if ((where.data<std::uint8_t>()[static_cast<std::size_t>(b * where.dim(1) + n)] != 0) == when)
        out.slice(0, b, b + 1).slice(heads ? 2 : 1, n, n + 1).fill(value);
  return out;
}

Named inputs_of(const AttentionInput& in) {
  Named out;
  for (const auto& [name, t] : Named{{"x", in.x}, {"q", in.q}, {"k", in.k}, {"v", in.v}})
    if (t.defined()) out[name] = t;
  return out;
}

void set_input(AttentionInput& in, const std::string& name, const Tensor& t) {
  (name == "x" ? in.x : name == "q" ? in.q : name == "k" ? in.k : in.v) = t;
}

Result run(AttentionCore& core, AttentionInput in, const Ctx& ctx, const Tensor& upstream) {
  Tape tape({.leaves = Tape::Leaves::Capture});
  Named watched;
  for (const auto& [name, t] : inputs_of(in)) set_input(in, name, watched[name] = tape.watch(t));
  Result r;
  const Tensor o = core.attend(in, ctx);
  r.o = o.detach().to_contiguous();
  if (o.grad_ref()) tape.backward(o, upstream);
  const auto keep = [&](const std::string& name, const Tensor& value, const Tensor& g) {
    r.grads[name] = g.defined() ? g.detach().to_contiguous() : Tensor::zeros(value.shape(), value.dtype());
  };
  for (const auto& [name, t] : watched) keep(name, t, o.grad_ref() ? tape.grad(t) : Tensor());
  for (Parameter* p : core.parameters()) keep("param/" + p->name, p->value, o.grad_ref() ? tape.grad(*p) : Tensor());
  return r;
}

Result run(AttentionCore& core, const AttentionInput& in, const Ctx& ctx) {
  return run(core, in, ctx, random_tensor(in.v.shape(), in.v.dtype(), 11 + static_cast<std::uint64_t>(samples_of(in))));
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = a.clone(), y = b.clone();  // clones start at their storage's first byte
  return x.numel() == 0 || std::memcmp(x.storage()->data(), y.storage()->data(), x.bytes()) == 0;
}

double difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::abs(x[i] - y[i]);
    if (!(e <= worst)) worst = std::isnan(e) ? INFINITY : e;
  }
  return worst;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace tapeformer::suite
