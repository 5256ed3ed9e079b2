// adafactor.cpp: Adafactor (Shazeer & Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, Algorithms 4 to 6).
// The second moment of a matrix is kept as its row and column means: V_ij = R_i C_j / mean(R). With b2 = 1 - t^-0.8:
//   R <- b2 R + (1 - b2) mean_j(g^2 + eps1);  C likewise over i;  u = g / sqrt(V);  u <- u / max(1, rms(u) / d)
//   w <- w - lr max(eps2, rms(w)) u - lr weight_decay w
// Axes before the last are taken together as rows. relative_step: lr = min(0.01, 1 / sqrt(t)), whatever the schedule says.
#include <cmath>

#include "core/kernels/elementwise.h"
#include "optim/optimizer.h"

namespace tapeformer {
namespace {

struct AdafactorConfig {
  double lr = 0.01;
  bool relative_step = false, scale_parameter = true;
  double clip_threshold = 1, decay_exponent = 0.8, eps1 = 1e-30, eps2 = 1e-3, momentum = 0, weight_decay = 0;
};
template <class V>
void visit_fields(V& v, AdafactorConfig& c) {
  v("lr", c.lr, above(0), "learning rate where the schedule stands at 1");
  v("relative_step", c.relative_step, "learning rate min(0.01, 1 / sqrt(step)) in place of lr and schedule");
  v("scale_parameter", c.scale_parameter, "updates in proportion to the root mean square of the parameter");
  v("clip_threshold", c.clip_threshold, above(0), "largest root mean square of an update before the learning rate");
  v("decay_exponent", c.decay_exponent, Range{0.1, 1}, "the memory of the square is 1 - step^-this");
  v("eps1", c.eps1, at_least(0), "added to the squared gradient");
  v("eps2", c.eps2, at_least(0), "smallest root mean square of a parameter that counts");
  v("momentum", c.momentum, Range{0, 0.9999}, "share of the last update that is kept; 0 saves its memory");
  v("weight_decay", c.weight_decay, at_least(0), "each step shrinks a weight by lr times this; not norms and biases");
}

double root_mean_square(const float* x, i64 n) { return n == 0 ? 0 : std::sqrt(kernels::sum_of_squares(x, n) / static_cast<double>(n)); }

class Adafactor final : public Optimizer {
 public:
  using Config = AdafactorConfig;
  explicit Adafactor(const Config& c) : c_(c) {}
  double base_lr() const override { return c_.lr; }
  double rate(double lr, i64 t) const override { return c_.relative_step ? std::min(1e-2, 1 / std::sqrt(static_cast<double>(t))) : lr; }

 protected:
  std::vector<Slot> slots(const Parameter& p) const override {
    std::vector<Slot> out;
    if (factored(p))
      out = {{"row", {rows(p)}}, {"column", {columns(p)}}};
    else
      out = {{"v", p.value.shape()}};
    if (c_.momentum > 0) out.push_back({"m", p.value.shape()});
    return out;
  }

  void update(Parameter& p, std::span<Tensor> state, const Step& s) const override {
    const double lr = s.lr;
    const double keep = 1 - std::pow(static_cast<double>(s.number), -c_.decay_exponent);
    Tensor u = Tensor::empty(p.value.shape());
    if (factored(p))
      divide_factored(p, state[0], state[1], keep, u);
    else
      divide_full(p, state[0], keep, u);
    const i64 n = p.value.numel();
    const double clip = std::max(1.0, root_mean_square(u.ptr<float>(), n) / c_.clip_threshold);
    const double scale = c_.scale_parameter ? std::max(c_.eps2, root_mean_square(p.value.ptr<float>(), n)) : 1.0;
    const float factor = static_cast<float>(lr * scale / clip), mu = static_cast<float>(c_.momentum);
    const float shrink = p.decay ? static_cast<float>(lr * c_.weight_decay) : 0.0f;
    const float* d = u.ptr<float>();
    float* w = p.value.mut_ptr<float>();
    float* m = c_.momentum > 0 ? state.back().mut_ptr<float>() : nullptr;
    sweep(p, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        float change = factor * d[i];
        if (m != nullptr) change = m[i] = mu * m[i] + (1 - mu) * change;
        w[i] -= change + shrink * w[i];
      }
    });
  }

 private:
  static bool factored(const Parameter& p) { return p.value.rank() >= 2 && rows(p) > 1 && columns(p) > 1; }
  static i64 columns(const Parameter& p) { return p.value.dim(-1); }
  static i64 rows(const Parameter& p) { return p.value.numel() / std::max<i64>(columns(p), 1); }

  void divide_full(const Parameter& p, Tensor& second, double keep, Tensor& u) const {
    const float b = static_cast<float>(keep), r = static_cast<float>(1 - keep), eps = static_cast<float>(c_.eps1);
    const float* g = p.grad.ptr<float>();
    float *v = second.mut_ptr<float>(), *out = u.mut_ptr<float>();
    sweep(p, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        v[i] = b * v[i] + r * (g[i] * g[i] + eps);
        out[i] = v[i] > 0 ? g[i] / std::sqrt(v[i]) : 0.0f;
      }
    });
  }

  void divide_factored(const Parameter& p, Tensor& row, Tensor& column, double keep, Tensor& u) const {
    const i64 n = rows(p), k = columns(p);
    const float* g = p.grad.ptr<float>();
    float *r = row.mut_ptr<float>(), *c = column.mut_ptr<float>(), *out = u.mut_ptr<float>();
    const i64 row_grain = std::max<i64>(1, 16384 / k);
    parallel_for(n, row_grain, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        double sum = 0;
        for (i64 j = 0; j < k; ++j) sum += static_cast<double>(g[i * k + j]) * g[i * k + j] + c_.eps1;
        r[i] = static_cast<float>(keep * r[i] + (1 - keep) * sum / static_cast<double>(k));
      }
    });
    parallel_for(k, 64, [&](i64 begin, i64 end) {
      std::vector<double> sum(static_cast<std::size_t>(end - begin), 0.0);
      for (i64 i = 0; i < n; ++i)
        for (i64 j = begin; j < end; ++j)
          sum[static_cast<std::size_t>(j - begin)] += static_cast<double>(g[i * k + j]) * g[i * k + j] + c_.eps1;
      for (i64 j = begin; j < end; ++j)
        c[j] = static_cast<float>(keep * c[j] + (1 - keep) * sum[static_cast<std::size_t>(j - begin)] / static_cast<double>(n));
    });
    double mean = 0;
    for (i64 i = 0; i < n; ++i) mean += r[i];
    mean /= static_cast<double>(n);
    std::vector<float> by_column(static_cast<std::size_t>(k));
    for (i64 j = 0; j < k; ++j)
      by_column[static_cast<std::size_t>(j)] = c[j] > 0 ? static_cast<float>(1 / std::sqrt(static_cast<double>(c[j]))) : 0.0f;
    parallel_for(n, row_grain, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        const float by_row = r[i] > 0 ? static_cast<float>(std::sqrt(mean / r[i])) : 0.0f;
        for (i64 j = 0; j < k; ++j) out[i * k + j] = g[i * k + j] * by_row * by_column[static_cast<std::size_t>(j)];
      }
    });
  }

  const Config c_;
};

[[maybe_unused]] const bool kRegistered = register_optimizer<Adafactor>("adafactor", "second moments of a matrix kept by row and column");

}  // namespace
}  // namespace tapeformer
