#include "attention/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention/attention.h"
#include "attention/projected.h"
#include "attention/conv_as_attention.h"
#include "autograd/ops.h"
#include "autograd/reversible.h"
#include "core/hdf5_file.h"
#include "layers/patch_embedding.h"

namespace tapeformer {
namespace {

struct Golden {
  std::string file, variant, type;
  ConfigNode config;
  std::map<std::string, Tensor> inputs, params, outputs, grads;
  bool sparse_family = false;  // has `margin`: its own f32 tolerances
};

std::map<std::string, Tensor> read_group(const Hdf5File& f, const std::string& group) {
  std::map<std::string, Tensor> out;
  for (const std::string& name : f.list(group)) out[name] = f.read(group + "/" + name);
  return out;
}

// "synthesizer_dense" is type synthesizer with kind dense.
std::string registered_type(const std::string& variant) {
  if (attention_registry().contains(variant)) return variant;
  std::string best;
  for (const std::string& name : attention_registry().names())
    if (variant.rfind(name + "_", 0) == 0 && name.size() > best.size()) best = name;
  return best;
}

Golden load(const std::string& file) {
  const Hdf5File f = Hdf5File::open(file);
  for (const char* name : {"variant", "config"})
    if (!f.has_attribute("/", name)) throw IoError(fmt::format("{}: no golden file: attribute '{}' is missing", file, name));
  Golden g;
  g.file = file;
  g.variant = f.read_text("/", "variant");
  g.config = ConfigNode::parse(f.read_text("/", "config"), file);
  g.inputs = read_group(f, "/inputs");
  g.params = read_group(f, "/params");
  g.outputs = read_group(f, "/outputs");
  g.grads = read_group(f, "/grads");
  g.sparse_family = f.has_attribute("/", "margin");
  g.type = registered_type(g.variant);
  for (const char* name : {"inputs/cotangent", "outputs/o"}) {
    const auto& group = name[0] == 'i' ? g.inputs : g.outputs;
    if (!group.count(name[0] == 'i' ? "cotangent" : "o"))
      throw IoError(fmt::format("{}: no golden file: dataset '/{}' is missing", file, name));
  }
  return g;
}

// The keys of the file that the variant knows: files also hold sizes and labels.
ConfigNode known_keys(const Golden& g) {
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar(g.type));
  for (const FieldHelp& field : attention_registry().get(g.type).explain())
    if (const ConfigNode& value = g.config[field.key])
      out.set(field.key, value);
    else if (field.key == "dropout")  // no file drops anything
      out.set(field.key, ConfigNode::scalar("0"));
  if (g.variant.size() > g.type.size()) out.set("kind", ConfigNode::scalar(g.variant.substr(g.type.size() + 1)));
  return out;
}

AttentionSpec spec_of(const Golden& g) {
  const Tensor& o = g.outputs.at("o");
  const bool core = attention_registry().get(g.type).info.place == Place::Core;
  if (o.rank() != (core ? 4 : 3))
    throw ShapeError(fmt::format("{}: outputs/o is {}, expected {}", g.file, o.shape().str(), core ? "[B, H, N, dv]" : "[B, N, D]"));
  AttentionSpec s;
  if (core) {
    s.heads = o.dim(1);
    s.head_dim = g.inputs.count("q") ? g.inputs.at("q").dim(3) : o.dim(3);
    s.dim = g.inputs.count("x") ? g.inputs.at("x").dim(2) : s.heads * s.head_dim;
  } else {
    if (!g.inputs.count("x")) throw IoError(fmt::format("{}: missing datasets: inputs/x", g.file));
    s.dim = g.inputs.at("x").dim(2);
    if (const ConfigNode& heads = g.config["heads"]; heads.is_scalar()) s.heads = std::stoll(heads.text());
    s.head_dim = s.dim / s.heads;
  }
  const auto length = [&](const char* name, int axis) { return g.inputs.count(name) ? g.inputs.at(name).dim(axis) : 0; };
  s.value_dim = length("v", 3);
  s.max_len = std::max({length("mask", 1), length("x", 1), length("q", 2), length("v", 2)});
  if (const ConfigNode& most = g.config["max_len"]; most.is_scalar() && !most.is_null())
    s.max_len = std::max<i64>(s.max_len, std::stoll(most.text()));
  s.gmask = g.inputs.count("gmask") > 0;
  s.causal = g.config["causal"] && g.config["causal"].text() == "true";
  return s;
}

struct Tolerance {
  double absolute, relative;
};
Tolerance tolerance(const Golden& g, DType t, bool gradient) {
  if (t == DType::F64) return {1e-10, g.sparse_family ? 0 : 1e-9};
  if (g.sparse_family) return {gradient ? 2e-5 : 5e-6, 0};
  return {2e-5, 2e-4};
}

// Rows of padding in t: [B, H, N, .] or [B, N, .] beside mask [B, N].
bool padding_is_zero(const Tensor& t, const Tensor& mask) {
  const bool heads = t.rank() == 4 && t.dim(0) == mask.dim(0) && t.dim(2) == mask.dim(1);
  const bool plain = t.rank() == 3 && t.dim(0) == mask.dim(0) && t.dim(1) == mask.dim(1);
  if (!heads && !plain) return true;
  const std::vector<double> v = t.to_vector();
  const i64 H = heads ? t.dim(1) : 1, N = mask.dim(1), width = t.dim(-1);
  for (i64 b = 0; b < mask.dim(0); ++b)
    for (i64 h = 0; h < H; ++h)
      for (i64 n = 0; n < N; ++n) {
        if (mask.data<std::uint8_t>()[static_cast<std::size_t>(b * N + n)]) continue;
        for (i64 j = 0; j < width; ++j)
          if (v[static_cast<std::size_t>(((b * H + h) * N + n) * width + j)] != 0) return false;
      }
  return true;
}

TensorCheck compare(const Golden& g, const std::string& name, const Tensor& got, const Tensor& want, DType t, bool gradient) {
  TensorCheck c{.name = name, .dtype = t};
  const Tolerance tol = tolerance(g, t, gradient);
  c.allowed = tol.absolute;
  const std::vector<double> y = want.to_vector();
  if (!got.defined() && std::all_of(y.begin(), y.end(), [](double v) { return v == 0; })) {
    c.pass = true;  // no gradient exists, and the file says zero
    return c;
  }
  if (!got.defined() || got.shape() != want.shape())
    throw ShapeError(
        fmt::format("{}: {} is {} here, {} in the file", g.file, name, got.defined() ? got.shape().str() : "missing", want.shape().str()));
  const std::vector<double> x = got.to_vector();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double excess = std::abs(x[i] - y[i]) - tol.relative * std::abs(y[i]);
    if (!(excess <= c.error)) c.error = std::isnan(excess) ? INFINITY : excess;
  }
  const auto mask = g.inputs.find("mask");
  if (mask != g.inputs.end() && is_float(want.dtype())) c.padding_exact = padding_is_zero(got, mask->second);
  c.pass = c.error <= c.allowed && c.padding_exact;
  return c;
}

