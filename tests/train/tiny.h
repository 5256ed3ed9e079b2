// tiny.h: a data set in memory and a model of a few weights, for tests of the loop around them.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/kernels/elementwise.h"
#include "train/trainer.h"

namespace tapeformer::tiny {

// Sample i: 1 to 9 tokens; the label says whether token 1 or 2 is among them more often (0, 1), every seventh has none.
class Data final : public Dataset {
 public:
  explicit Data(i64 n, std::uint64_t seed = 5, bool unlabelled = true) {
    const RngKey key(seed);
    for (i64 i = 0; i < n; ++i) {
      const RngKey k = key.fold_in(static_cast<std::uint64_t>(i));
      Sample s;
      i64 balance = 0;
      for (std::uint64_t t = 0; t < 1 + k.below(100, 9); ++t) {
        s.tokens.push_back(static_cast<i64>(k.below(t, 6)));
        balance += (s.tokens.back() == 1) - (s.tokens.back() == 2);
      }
      s.label = unlabelled && i % 7 == 6 ? kIgnoreLabel : balance > 0;
      samples_.push_back(std::move(s));
    }
  }
  i64 size() const override { return static_cast<i64>(samples_.size()); }
  i64 length(i64 i) const override { return samples_[static_cast<std::size_t>(i)].length(); }
  Sample get(i64 i, std::optional<RngKey>) const override { return samples_[static_cast<std::size_t>(i)]; }
  std::string describe(i64 i) const override { return "tiny.csv:" + std::to_string(i + 2); }

 private:
  std::vector<Sample> samples_;
};

inline DataInfo info() {
  DataInfo i;
  i.vocab = 6;
  i.max_length = 9;
  i.labels = {"no", "yes"};
  return i;
}

struct Options {
  double dropout = 0.3;
  bool extras = false;  // adds a loss of its own and a buffer that counts rows
};

class Net final : public Model {
 public:
  explicit Net(const Options& o = {}, std::uint64_t seed = 1)
      : o_(o),
        table_(this, "embed.table", {6, 8}, Init::normal(1), RngKey(seed)),
        weight_(this, "head.weight", {8, 2}, Init::fan_in(8), RngKey(seed)),
        bias_(this, "head.bias", {2}, Init::zeros(), RngKey(seed), false),
        seen_(this, "seen", Tensor::zeros({1})) {}

  Output forward(const Batch& b, const Ctx& ctx) const override {
    Tensor x = ops::mask_rows(ops::embedding(table_.get(), b.tokens), b.mask);
    Tensor s = ops::sum(x, {1});
    if (ctx.training && o_.dropout > 0) s = ops::dropout(s, o_.dropout, ctx.at("drop").key, ctx.rows);
    Output out;
    out.logits = ops::linear(ops::relu(s), weight_.get(), bias_.get());
    out.loss.sum = ops::cross_entropy(out.logits, b.labels);
    for (const i64 label : b.labels.data<i64>()) out.loss.count += label != kIgnoreLabel;
    if (o_.extras && ctx.effects) {
      ctx.effects->add_loss("size", ops::sum(ops::mul(weight_.get(), weight_.get())), 1);
      ctx.effects->propose(&seen_.value(), Tensor::full({1}, static_cast<double>(b.size())), Tensor::full({1}, 1),
                           [](Tensor& buffer, const Tensor& sums, const Tensor&) { buffer.mut<float>()[0] += sums.data<float>()[0]; });
    }
    return out;
  }
  std::vector<LayerSummary> summary() override { return {}; }
  Tensor& bias() { return bias_.parameter().value; }
  Tensor& table() { return table_.parameter().value; }

 private:
  Options o_;
  Weight table_, weight_, bias_;
  mutable Buffer seen_;
};

struct Training {  // everything of a run
  Training(const TrainConfig& c, const std::string& optim, const std::string& schedule_, const Options& o = {}, i64 samples = 41,
           bool with_valid = true)
      : config(c),
        train(samples),
        valid(19, 6),
        model(o),
        parameters(model.parameters()),
        data_info(info()),
        optimizer(build_optimizer(ConfigNode::parse(optim, "o"), parameters)),
        schedule(build_schedule(ConfigNode::parse(schedule_, "s"), 40)) {
    if (config.eval_batch_size == 0) config.eval_batch_size = config.batch_size;
    if (config.ema > 0) ema = std::make_unique<Ema>(parameters, config.ema);
    trainer = std::make_unique<Trainer>(
        TrainerParts{model, *optimizer, *schedule, ema.get(), train, with_valid ? &valid : nullptr, data_info, reducer}, config, RngKey(9));
  }
  CheckpointContent content() { return {model, optimizer.get(), ema.get(), state, nullptr, empty}; }
  std::vector<double> everything() {  // weights, buffers, optimizer, average
    std::vector<double> out;
    const auto add = [&](const Tensor& t) {
      for (double x : t.to_vector()) out.push_back(x);
    };
    for (const Parameter* p : parameters) add(p->value);
    for (const auto& b : model.buffers()) add(*b.tensor);
    optimizer->visit_state([&](const std::string&, const std::string&, Tensor& t) { add(t); });
    if (ema) ema->visit([&](const std::string&, Tensor& t) { add(t); });
    return out;
  }
  TrainConfig config;
  Data train, valid;
  Net model;
  std::vector<Parameter*> parameters;
  DataInfo data_info;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Schedule> schedule;
  std::unique_ptr<Ema> ema;
  SingleReducer reducer;
  std::unique_ptr<Trainer> trainer;
  TrainState state;
  ConfigNode empty = ConfigNode::map();
};

class Recorder final : public TrainObserver {
 public:
  void on_step(const StepReport& r) override {
    for (double x : {static_cast<double>(r.step), r.loss, r.lr, r.grad_norm, static_cast<double>(r.tokens)}) numbers.push_back(x);
    ++steps;
  }
  void on_validation(const ValidationReport& v) override {
    for (double x : {static_cast<double>(v.step), v.train_loss, v.metrics.loss(), v.metrics.accuracy(), static_cast<double>(v.best)})
      numbers.push_back(x);
    ++validations;
  }
  void save_last(const TrainState&) override { ++saves; }
  void save_best(const TrainState&) override { ++bests; }
  bool stop_requested() override { return stop_at > 0 && steps >= stop_at; }
  std::vector<double> numbers;
  int steps = 0, validations = 0, saves = 0, bests = 0, stop_at = 0;
};

}  // namespace tapeformer::tiny
