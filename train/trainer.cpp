#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/ops.h"
#include "core/error.h"
#include "train/evaluation.h"

namespace tapeformer {

struct Trainer::Window {
  double loss = 0, count = 0;
  i64 tokens = 0;
  std::map<std::string, std::pair<double, double>> extra;  // sum, count
  std::vector<i64> rows;
  StepEffects effects;
};

LoaderConfig training_batches(const TrainConfig& c, const Reducer& reducer) {
  LoaderConfig l;
  l.batch_size = c.batch_size;
  l.token_budget = c.token_budget;
  l.bucket = c.bucket;
  l.prefetch = c.prefetch;
  l.augment = c.augment;
  l.rank = reducer.rank();
  l.ranks = reducer.size();
  return l;
}

i64 count_steps(const Loader& loader, const TrainConfig& c) {
  if (c.steps > 0) return c.steps;
  const auto windows = [&](i64 e) { return (loader.batches(e) + c.accumulate - 1) / c.accumulate; };
  if (c.token_budget == 0) return c.epochs * windows(0);  // every epoch has as many batches
  i64 total = 0;
  for (i64 e = 0; e < c.epochs; ++e) total += windows(e);
  return total;
}

Trainer::Trainer(const TrainerParts& parts, const TrainConfig& config, RngKey root)
    : parts_(parts),
      config_(config),
      root_(root),
      parameters_(parts.model.parameters()),
      loader_(parts.train, parts.info, training_batches(config, parts.reducer), root.fold_in("data")),
      total_steps_(count_steps(loader_, config)) {}
Trainer::~Trainer() = default;

i64 Trainer::steps_in_epoch(i64 epoch) const { return (loader_.batches(epoch) + config_.accumulate - 1) / config_.accumulate; }

void Trainer::micro_batch(const Batch& batch, bool last, i64 step, Window& w) {
  Tape tape({.save_as = config_.save_as == "bf16" ? DType::BF16 : DType::F32});
  if (last) tape.on_final = [this](Parameter& p) { parts_.reducer.ready(p); };
  Ctx ctx{.training = true,
          .key = root_.fold_in("dropout").fold_in(static_cast<std::uint64_t>(step)),
          .rows = batch.rows,
          .step = step,
          .effects = &w.effects};
  Output out = parts_.model.forward(batch, ctx);
  out.logits = Tensor();
  if (!out.loss.sum.defined()) throw DataError("training: the batch has no labels: " + describe(batch.rows));
  const double loss = out.loss.sum.item();
  Tensor total = out.loss.sum;
  double extra = 0;
  for (const StepEffects::Loss& e : w.effects.losses) {  // each extra loss weighs as its mean, over as many labels as the batch has
    if (e.count <= 0) continue;
    const double sum = e.sum.item();
    extra += sum;
    auto& kept = w.extra[e.name];
    kept.first += sum;
    kept.second += e.count;
    total = ops::add(total, ops::scale(e.sum, out.loss.count / e.count));
  }
  w.effects.losses.clear();
  w.rows.insert(w.rows.end(), batch.rows.begin(), batch.rows.end());
  w.tokens += batch.real_tokens();
  if (!std::isfinite(loss) || !std::isfinite(extra)) report_bad_loss(batch, step, std::isfinite(loss) ? extra : loss);
  w.loss += loss;
  w.count += out.loss.count;
  if (out.loss.count > 0) tape.backward(total);
}

StepReport Trainer::step(TrainState& state) {
  const kernels::PrecisionScope precision(math_of(config_));
  Window w;
  zero_grad(parameters_);
  parts_.reducer.begin(parameters_);
  Cursor cursor = state.cursor;
  const i64 epoch = cursor.epoch;
  for (i64 m = 0; m < config_.accumulate && cursor.epoch == epoch; ++m) {
    const Batch batch = loader_.next(cursor);
    micro_batch(batch, m + 1 == config_.accumulate || cursor.epoch != epoch, state.step, w);
  }
  parts_.reducer.finish();
  std::vector<double> sums = {w.loss, w.count, static_cast<double>(w.tokens)};
  parts_.reducer.sum(sums);
  StepReport report;
  report.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
  const double planned = parts_.optimizer.base_lr() * parts_.schedule.factor(state.step, state.schedule);
  report.lr = parts_.optimizer.rate(planned, state.step + 1);
  if (sums[1] > 0) {  // a window without any label changes nothing
    scale_grads(parameters_, 1 / sums[1]);
    report.grad_norm = grad_norm(parameters_);
    if (!std::isfinite(report.grad_norm)) report_bad_gradient(w, state.step, report.grad_norm);
    if (config_.clip > 0 && report.grad_norm > config_.clip) scale_grads(parameters_, config_.clip / report.grad_norm);
    parts_.optimizer.step(planned, state.step + 1);
  }
  zero_grad(parameters_);
  w.effects.commit();
  ++state.step;
  if (parts_.ema) parts_.ema->update(state.step);
  state.cursor = cursor;
  state.tokens += static_cast<i64>(sums[2]);
  state.loss_sum += sums[0];
  state.loss_count += sums[1];
  report.step = state.step;
  report.tokens = state.tokens;
  for (const auto& [name, value] : w.extra) report.extra_losses.emplace_back(name, value.first / value.second);
  return report;
}

std::string Trainer::describe(const std::vector<i64>& rows) const {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(rows.size(), kShown); ++i) names.push_back(parts_.train.describe(rows[i]));
  return join(names) + (rows.size() > kShown ? fmt::format(" and {} more", rows.size() - kShown) : "");
}

