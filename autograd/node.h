// node.h: what an op's file needs: SavedTensor and record().
#pragma once
#include <initializer_list>

#include "autograd/tape.h"
#include "core/error.h"

namespace tapeformer {

enum class Keep { MayRound, Exact };
inline constexpr int kMaxReplay = 4;  // ops run again, one inside the other, to give back one value

// A tensor kept for backward. Where the tensor is the cheap output of a recorded op (a norm, an activation), only the reference is kept and
// the op runs again in backward, with the same bits; a chain of such ops is cut after kMaxReplay of them, so that backward stays linear.
// get() throws when the tensor was modified in place meanwhile.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor&, Keep = Keep::MayRound);
  Tensor get(std::string_view op) const;
  bool defined() const { return tensor_.defined() || replay_; }
  bool free_to_keep() const { return replay_; }  // costs no memory
  int replay_depth() const { return replay_ ? depth_ : 0; }

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
  DType dtype_ = DType::F32;
  GradRef source_;
  const Tape* tape_ = nullptr;
  bool replay_ = false;
  int depth_ = 0;
};

bool is_replayable(const Tensor&);  // a SavedTensor of it costs no memory

// y unchanged when no tape is open or no input is recorded; otherwise y with an entry on the tape. Node is built only when needed.
bool recording(std::initializer_list<const Tensor*> inputs);
Tensor record_node(Tensor y, std::initializer_list<const Tensor*> inputs, std::unique_ptr<Node>);
void check_finite_output(const Tensor& y, std::string_view op);

template <std::derived_from<Node> N, class... Saved>
Tensor record(Tensor y, std::initializer_list<const Tensor*> inputs, Saved&&... saved) {
  if (!recording(inputs)) {
    if (const Tape* tape = Tape::current(); tape && tape->options().check_finite) check_finite_output(y, N::kName);
    return y;
  }
  return record_node(std::move(y), inputs, std::make_unique<N>(std::forward<Saved>(saved)...));
}

// The gradient of an operand of shape `shape` that was broadcast to g's shape: g summed over the repeated axes.
Tensor sum_to(const Tensor& g, const Shape& shape);

// A tensor like dy for a gradient that is computed from dy element by element: dy itself when nobody else holds it, so that the largest
// activations need no second buffer.
Tensor gradient_buffer(const Tensor& dy);

// Runs f with float{} or double{}; ShapeError for other element types.
template <class F>
decltype(auto) with_float(std::string_view op, DType t, F&& f) {
  if (t == DType::F32) return f(float{});
  if (t == DType::F64) return f(double{});
  throw ShapeError(std::string("[") + std::string(op) + "] got element type " + std::string(name_of(t)) + ", expected f32 or f64");
}

}  // namespace tapeformer
