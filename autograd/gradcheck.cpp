#include "autograd/gradcheck.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

double dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double s = 0;
  for (std::size_t i = 0; i < x.size(); ++i) s += x[i] * y[i];
  return s;
}

}  // namespace

std::string gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
                      std::vector<Parameter*> params, const GradcheckOptions& o) {
  Tensor upstream;
  std::vector<Tensor> analytic;
  {
    Tape tape({.leaves = Tape::Leaves::Capture});
    std::vector<Tensor> watched;
    for (const Tensor& x : inputs) watched.push_back(x.dtype() == DType::F64 ? tape.watch(x) : x);
    const Tensor y = f(watched);
    upstream = Tensor::empty(y.shape(), DType::F64);
    fill_normal(upstream, RngKey(o.seed), 0, 1);
    tape.backward(y, upstream);
    for (const Tensor& x : watched) analytic.push_back(x.grad_ref() ? tape.grad(x) : Tensor());
    for (Parameter* p : params) analytic.push_back(tape.grad(*p));
  }
  const NoGrad no_grad;
  double worst = 0;
  std::string message;
  const auto check = [&](const std::string& what, Tensor& value, const Tensor& gradient) {
    const std::vector<double> g =
        gradient.defined() ? gradient.to_vector() : std::vector<double>(static_cast<std::size_t>(value.numel()), 0.0);
    double* x = value.mut_ptr<double>();
    for (i64 i = 0; i < value.numel(); ++i) {
      const double old = x[i], h = o.step * std::max(1.0, std::abs(old));
      x[i] = old + h;
      const double up = dot(f(inputs), upstream);
      x[i] = old - h;
      const double down = dot(f(inputs), upstream);
      x[i] = old;
      const double numeric = (up - down) / (2 * h), got = g[static_cast<std::size_t>(i)];
      const double error = std::abs(got - numeric) / (1 + std::abs(numeric));
      if (!(error <= o.tolerance) && (message.empty() || error > worst)) {
        worst = error;
        message = fmt::format("{} element {}: gradient {:.10g}, central difference {:.10g}", what, i, got, numeric);
      }
    }
  };
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].dtype() != DType::F64) continue;
    TAPEFORMER_ASSERT(inputs[k].contiguous(), "gradcheck perturbs contiguous inputs; make views inside f");
    check(fmt::format("input {}", k), inputs[k], analytic[k]);
  }
  for (std::size_t k = 0; k < params.size(); ++k)
    check(fmt::format("parameter {}", params[k]->name), params[k]->value, analytic[inputs.size() + k]);
  return message;
}

}  // namespace tapeformer
