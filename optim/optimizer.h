// optimizer.h: turning gradients into new weights. An optimizer is one file: its configuration, the state tensors it keeps for a parameter
// (named slots, f32, so that a checkpoint can hold them), and an update. Frozen parameters have no state; a parameter without a gradient is
// left as it is. Weight decay never touches parameters with decay = false (norms, biases). optim.groups, common to all of them, gives the
// parameters whose names match a pattern a learning rate of their own.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "core/config.h"
#include "core/parallel.h"
#include "core/registry.h"

namespace tapeformer {

// One entry of optim.groups. A weight that sums over many inputs moves its output in proportion to their number under Adam, whose steps
// do not shrink with the gradient; a smaller rate keeps it in step with the rest (Yang & Hu et al., "Tensor Programs V", 2022, Table 3).
struct ParameterGroup {
  std::string match;
  double lr_scale = 1;
};
template <class V>
void visit_fields(V& v, ParameterGroup& c) {
  v("match", c.match, "parameter names, * for anything: '*.Wt1'");
  v("lr_scale", c.lr_scale, above(0), "times the learning rate");
}

class Optimizer {
 public:
  struct Slot {
    std::string name;  // "m", "v"
    Shape shape;       // starts at zero
  };
  struct Step {
    double lr = 0;   // rate() times the group's scale
    i64 number = 1;  // 1 for the first step ever
  };
  virtual ~Optimizer() = default;
  // Makes the state; once, before the first step. A parameter belongs to the first group that matches it. ConfigError where a group has
  // none.
  void attach(std::span<Parameter* const>, std::span<const ParameterGroup> groups = {});
  void step(double lr, i64 number);  // reads every grad, writes every value
  // Every state tensor in a fixed order; a checkpoint reads and writes them through this.
  using Visit = std::function<void(const std::string& parameter, const std::string& slot, Tensor& value)>;
  void visit_state(const Visit&);
  virtual double base_lr() const = 0;  // `lr` of the configuration, the schedule's factor 1
  virtual double rate(double lr, i64 number) const {
    (void)number;
    return lr;
  }  // what is really used, for the log

 protected:
  virtual std::vector<Slot> slots(const Parameter&) const = 0;
  virtual void update(Parameter&, std::span<Tensor> state, const Step&) const = 0;  // state in the order of slots()

 private:
  struct Attached {
    Parameter* parameter;
    std::vector<Slot> slots;
    std::vector<Tensor> state;
    double lr_scale;
  };
  std::vector<Attached> attached_;
};

struct OptimizerEntry {
  std::string summary;
  std::function<std::unique_ptr<Optimizer>(const ConfigNode&)> build;
  std::function<ConfigNode(const ConfigNode&)> resolve;
  std::function<std::vector<FieldHelp>()> explain;
};
Registry<OptimizerEntry>& optimizer_registry();                                                    // by optim.type
std::unique_ptr<Optimizer> build_optimizer(const ConfigNode& optim, std::span<Parameter* const>);  // attached
std::vector<FieldHelp> with_groups(std::vector<FieldHelp>);    // and the line that tells of optim.groups
ConfigNode resolve_optimizer_config(const ConfigNode& optim);  // every default filled in; ConfigError on mistakes

template <class O>
bool register_optimizer(const char* name, const char* summary, const char* file = __builtin_FILE()) {
  using C = typename O::Config;
  return optimizer_registry().add(name,
                                  {summary,
                                   [](const ConfigNode& n) -> std::unique_ptr<Optimizer> {
                                     return std::make_unique<O>(read_config<C>(n, {}, {"type", "groups"}));
                                   },
                                   [](const ConfigNode& n) {
                                     return write_config(read_config<C>(n, {}, {"type", "groups"}));
                                   },
                                   [] { return with_groups(explain_config<C>()); }},
                                  file);
}

double grad_norm(std::span<Parameter* const>);  // in double, in parameter order; NaN or infinity where a gradient has one
void scale_grads(std::span<Parameter* const>, double factor);
// Scales gradients down to the norm `limit` (0 = never); returns the norm before.
double clip_grad_norm(std::span<Parameter* const>, double limit);
void zero_grad(std::span<Parameter* const>);  // drops them

// Exponential moving average of the weights: e <- d e + (1 - d) w with d = min(decay, (1 + t) / (10 + t)) at step t.
class Ema {
 public:
  Ema(std::span<Parameter* const>, double decay);
  void update(i64 number);  // after optimizer step `number` (1, 2, ...)
  void swap();              // exchanges weights and averages
  void visit(const std::function<void(const std::string& parameter, Tensor& value)>&);

 private:
  std::vector<Parameter*> parameters_;
  std::vector<Tensor> average_;
  double decay_;
};
class EmaScope {  // the averages are the weights while alive; null does nothing
 public:
  explicit EmaScope(Ema* ema) : ema_(ema) {
    if (ema_) ema_->swap();
  }
  ~EmaScope() {
    if (ema_) ema_->swap();
  }
  EmaScope(const EmaScope&) = delete;

 private:
  Ema* ema_;
};

// For update(): f(begin, end) over fixed chunks of a parameter's elements.
template <class F>
void sweep(const Parameter& p, F&& f) {
  parallel_for(p.value.numel(), 16384, f);
}

}  // namespace tapeformer
