#include "optim/optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/kernels/elementwise.h"

namespace tapeformer {

void Optimizer::attach(std::span<Parameter* const> parameters, std::span<const ParameterGroup> groups) {
  TAPEFORMER_ASSERT(attached_.empty(), "an optimizer is attached once");
  std::vector<bool> used(groups.size());
  for (Parameter* p : parameters) {
    if (!p->trainable) continue;
    if (p->value.dtype() != DType::F32)
      throw ShapeError(fmt::format("[optimizer] parameter '{}' has element type {}, expected f32", p->name, name_of(p->value.dtype())));
    Attached a{p, slots(*p), {}, 1};
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const ParameterGroup& g) { return fnmatch(g.match.c_str(), p->name.c_str(), 0) == 0; });
    if (group != groups.end()) {
      a.lr_scale = group->lr_scale;
      used[static_cast<std::size_t>(group - groups.begin())] = true;
    }
    for (const Slot& s : a.slots) a.state.push_back(Tensor::zeros(s.shape));
    attached_.push_back(std::move(a));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (used[i]) continue;
    std::vector<std::string> names;
    for (const Attached& a : attached_) names.push_back(a.parameter->name);
    throw ConfigError(
        fmt::format("optim.groups[{}].match: '{}' matches no trainable parameter that an earlier group has left; there are {}", i,
                    groups[i].match, join(names)));
  }
}

void Optimizer::step(double lr, i64 number) {
  for (Attached& a : attached_)
    if (a.parameter->grad.defined()) update(*a.parameter, a.state, {rate(lr, number) * a.lr_scale, number});
}

void Optimizer::visit_state(const Visit& visit) {
  for (Attached& a : attached_)
    for (std::size_t i = 0; i < a.slots.size(); ++i) visit(a.parameter->name, a.slots[i].name, a.state[i]);
}

Registry<OptimizerEntry>& optimizer_registry() {
  static Registry<OptimizerEntry> registry("optimizer");
  return registry;
}

namespace {

std::string type_of(const ConfigNode& optim) {
  std::string type = "adamw";
  if (optim && !optim.is_map() && !optim.is_null()) detail::fail(optim, detail::shown(optim), "a section with keys");
  if (const ConfigNode& n = optim["type"]) {
    detail::read_scalar(n, type);
    detail::check(n, type, OneOf(optimizer_registry().names()));
  }
  return type;
}

std::vector<ParameterGroup> groups_of(const ConfigNode& optim) {
  std::vector<ParameterGroup> groups;
  const ConfigNode& list = optim["groups"];
  if (!list || list.is_null()) return groups;
  if (!list.is_sequence()) detail::fail(list, detail::shown(list), "a list of sections with match and lr_scale");
  for (const ConfigNode& item : list.items()) {
    if (item.is_null()) detail::fail(item, "null", "a section with match and lr_scale");
    groups.push_back(read_config<ParameterGroup>(item));
    for (const char* key : {"match", "lr_scale"})
      if (!item[key]) throw ConfigError(fmt::format("{}: the key '{}' is missing", item.place(), key));
    if (groups.back().match.empty()) detail::fail(item["match"], "nothing", "a parameter's name or pattern");
    detail::check(item["lr_scale"], groups.back().lr_scale, Range{0, 1e6, true});
  }
  return groups;
}

}  // namespace

std::unique_ptr<Optimizer> build_optimizer(const ConfigNode& optim, std::span<Parameter* const> parameters) {
  std::unique_ptr<Optimizer> o = optimizer_registry().get(type_of(optim)).build(optim);
  o->attach(parameters, groups_of(optim));
  return o;
}

ConfigNode resolve_optimizer_config(const ConfigNode& optim) {
  const std::string type = type_of(optim);
  const ConfigNode fields = optimizer_registry().get(type).resolve(optim);
  ConfigNode out = ConfigNode::map();
  out.set("type", detail::write_node(type));
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  ConfigNode groups = ConfigNode::sequence();
  for (const ParameterGroup& g : groups_of(optim)) groups.push_back(write_config(g));
  out.set("groups", groups);
  return out;
}

std::vector<FieldHelp> with_groups(std::vector<FieldHelp> fields) {
  fields.push_back({"groups", "list of {match: PATTERN, lr_scale: a number, above 0}", "[]",
                    "parameters whose names match, * for anything, take lr times lr_scale; the first that matches counts"});
  return fields;
}

double grad_norm(std::span<Parameter* const> parameters) {
  double sum = 0;
  for (const Parameter* p : parameters)
    if (p->grad.defined()) sum += kernels::sum_of_squares(p->grad.ptr<float>(), p->grad.numel());
  return std::sqrt(sum);
}

void scale_grads(std::span<Parameter* const> parameters, double factor) {
  const float f = static_cast<float>(factor);
  for (Parameter* p : parameters) {
    if (!p->grad.defined()) continue;
    float* g = p->grad.mut_ptr<float>();
    sweep(*p, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) g[i] *= f;
    });
  }
}

double clip_grad_norm(std::span<Parameter* const> parameters, double limit) {
  const double norm = grad_norm(parameters);
  if (limit > 0 && norm > limit && std::isfinite(norm)) scale_grads(parameters, limit / norm);
  return norm;
}

void zero_grad(std::span<Parameter* const> parameters) {
  for (Parameter* p : parameters) p->grad = Tensor();
}

Ema::Ema(std::span<Parameter* const> parameters, double decay) : parameters_(parameters.begin(), parameters.end()), decay_(decay) {
  for (const Parameter* p : parameters_) average_.push_back(p->value.clone());
}

void Ema::update(i64 number) {
  const double d = std::min(decay_, (1.0 + static_cast<double>(number)) / (10.0 + static_cast<double>(number)));
  const float rest = static_cast<float>(1 - d);
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    const float* w = parameters_[k]->value.ptr<float>();
    float* e = average_[k].mut_ptr<float>();
    sweep(*parameters_[k], [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) e[i] += rest * (w[i] - e[i]);
    });
  }
}

void Ema::swap() {
  for (std::size_t k = 0; k < parameters_.size(); ++k) std::swap(parameters_[k]->value, average_[k]);
}

void Ema::visit(const std::function<void(const std::string&, Tensor&)>& f) {
  for (std::size_t k = 0; k < parameters_.size(); ++k) f(parameters_[k]->name, average_[k]);
}

}  // namespace tapeformer