namespace {

std::string shown(double x) { return std::isnan(x) ? "NaN" : x > 0 ? "infinite" : "minus infinite"; }

bool all_finite(const Tensor& t) {
  const auto x = t.data<float>();
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace

// Runs the batch again with every op's output checked, to name the op.
void Trainer::report_bad_loss(const Batch& batch, i64 step, double loss) {
  std::string cause = "no single op gave it";
  for (const Parameter* p : parameters_)
    if (!all_finite(p->value)) cause = fmt::format("the weights of '{}' are not finite", p->name);
  try {
    Tape tape({.save_as = config_.save_as == "bf16" ? DType::BF16 : DType::F32, .check_finite = true});
    StepEffects effects;
    Ctx ctx{.training = true,
            .key = root_.fold_in("dropout").fold_in(static_cast<std::uint64_t>(step)),
            .rows = batch.rows,
            .step = step,
            .effects = &effects};
    (void)parts_.model.forward(batch, ctx);
  } catch (const NumericError& e) {
    cause = std::string(e.what()) + (cause[0] == 't' ? ", since " + cause : "");
  }
  throw NumericError(fmt::format("step {}: the loss is {}: {}; samples: {}", step + 1, shown(loss), cause, describe(batch.rows)));
}

void Trainer::report_bad_gradient(const Window& w, i64 step, double norm) {
  std::string cause = "the gradients are finite, their norm is not";
  for (const Parameter* p : parameters_) {
    if (!p->grad.defined() || all_finite(p->grad)) continue;
    cause = fmt::format("first in the gradient of '{}'", p->name);
    break;
  }
  throw NumericError(fmt::format("step {}: the gradient norm is {}: {}; samples: {}", step + 1, shown(norm), cause, describe(w.rows)));
}

bool Trainer::validation_due(const TrainState& s, i64 epoch_before) const {
  if (s.step >= total_steps_) return true;
  return config_.validate_every > 0 ? s.step % config_.validate_every == 0 : s.cursor.epoch != epoch_before;
}

void Trainer::validate(TrainState& s, TrainObserver& observer) {
  ValidationReport report{.step = s.step, .epoch = s.cursor.epoch, .metrics = Metrics(parts_.info.classes())};
  report.train_loss = s.loss_count > 0 ? s.loss_sum / s.loss_count : 0;
  s.loss_sum = s.loss_count = 0;
  if (parts_.valid) {
    const EmaScope averaged(parts_.ema);
    report.metrics = evaluate(parts_.model, *parts_.valid, parts_.info, config_);
    if (!std::isfinite(report.metrics.loss()))
      throw NumericError(fmt::format("step {}: the validation loss is {}", s.step, shown(report.metrics.loss())));
    const double score = report.metrics.score(config_.metric);
    report.best = s.best_step == 0 || score > s.best_score;
    s.bad_validations = report.best ? 0 : s.bad_validations + 1;
    if (report.best) {
      s.best_score = score;
      s.best_step = s.step;
    }
    parts_.schedule.observe(score, s.schedule);
  }
  observer.on_validation(report);
  if (report.best) observer.save_best(s);
}

Ending Trainer::run(TrainState& s, TrainObserver& observer) {
  const auto out_of_patience = [&] { return config_.patience > 0 && s.bad_validations >= config_.patience; };
  while (s.step < total_steps_ && !out_of_patience()) {
    const i64 epoch = s.cursor.epoch;
    observer.on_step(step(s));
    const bool validated = validation_due(s, epoch);
    if (validated) validate(s, observer);
    s.finished = s.step >= total_steps_ || out_of_patience();
    const bool stop = !s.finished && observer.stop_requested();
    if (validated || stop || (config_.save_every > 0 && s.step % config_.save_every == 0)) observer.save_last(s);
    if (stop) return Ending::Stopped;
  }
  return s.step >= total_steps_ ? Ending::Finished : Ending::Patience;
}

}  // namespace tapeformer
