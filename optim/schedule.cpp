#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace tapeformer {
namespace {

constexpr const char* kWarmupHelp = "steps of linear rise from 0; below 1: this share of all steps";

// Steps that `warmup` means.
double warmup_steps(double warmup, i64 total) { return warmup < 1 ? std::round(warmup * static_cast<double>(total)) : std::round(warmup); }

// Rises to 1 at the last warm-up step: (step + 1) / warmup; 1 afterwards.
double rise(i64 step, double warmup) { return std::min(1.0, (static_cast<double>(step) + 1) / std::max(warmup, 1.0)); }

// Share of the way from the end of warm-up to the last step, 0 to 1.
double progress(i64 step, double warmup, i64 total) {
  const double span = std::max(1.0, static_cast<double>(total) - warmup);
  return std::clamp((static_cast<double>(step) - warmup) / span, 0.0, 1.0);
}

struct ConstantConfig {
  double warmup = 0;
};
template <class V>
void visit_fields(V& v, ConstantConfig& c) {
  v("warmup", c.warmup, at_least(0), kWarmupHelp);
}

class Constant final : public Schedule {
 public:
  using Config = ConstantConfig;
  Constant(const Config& c, i64 total) : warmup_(warmup_steps(c.warmup, total)) {}
  double factor(i64 step, const ScheduleMemory&) const override { return rise(step, warmup_); }

 private:
  double warmup_;
};

struct LinearConfig {
  double warmup = 0, end = 0;
};
template <class V>
void visit_fields(V& v, LinearConfig& c) {
  v("warmup", c.warmup, at_least(0), kWarmupHelp);
  v("end", c.end, Range{0, 1}, "share of lr at the end");
}

class Linear final : public Schedule {
 public:
  using Config = LinearConfig;
  Linear(const Config& c, i64 total) : warmup_(warmup_steps(c.warmup, total)), end_(c.end), total_(total) {}
  double factor(i64 step, const ScheduleMemory&) const override {
    return step < warmup_ ? rise(step, warmup_) : 1 - (1 - end_) * progress(step, warmup_, total_);
  }

 private:
  double warmup_, end_;
  i64 total_;
};

// Loshchilov & Hutter, "SGDR", 2017, eq. 5, one period.
class Cosine final : public Schedule {
 public:
  using Config = LinearConfig;
  Cosine(const Config& c, i64 total) : warmup_(warmup_steps(c.warmup, total)), end_(c.end), total_(total) {}
  double factor(i64 step, const ScheduleMemory&) const override {
    if (step < warmup_) return rise(step, warmup_);
    return end_ + (1 - end_) * (1 + std::cos(std::numbers::pi * progress(step, warmup_, total_))) / 2;
  }

 private:
  double warmup_, end_;
  i64 total_;
};

struct InverseSqrtConfig {
  double warmup = 4000;
};
template <class V>
void visit_fields(V& v, InverseSqrtConfig& c) {
  v("warmup", c.warmup, above(0),
    "steps of linear rise from 0, after which the rate falls as sqrt(warmup / step); below 1: share of all steps");
}

// Vaswani et al., "Attention Is All You Need", 2017, eq. 3, scaled so that the peak is 1: min(t / w, sqrt(w / t)), t = step + 1.
class InverseSqrt final : public Schedule {
 public:
  using Config = InverseSqrtConfig;
  InverseSqrt(const Config& c, i64 total) : warmup_(std::max(1.0, warmup_steps(c.warmup, total))) {}
  double factor(i64 step, const ScheduleMemory&) const override {
    const double t = static_cast<double>(step) + 1;
    return std::min(t / warmup_, std::sqrt(warmup_ / t));
  }

 private:
  double warmup_;
};

struct OneCycleConfig {
  double warmup = 0.3, start = 0.04, end = 1e-4;
};
template <class V>
void visit_fields(V& v, OneCycleConfig& c) {
  v("warmup", c.warmup, at_least(0), "steps until the peak; below 1: this share of all steps");
  v("start", c.start, Range{0, 1}, "share of lr at the first step");
  v("end", c.end, Range{0, 1}, "share of lr at the end");
}

// Smith & Topin, "Super-Convergence", 2018, with cosine rise and fall.
class OneCycle final : public Schedule {
 public:
  using Config = OneCycleConfig;
  OneCycle(const Config& c, i64 total) : c_(c), warmup_(warmup_steps(c.warmup, total)), total_(total) {}
  double factor(i64 step, const ScheduleMemory&) const override {
    if (step < warmup_) return between(c_.start, 1, static_cast<double>(step) / warmup_);
    return between(1, c_.end, progress(step, warmup_, total_));
  }

