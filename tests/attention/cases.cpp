#include "tests/attention/cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "autograd/tape.h"

namespace tapeformer::suite {
namespace {

std::vector<Case>& further_cases() {
  static std::vector<Case> cases;
  return cases;
}

bool has_causal_form(const Case& c) { return attention_registry().get(c.type).info.causal && !c.both_ways && !c.causal; }

i64 samples_of(const AttentionInput& in) { return in.any().dim(0); }

}  // namespace

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.type << " " << c.config << (c.causal ? " causal" : ""); }

bool add_cases(std::vector<Case> cases) {
  further_cases().insert(further_cases().end(), cases.begin(), cases.end());
  return true;
}

std::vector<Case> all_cases() {
  std::vector<Case> plain;
  for (const std::string& name : attention_registry().names())
    plain.push_back({.type = name, .config = attention_registry().get(name).info.example, .name = "example"});
  std::map<std::string, int> settings;
  for (Case c : further_cases()) {
    c.name = std::to_string(++settings[c.type]);
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
  const i64 values = core.value_dim() > 0 ? core.value_dim() : s.d;
  if (core.info().v) in.v = random_tensor({s.B, s.H, s.N, values}, t, key.fold_in("v").value());
  in.external = core.external_tokens();
  Tensor ids = Tensor::empty({s.B, s.N}, DType::I64);
  for (i64 i = 0; i < ids.numel(); ++i) ids.mut_ptr<i64>()[i] = static_cast<i64>(key.below(static_cast<std::uint64_t>(i), 5));
  in.side["token_ids"] = ids;
  const Tensor edges = in.side["edges"] = random_edges(s.N, key.fold_in("edges").value());
  Tensor types = in.side["edge_type"] = Tensor::empty({edges.dim(1)}, DType::I64);
  for (i64 e = 0; e < types.numel(); ++e) types.mut_ptr<i64>()[e] = e % 2;
  return in;
}

Tensor random_edges(i64 N, std::uint64_t seed) {
  const i64 E = std::min(3 * N, N * N);
  const KeyedPermutation pairs(static_cast<std::uint64_t>(N * N), RngKey(seed));
  Tensor edges = Tensor::empty({2, E}, DType::I64);
  i64* p = edges.mut_ptr<i64>();
  for (i64 e = 0; e < E; ++e) {
    const i64 pair = static_cast<i64>(pairs(static_cast<std::uint64_t>(e)));
    p[e] = pair % N;
    p[E + e] = pair / N;
  }
  return edges;
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

Tensor mask_of(const AttentionCore& core, Tensor mask) {
  if (core.external_tokens() > 0) mask.slice(1, 0, std::min(core.external_tokens(), mask.dim(1))).fill(1);
  return mask;
}

Tensor output_mask(const AttentionCore& core, const AttentionInput& in) {
  return core.shortens() ? core.shorten(in.x, in.mask).mask : in.mask;
}

Tensor random_upstream(const AttentionCore& core, const AttentionInput& in, std::uint64_t seed) {
  const Tensor o = core.attend(in, {});
  return random_tensor(o.shape(), o.dtype(), seed);
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
  for (auto& [name, t] : out.side)
    if (name.rfind("edge", 0) != 0) t = stack_rows(t, samples);  // all samples share the graph
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
  return run(core, in, ctx, random_upstream(core, in, 11 + static_cast<std::uint64_t>(samples_of(in))));
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

Tensor softmax_loop(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                    const std::function<bool(i64 b, i64 h, i64 i, i64 j)>& sees) {
  const i64 B = q.dim(0), H = q.dim(1), N = q.dim(2), M = k.dim(2), d = q.dim(3), dv = v.dim(3);
  const auto Q = q.to_vector(), K = k.to_vector(), V = v.to_vector();
  std::vector<double> o(static_cast<std::size_t>(B * H * N * dv), 0.0);
  for (i64 g = 0; g < B * H; ++g)
    for (i64 i = 0; i < N; ++i) {
      std::vector<double> s(static_cast<std::size_t>(M), -INFINITY);
      for (i64 j = 0; j < M; ++j) {
        if (!sees(g / H, g % H, i, j)) continue;
        s[static_cast<std::size_t>(j)] = 0;
        for (i64 c = 0; c < d; ++c)
          s[static_cast<std::size_t>(j)] +=
              scale * Q[static_cast<std::size_t>((g * N + i) * d + c)] * K[static_cast<std::size_t>((g * M + j) * d + c)];
      }
      double sum = 0;
      for (double x : s) sum += std::exp(x);
      for (i64 j = 0; j < M && sum > 0; ++j)
        for (i64 c = 0; c < dv; ++c)
          o[static_cast<std::size_t>((g * N + i) * dv + c)] +=
              std::exp(s[static_cast<std::size_t>(j)]) / sum * V[static_cast<std::size_t>((g * M + j) * dv + c)];
    }
  return Tensor::from<double>(o, {B, H, N, dv});
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
