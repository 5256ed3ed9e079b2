#include "layers/module.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/kernels/elementwise.h"

namespace tapeformer {

void StepEffects::propose(Tensor* buffer, Tensor sums, Tensor counts, std::function<void(Tensor&, const Tensor&, const Tensor&)> apply) {
  for (Proposal& p : proposals_) {
    if (p.buffer != buffer) continue;
    kernels::add_into(sums.ptr<float>(), p.sums.mut_ptr<float>(), sums.numel());
    kernels::add_into(counts.ptr<float>(), p.counts.mut_ptr<float>(), counts.numel());
    return;
  }
  proposals_.push_back({buffer, sums.clone(), counts.clone(), std::move(apply)});
}

void StepEffects::assign(Tensor* buffer, Tensor value) {
  const auto same = [&](const Proposal& p) { return p.buffer == buffer; };
  proposals_.erase(std::remove_if(proposals_.begin(), proposals_.end(), same), proposals_.end());
  proposals_.push_back({buffer, std::move(value), Tensor(), [](Tensor& b, const Tensor& v, const Tensor&) { b.copy_from(v); }});
}

void StepEffects::propose_all_of(const StepEffects& other) {
  for (const Proposal& p : other.proposals_) {
    if (p.counts.defined())
      propose(p.buffer, p.sums, p.counts, p.apply);
    else
      assign(p.buffer, p.sums);
  }
}

void StepEffects::commit() {
  for (Proposal& p : proposals_) p.apply(*p.buffer, p.sums, p.counts);
  proposals_.clear();
  losses.clear();
}

Init Init::fan_in(i64 n) { return normal(1 / std::sqrt(static_cast<double>(std::max<i64>(n, 1)))); }
Init Init::xavier(i64 in, i64 out) { return uniform(std::sqrt(6.0 / static_cast<double>(std::max<i64>(in + out, 1)))); }

void Init::fill(Tensor& t, RngKey key) const {
  switch (kind) {
    case Kind::Zeros:
      return t.fill(0);
    case Kind::Ones:
      return t.fill(1);
    case Kind::Normal:
      return fill_normal(t, key, 0, scale);
    case Kind::Uniform:
      return fill_uniform(t, key, -scale, scale);
  }
}

void Module::collect(const std::string& prefix, std::vector<Parameter*>* parameters, std::vector<NamedBuffer>* buffers) {
  for (Slot& slot : slots_) {
    const std::string path = prefix.empty() ? slot.name : slot.name.empty() ? prefix : prefix + "." + slot.name;
    if (slot.child) slot.child->collect(path, parameters, buffers);
    if (slot.buffer && buffers) buffers->push_back({path, slot.buffer});
    if (slot.weight && parameters) {
      slot.weight->parameter_.name = path;
      parameters->push_back(&slot.weight->parameter_);
    }
  }
}

std::vector<Parameter*> Module::parameters() {
  std::vector<Parameter*> out;
  collect("", &out, nullptr);
  return out;
}

i64 count_parameters(Module& module) {
  i64 n = 0;
  for (const Parameter* p : module.parameters()) n += p->value.numel();
  return n;
}

std::vector<Module::NamedBuffer> Module::buffers() {
  std::vector<NamedBuffer> out;
  collect("", nullptr, &out);
  return out;
}

Weight::Weight(Module* owner, std::string name, Shape shape, Init init, RngKey key, bool decay) {
  parameter_.name = name;
  parameter_.value = Tensor::empty(shape, default_dtype());
  parameter_.decay = decay;
  init.fill(parameter_.value, key.fold_in(name));
  Module::Slot slot;
  slot.name = std::move(name);
  slot.weight = this;
  owner->slots_.push_back(std::move(slot));
}

Tensor Weight::get() const {
  Tape* tape = Tape::current();
  return tape ? tape->leaf(parameter_) : parameter_.value;
}

Buffer::Buffer(Module* owner, std::string name, Tensor value) : value_(std::move(value)) {
  Module::Slot slot;
  slot.name = std::move(name);
  slot.buffer = &value_;
  owner->slots_.push_back(std::move(slot));
}

}  // namespace tapeformer
