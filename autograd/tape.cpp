#include "autograd/tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "autograd/node.h"
#include "core/kernels/elementwise.h"

namespace tapeformer {
namespace {

thread_local Tape* current_tape = nullptr;
thread_local DType current_dtype = DType::F32;
std::atomic<std::uint64_t> next_tape{1};

}  // namespace

Tape::Tape(Options options) : options_(options), id_(next_tape++), outer_(current_tape) { current_tape = this; }

Tape::~Tape() {
  while (!entries_.empty()) entries_.pop_back();  // from the end, one by one: no recursion whatever the length
  current_tape = outer_;
}

std::size_t Tape::size() const { return entries_.size(); }

Tape* Tape::current() { return current_tape; }

Tensor Tape::push(Tensor y, std::unique_ptr<Node> node, std::vector<GradRef> inputs) {
  if (done_) throw Error("an op was recorded on a tape that has run backward already; open a new tape");
  for (const GradRef& ref : inputs)
    if (ref && ref.tape != id_)
      throw Error(fmt::format("[{}] an input was recorded on tape {}, the open tape is {}; call detach() to use its value only",
                              node ? node->name() : "leaf", ref.tape, id_));
  if (options_.check_finite && node) check_finite_output(y, node->name());
  Entry e;
  e.shape = y.shape();
  e.dtype = y.dtype();
  e.node = std::move(node);
  e.inputs = std::move(inputs);
  entries_.push_back(std::move(e));
  y.set_grad_ref({id_, static_cast<std::int32_t>(entries_.size() - 1)});
  return y;
}

Tensor Tape::leaf(Parameter& p) {
  if (!p.trainable) return p.value.detach();
  for (const auto& [known, entry] : leaves_) {
    if (known != &p) continue;
    Tensor t = p.value.detach();
    t.set_grad_ref({id_, entry});
    return t;
  }
  if (restrict_leaves_ && std::find(allowed_.begin(), allowed_.end(), &p) == allowed_.end())
    throw Error(fmt::format("recompute: the function reads parameter '{}', which was not named in params", p.name));
  Tensor t = push(p.value.detach(), nullptr, {});
  entries_.back().parameter = &p;
  leaves_.emplace_back(&p, t.grad_ref().entry);
  return t;
}

Tensor Tape::watch(const Tensor& x) { return push(x.detach(), nullptr, {}); }

const Node* Tape::node(GradRef ref) const {
  if (!ref || ref.tape != id_) return nullptr;
  return entries_[static_cast<std::size_t>(ref.entry)].node.get();
}

void Tape::allow_leaves(std::span<Parameter* const> params) {
  allowed_.assign(params.begin(), params.end());
  restrict_leaves_ = true;
}

void Tape::accumulate(std::size_t index, Tensor grad) {
  Entry& e = entries_[index];
  if (grad.shape() != e.shape)
    throw Error(fmt::format("internal error: a gradient of shape {} arrived for a value of shape {}", grad.shape().str(), e.shape.str()));
  if (!e.grad.defined()) {
    e.grad = std::move(grad);  // shared until a second one arrives
    return;
  }
  writable_grad(index);
  grad = grad.to_contiguous();
  if (e.dtype == DType::F64)
    kernels::add_into(grad.ptr<double>(), e.grad.mut_ptr<double>(), grad.numel());
  else
    kernels::add_into(grad.ptr<float>(), e.grad.mut_ptr<float>(), grad.numel());
}

Tensor& Tape::writable_grad(std::size_t index) {
  Entry& e = entries_[index];
  if (!e.grad.defined())
    e.grad = Tensor::zeros(e.shape, e.dtype);
  else if (!e.grad.unique() || !e.grad.contiguous())
    e.grad = e.grad.clone();
  return e.grad;
}

void Tape::finish_leaf(Entry& e) {
  Parameter& p = *e.parameter;
  if (e.grad.defined() && options_.leaves == Leaves::Accumulate) {
    Tensor g = std::move(e.grad);
    e.grad = Tensor();
    if (!p.grad.defined()) {
      p.grad = g.unique() && g.contiguous() ? std::move(g) : g.clone();
    } else {
      g = g.to_contiguous();
      if (g.dtype() == DType::F64)
        kernels::add_into(g.ptr<double>(), p.grad.mut_ptr<double>(), g.numel());
      else
        kernels::add_into(g.ptr<float>(), p.grad.mut_ptr<float>(), g.numel());
    }
  }
  if (on_final) on_final(p);
}

void Tape::backward(const Tensor& loss) {
  if (loss.numel() != 1) throw ShapeError(fmt::format("[backward] the loss has shape {}, expected one element", loss.shape().str()));
  backward(loss, Tensor::full(loss.shape(), 1.0, loss.dtype()));
}

void Tape::backward(const Tensor& output, const Tensor& seed) {
  if (done_) throw Error("[backward] this tape has run backward already");
  const GradRef ref = output.grad_ref();
  if (!ref || ref.tape != id_) throw Error("[backward] the loss was not recorded on this tape: no parameter or watched tensor led to it");
  done_ = true;
  const NoGrad no_grad;
  accumulate(static_cast<std::size_t>(ref.entry), seed.detach());
  for (std::size_t i = static_cast<std::size_t>(ref.entry) + 1; i-- > 0;) {
    Entry& e = entries_[i];
    if (e.parameter) {
      finish_leaf(e);
      continue;
    }
    if (!e.node || !e.grad.defined()) {
      e.node.reset();
      continue;
    }
    const std::unique_ptr<Node> node = std::move(e.node);
    Tensor dy = std::move(e.grad);
    e.grad = Tensor();
    const std::vector<GradRef> inputs = std::move(e.inputs);
    if (node->adds_into_buffer()) {
      if (inputs[0]) node->backward_into(dy, writable_grad(static_cast<std::size_t>(inputs[0].entry)));
      continue;
    }
    Grads grads = node->backward(dy);
    dy = Tensor();
    TAPEFORMER_ASSERT(grads.size() == inputs.size(), "backward returned another number of gradients than there are inputs");
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (inputs[k] && grads[k].defined()) accumulate(static_cast<std::size_t>(inputs[k].entry), std::move(grads[k]));
  }
}

Tensor Tape::grad(const Tensor& watched) const {
  const GradRef ref = watched.grad_ref();
  if (!ref || ref.tape != id_) throw Error("[grad] the tensor is not watched on this tape");
  return entries_[static_cast<std::size_t>(ref.entry)].grad;
}

Tensor Tape::grad(const Parameter& p) const {
  for (const auto& [known, entry] : leaves_)
    if (known == &p) return entries_[static_cast<std::size_t>(entry)].grad;
  return {};
}

NoGrad::NoGrad() : hidden_(current_tape) { current_tape = nullptr; }
NoGrad::~NoGrad() { current_tape = hidden_; }

DType default_dtype() { return current_dtype; }
DTypeScope::DTypeScope(DType t) : previous_(current_dtype) { current_dtype = t; }
DTypeScope::~DTypeScope() { current_dtype = previous_; }

// ---- SavedTensor and record ----

bool is_replayable(const Tensor& t) {
  const Tape* tape = Tape::current();
  const Node* node = tape ? tape->node(t.grad_ref()) : nullptr;
  return node && node->can_replay() && node->replay_depth() <= kMaxReplay;
}

SavedTensor::SavedTensor(const Tensor& t, Keep keep) {
  if (!t.defined()) return;
  Tape* tape = Tape::current();
  dtype_ = t.dtype();
  if (is_replayable(t)) {
    replay_ = true;
    depth_ = tape->node(t.grad_ref())->replay_depth();
    source_ = t.grad_ref();
    tape_ = tape;
    return;
  }
  const bool round = keep == Keep::MayRound && tape && tape->options().save_as == DType::BF16 && t.dtype() == DType::F32;
  tensor_ = round ? t.detach().to(DType::BF16) : t.detach();
  version_ = tensor_.storage()->version();
  if (tape) tape->count_saved(tensor_.bytes());
}

Tensor SavedTensor::get(std::string_view op) const {
  if (replay_) return tape_->node(source_)->replay();
  if (!tensor_.defined()) return {};
  if (tensor_.storage()->version() != version_)
    throw Error(fmt::format("[{}] a value saved for backward was modified in place: saved at version {}, now {}", op, version_,
                            tensor_.storage()->version()));
  return tensor_.to(dtype_);
}

Tensor gradient_buffer(const Tensor& dy) { return dy.unique() && dy.contiguous() ? dy.detach() : Tensor::empty_like(dy); }

bool recording(std::initializer_list<const Tensor*> inputs) {
  if (Tape::current() == nullptr) return false;
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor* t) { return static_cast<bool>(t->grad_ref()); });
}

Tensor record_node(Tensor y, std::initializer_list<const Tensor*> inputs, std::unique_ptr<Node> node) {
  std::vector<GradRef> refs;
  for (const Tensor* t : inputs) refs.push_back(t->grad_ref());
  return Tape::current()->push(std::move(y), std::move(node), std::move(refs));
}

void check_finite_output(const Tensor& y, std::string_view op) {
  if (!is_float(y.dtype())) return;
  for (double x : y.to_vector())
    if (!std::isfinite(x)) throw NumericError(fmt::format("[{}] gave a value that is not finite, output {}", op, y.shape().str()));
}

}  // namespace tapeformer