void set_named(const std::string& file, const std::string& name, Tensor& target, const Tensor& value) {
  if (target.shape() != value.shape())
    throw ShapeError(fmt::format("{}: params/{} is {}, the variant has {}", file, name, value.shape().str(), target.shape().str()));
  target.copy_from(value);
}

// Parameters and buffers by name. What the file lacks is returned: it must turn out to be unused.
std::vector<Parameter*> fill_parameters(const Golden& g, Module& module) {
  std::vector<Parameter*> missing;
  for (Parameter* p : module.parameters()) {
    const auto it = g.params.find(p->name);
    if (it == g.params.end())
      missing.push_back(p);
    else
      set_named(g.file, p->name, p->value, it->second);
  }
  for (const Module::NamedBuffer& b : module.buffers())
    if (const auto it = g.inputs.find(b.path); it != g.inputs.end()) set_named(g.file, b.path, *b.tensor, it->second);
  return missing;
}

// The file's tensors as the core reads them. Files say qk for a shared query and key, h for the values of a graph, and hold external tokens
// apart (params eq, ek, ev [H, g, d]), which stand in front of the sequence here.
struct Fed {
  AttentionInput in;
  std::map<std::string, Tensor> extra, watched;  // watched: whatever has a gradient in the file
};

void feed(const Golden& g, DType t, Tape& tape, const AttentionCore& core, Fed& fed) {
  AttentionInput& in = fed.in;
  in.extra = &fed.extra;
  const auto put = [&](const std::string& name, const Tensor& x) {
    if (name == "q" || name == "qk")
      in.q = x;
    else if (name == "k")
      in.k = x;
    else if (name == "v" || name == "h")
      in.v = x;
    else if (name == "x")
      in.x = x;
    else if (name == "mask")
      in.mask = x;
    else
      in.side[name] = x;
  };
  const auto watch = [&](const std::string& name, const Tensor& value) {
    const Tensor x = is_float(value.dtype()) ? value.to(t) : value;
    if (!g.grads.count(name)) return x;
    return fed.watched[name] = tape.watch(x);
  };
  for (const auto& [name, value] : g.inputs)
    if (name.rfind("cotangent", 0) != 0) put(name, watch(name, value));
  if (g.params.count("edge_bias")) put("edge_bias", watch("edge_bias", g.params.at("edge_bias")));  // graph: one value for each given edge
  const std::pair<const char*, bool> wanted[] = {{"q", core.wants_q()}, {"k", core.wants_k()}, {"v", core.info().v}};
  for (const auto& [name, needed] : wanted)
    if (needed && !(name[0] == 'q' ? in.q : name[0] == 'k' ? in.k : in.v).defined())
      throw IoError(fmt::format("{}: missing datasets: inputs/{}", g.file, name));
  if (core.external_tokens() == 0) return;
  const i64 B = in.q.dim(0), rows = core.external_tokens();
  for (const auto& [name, x] : {std::pair{"eq", &in.q}, {"ek", &in.k}, {"ev", &in.v}}) {
    if (!g.params.count(name)) throw IoError(fmt::format("{}: missing datasets: params/{}", g.file, name));
    const Tensor e = watch(name, g.params.at(name));
    *x = ops::concat({ops::expand(ops::reshape(e, {1, e.dim(0), e.dim(1), e.dim(2)}), {B, e.dim(0), e.dim(1), e.dim(2)}), *x}, 2);
  }
  in.external = rows;
  in.mask = in_front(in.mask.defined() ? in.mask : Tensor::full({B, in.q.dim(2) - rows}, 1, DType::U8), rows, 1);
  for (auto& [name, x] : in.side)
    if (name == "token_ids" || name == "gmask") x = in_front(x, rows, name == "token_ids" ? -1 : 0);
}

