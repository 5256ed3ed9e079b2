// projected.h: the layer around a core: q, k, v and output projections, head split, rotary positions.
#pragma once
#include "attention/attention.h"
#include "layers/linear.h"

namespace tapeformer {

struct SideInputs {  // what the batch may offer beside x and the mask
  std::map<std::string, Tensor> tensors;
  i64 external = 0;  // first rows that are external tokens
};

Tensor in_front(const Tensor& t, i64 rows, double value);  // t [B, N] behind so many columns of `value`: a mask, ids with external tokens

class AttentionLayer : public Module {  // x [B, N, D], mask u8 [B, N] or undefined -> [B, N, D] (fewer rows where the core shortens)
 public:
  AttentionLayer(const ConfigNode& config, const AttentionSpec& spec, bool bias, bool rotary, RngKey key);
  Tensor forward(const Tensor& x, const Tensor& mask, const SideInputs& side, const Ctx&) const;
  const AttentionCore& core() const { return *core_; }

 private:
  AttentionSpec spec_;
  bool rotary_;
  Child<AttentionCore> core_;
  std::unique_ptr<Child<Linear>> in_, out_;  // in_: the wanted ones of q, k, v, as one product
};

}  // namespace tapeformer