 private:
  static double between(double a, double b, double t) { return b + (a - b) * (1 + std::cos(std::numbers::pi * t)) / 2; }
  Config c_;
  double warmup_;
  i64 total_;
};

struct PlateauConfig {
  double warmup = 0, factor = 0.5;
  i64 patience = 2;
  double threshold = 1e-4, end = 0.001;
};
template <class V>
void visit_fields(V& v, PlateauConfig& c) {
  v("warmup", c.warmup, at_least(0), kWarmupHelp);
  v("factor", c.factor, Range{0.01, 0.99}, "the rate is multiplied by this");
  v("patience", c.patience, at_least(0), "validations without progress that are waited for");
  v("threshold", c.threshold, at_least(0), "smallest rise of the metric that is progress");
  v("end", c.end, Range{0, 1}, "smallest share of lr");
}

class Plateau final : public Schedule {
 public:
  using Config = PlateauConfig;
  Plateau(const Config& c, i64 total) : c_(c), warmup_(warmup_steps(c.warmup, total)) {}
  double factor(i64 step, const ScheduleMemory& m) const override { return rise(step, warmup_) * (m.empty() ? 1.0 : m[kScale]); }
  void observe(double score, ScheduleMemory& m) const override {
    if (m.empty()) m = {1, -std::numeric_limits<double>::infinity(), 0};
    if (score > m[kBest] + (std::isfinite(m[kBest]) ? c_.threshold : 0)) {
      m[kBest] = score;
      m[kBad] = 0;
    } else if (++m[kBad] > static_cast<double>(c_.patience)) {
      m[kScale] = std::max(c_.end, m[kScale] * c_.factor);
      m[kBad] = 0;
    }
  }

 private:
  enum { kScale, kBest, kBad };
  Config c_;
  double warmup_;
};

struct ExponentialConfig {
  double warmup = 0, factor = 0.5;
  i64 every = 1000;
  bool stairs = false;
};
template <class V>
void visit_fields(V& v, ExponentialConfig& c) {
  v("warmup", c.warmup, at_least(0), kWarmupHelp);
  v("factor", c.factor, Range{0.001, 1}, "the rate is multiplied by this ...");
  v("every", c.every, at_least(1), "... every so many steps");
  v("stairs", c.stairs, "at once at the end of those steps instead of a little each step");
}

class Exponential final : public Schedule {
 public:
  using Config = ExponentialConfig;
  Exponential(const Config& c, i64 total) : c_(c), warmup_(warmup_steps(c.warmup, total)) {}
  double factor(i64 step, const ScheduleMemory&) const override {
    if (step < warmup_) return rise(step, warmup_);
    const double periods = (static_cast<double>(step) - warmup_) / static_cast<double>(c_.every);
    return std::pow(c_.factor, c_.stairs ? std::floor(periods) : periods);
  }

 private:
  Config c_;
  double warmup_;
};

template <class S>
ScheduleEntry entry(const char* summary) {
  using C = typename S::Config;
  return {summary,
          [](const ConfigNode& n, i64 total) -> std::unique_ptr<Schedule> {
            return std::make_unique<S>(read_config<C>(n, {}, {"type"}), total);
          },
          [](const ConfigNode& n) { return write_config(read_config<C>(n, {}, {"type"})); }, [] { return explain_config<C>(); }};
}

Registry<ScheduleEntry> make_registry() {
  Registry<ScheduleEntry> r("schedule");
  r.add("constant", entry<Constant>("the same rate after the warm-up"));
  r.add("linear", entry<Linear>("a straight line down to the last step"));
  r.add("cosine", entry<Cosine>("half a cosine down to the last step"));
  r.add("inverse_sqrt", entry<InverseSqrt>("Noam: rises during the warm-up, then falls as 1 / sqrt(step)"));
  r.add("one_cycle", entry<OneCycle>("half a cosine up, then one down"));
  r.add("plateau", entry<Plateau>("falls when the validation metric stops improving"));
  r.add("exponential", entry<Exponential>("falls by a factor every so many steps"));
  return r;
}

std::string type_of(const ConfigNode& schedule) {
  std::string type = "constant";
  if (schedule && !schedule.is_map() && !schedule.is_null()) detail::fail(schedule, detail::shown(schedule), "a section with keys");
  if (const ConfigNode& n = schedule["type"]) {
    detail::read_scalar(n, type);
    detail::check(n, type, OneOf(schedule_registry().names()));
  }
  return type;
}

}  // namespace

Registry<ScheduleEntry>& schedule_registry() {
  static Registry<ScheduleEntry> registry = make_registry();
  return registry;
}

std::unique_ptr<Schedule> build_schedule(const ConfigNode& schedule, i64 total_steps) {
  return schedule_registry().get(type_of(schedule)).build(schedule, total_steps);
}

ConfigNode resolve_schedule_config(const ConfigNode& schedule) {
  const std::string type = type_of(schedule);
  const ConfigNode fields = schedule_registry().get(type).resolve(schedule);
  ConfigNode out = ConfigNode::map();
  out.set("type", detail::write_node(type));
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  return out;
}

}  // namespace tapeformer