// A second layer with the same core (weights that layers share): inputs q2, k2, v2; the outputs add up.
Tensor with_second_layer(const AttentionCore& core, const AttentionInput& in, const Ctx& ctx, const Tensor& o) {
  if (!in.find("v2")) return o;
  AttentionInput second = in;
  second.q = in.find("q2") ? *in.find("q2") : Tensor();
  second.k = in.find("k2") ? *in.find("k2") : Tensor();
  second.v = *in.find("v2");
  return ops::add(o, core.attend(second, ctx));
}

void check_gradients(const Golden& g, DType t, const Tape& tape, const std::map<std::string, Tensor>& watched, Module& module,
                     const std::vector<Parameter*>& missing, std::vector<TensorCheck>& checks) {
  std::map<std::string, Tensor> gradients;
  for (const auto& [name, x] : watched) gradients[name] = tape.grad(x);
  for (Parameter* p : module.parameters()) gradients[p->name] = tape.grad(*p);
  std::vector<std::string> needed;
  for (const Parameter* p : missing)
    if (gradients[p->name].defined()) needed.push_back("params/" + p->name);
  if (!needed.empty()) throw IoError(fmt::format("{}: missing datasets: {}", g.file, join(needed)));
  for (const auto& [name, want] : g.grads) checks.push_back(compare(g, "grads/" + name, gradients[name], want, t, true));
}

void run(const Golden& g, DType t, std::vector<TensorCheck>& checks) {
  const DTypeScope scope(t);
  const std::unique_ptr<AttentionCore> core = build_attention(known_keys(g), spec_of(g), RngKey(1));
  const std::vector<Parameter*> missing = fill_parameters(g, *core);
  Tape tape({.leaves = Tape::Leaves::Capture});
  Fed fed;
  feed(g, t, tape, *core, fed);
  StepEffects effects;
  Ctx ctx;
  ctx.training = g.config["training"] && g.config["training"].text() == "true";
  ctx.effects = ctx.training ? &effects : nullptr;
  Tensor o = with_second_layer(*core, fed.in, ctx, core->attend(fed.in, ctx));
  Tensor cotangent = g.inputs.at("cotangent").to(t);
  const i64 external = core->external_tokens();
  const Tensor o_ext = external > 0 ? o.slice(2, 0, external) : Tensor();
  checks.push_back(compare(g, "outputs/o", external > 0 ? o.slice(2, external, o.dim(2)) : o, g.outputs.at("o"), t, false));
  if (external > 0) {
    fed.extra["o_ext"] = o_ext;
    const auto it = g.inputs.find("cotangent_ext");
    if (it == g.inputs.end()) throw IoError(fmt::format("{}: missing datasets: inputs/cotangent_ext", g.file));
    cotangent = ops::concat({it->second.to(t), cotangent}, 2);
  }
  for (const auto& [name, want] : g.outputs)
    if (name != "o") checks.push_back(compare(g, "outputs/" + name, fed.extra[name], want, t, false));
  if (!o.grad_ref()) return;
  tape.backward(o, cotangent);
  check_gradients(g, t, tape, fed.watched, *core, missing, checks);
}

// What takes an image and is no attention variant, on its file's input `img`.
struct ImageLayer {
  std::unique_ptr<Module> module;
  std::function<Tensor(const Tensor& image, std::map<std::string, Tensor>& further)> forward;
};

ImageLayer image_layer(const Golden& g) {
  const Tensor &image = g.inputs.at("img"), &W = g.params.at("W");
  if (g.variant == "vit_patch") {
    const PatchEmbeddingConfig c{.patch = W.dim(2),
                                 .height = image.dim(2),
                                 .width = image.dim(3),
                                 .channels = image.dim(1),
                                 .dim = W.dim(0),
                                 .class_token = g.params.count("cls") > 0,
                                 .positions = g.params.count("pos") > 0};
    auto layer = std::make_unique<PatchEmbedding>(c, RngKey(1));
    const PatchEmbedding& embed = *layer;
    return {std::move(layer), [&embed](const Tensor& x, auto&) { return embed.forward(x); }};
  }
  ConvAsAttentionConfig c{.in = W.dim(1), .out = W.dim(0), .kernel_h = W.dim(2), .kernel_w = W.dim(3)};
  detail::read_scalar(g.config["alpha"], c.alpha);
  auto layer = std::make_unique<ConvAsAttention>(c, RngKey(1));
  const ConvAsAttention& demonstration = *layer;
  return {std::move(layer), [&demonstration](const Tensor& x, std::map<std::string, Tensor>& further) {
            further["conv2d"] = demonstration.convolution(x);
            return demonstration.forward(x);
          }};
}

bool is_image_layer(const Golden& g) { return g.variant == "vit_patch" || g.variant == "conv_as_attention"; }

void run_on_image(const Golden& g, DType t, std::vector<TensorCheck>& checks) {
  const DTypeScope scope(t);
  if (!g.inputs.count("img") || !g.params.count("W")) throw IoError(fmt::format("{}: missing datasets: inputs/img or params/W", g.file));
  const ImageLayer layer = image_layer(g);
  const std::vector<Parameter*> missing = fill_parameters(g, *layer.module);
  Tape tape({.leaves = Tape::Leaves::Capture});
  const Tensor image = tape.watch(g.inputs.at("img").to(t));
  std::map<std::string, Tensor> further;
  const Tensor o = layer.forward(image, further);
  further["o"] = o;
  for (const auto& [name, want] : g.outputs) checks.push_back(compare(g, "outputs/" + name, further[name], want, t, false));
  tape.backward(o, g.inputs.at("cotangent").to(t));
  check_gradients(g, t, tape, {{"img", image}}, *layer.module, missing, checks);
}

// Files of variant `reversible`: the stack x1 += tanh(x2 WF[l]), x2 += tanh(x1 WG[l]); o = x1, o2 = x2.
void run_reversible(const Golden& g, DType t, std::vector<TensorCheck>& checks) {
  for (const auto& [group, name] :
       {std::pair{&g.inputs, "x1"}, {&g.inputs, "x2"}, {&g.inputs, "cotangent2"}, {&g.params, "WF"}, {&g.params, "WG"}})
    if (!group->count(name)) throw IoError(fmt::format("{}: no golden file: dataset '{}' is missing", g.file, name));
  const i64 layers = g.params.at("WF").dim(0), D = g.params.at("WF").dim(1);
  std::map<std::string, std::vector<std::unique_ptr<Parameter>>> weights;
  std::vector<Parameter*> all;
  std::vector<ReversibleBlock> blocks(static_cast<std::size_t>(layers));
  for (i64 l = 0; l < layers; ++l) {
    const auto half = [&](const char* name) -> ReversibleBlock::Half {
      Parameter* p = weights[name].emplace_back(std::make_unique<Parameter>()).get();
      p->value = g.params.at(name).slice(0, l, l + 1).view({D, D}).to(t).clone();
      all.push_back(p);
      return [p](const Tensor& x, bool) { return ops::tanh(ops::linear(x, Tape::current() ? Tape::current()->leaf(*p) : p->value)); };
    };
    blocks[static_cast<std::size_t>(l)] = {half("WF"), half("WG")};
  }
  Tape tape({.leaves = Tape::Leaves::Capture});
  const Tensor x1 = tape.watch(g.inputs.at("x1").to(t)), x2 = tape.watch(g.inputs.at("x2").to(t));
  const Tensor y = reversible(std::move(blocks), x1, x2, all);
  const auto pair = [&](const Tensor& a, const Tensor& b) {
    const Shape one{1, x1.dim(0), x1.dim(1), x1.dim(2)};
    return ops::concat({a.view(one), b.view(one)}, 0);
  };
  const Tensor want = pair(g.outputs.at("o"), g.outputs.at("o2")), cotangent = pair(g.inputs.at("cotangent"), g.inputs.at("cotangent2"));
  checks.push_back(compare(g, "outputs/o, o2", y.detach(), want, t, false));
  tape.backward(y, cotangent.to(t));
  std::map<std::string, Tensor> gradients{{"x1", tape.grad(x1)}, {"x2", tape.grad(x2)}};
  for (const auto& [name, of] : weights) {
    gradients[name] = Tensor::empty({layers, D, D}, t);
    for (i64 l = 0; l < layers; ++l)
      gradients[name].slice(0, l, l + 1).copy_from(tape.grad(*of[static_cast<std::size_t>(l)]).view({1, D, D}));
  }
  for (const auto& [name, want_grad] : g.grads) checks.push_back(compare(g, "grads/" + name, gradients[name], want_grad, t, true));
}

// Why this file cannot run: its variant, kind or a head's type is not here; or "".
std::string unknown_part(const Golden& g) {
  const std::vector<std::string> names = attention_registry().names();
  if (g.type.empty()) return fmt::format("unknown variant '{}', known: {}{}", g.variant, join(names), did_you_mean(g.variant, names));
  const std::string kind = g.variant.size() > g.type.size() ? g.variant.substr(g.type.size() + 1) : "";
  for (const FieldHelp& field : attention_registry().get(g.type).explain())
    if (!kind.empty() && field.key == "kind" && (field.type + ",").find(" " + kind + ",") == std::string::npos)
      return fmt::format("'{}' has no kind '{}', known: {}", g.type, kind, field.type);
  for (const ConfigNode& head : g.config["heads"].items())
    if (!attention_registry().contains(head["type"].text())) return fmt::format("a head is of unknown type '{}'", head["type"].text());
  return "";
}

}  // namespace

bool GoldenReport::pass() const {
  return skipped.empty() && !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const TensorCheck& c) { return c.pass; });
}

GoldenReport verify_golden(const std::string& file) {
  const Golden g = load(file);
  GoldenReport report{.file = file, .variant = g.variant, .type = g.type};
  // What is no attention variant has a way of its own.
  auto* const go = g.variant == "reversible" ? run_reversible : is_image_layer(g) ? run_on_image : run;
  if (go == run)
    report.skipped = unknown_part(g);
  else
    report.type = g.variant;
  if (!report.skipped.empty()) return report;
  for (DType t : {DType::F64, DType::F32}) go(g, t, report.checks);
  return report;
}

}  // namespace tapeformer
