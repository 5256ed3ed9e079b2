// transformer.h: the Transformer encoder: blocks of attention and feed-forward with residuals, norms before (Xiong et al. 2020) or after
// (Vaswani et al. 2017) each half.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "attention/projected.h"
#include "layers/feed_forward.h"
#include "layers/norm.h"

namespace tapeformer {

struct TransformerConfig {
  i64 dim = 128, layers = 2, heads = 4;
  std::optional<i64> head_dim, ff_dim;  // null: dim / heads, 4 dim
  double dropout = 0.1, attention_dropout = 0;
  std::string activation = "gelu", norm = "layer_norm", norm_position = "pre";
  double norm_eps = 1e-5;
  bool bias = true, causal = false, rotary = false, recompute = false, reversible = false;
  std::vector<ConfigNode> attention;  // one for all layers, or one a layer
  i64 max_len = 0;
};
void validate(const TransformerConfig&);  // ConfigError
void require_side(const AttentionInfo&,
                  const std::vector<std::string>& offered);  // ConfigError when the variant needs more than the data has

class TransformerBlock : public Module {
 public:
  TransformerBlock(const TransformerConfig&, const ConfigNode& attention, i64 layer, SharedWeights* shared, RngKey key);
  Tensor forward(const Tensor& x, const Tensor& mask, const SideInputs&, const Ctx&) const;  // [B, N, D] -> [B, N or fewer, D]
  // The two halves without their residuals, dropout included: what a norm before, attention or feed-forward make of x.
  Tensor attend(const Tensor& x, const Tensor& mask, const SideInputs&, const Ctx&) const;
  Tensor feed(const Tensor& x, const Ctx&) const;
  bool whole() const { return whole_; }  // the attention's variant stands in place of the block
  AttentionLayer& attention() { return *attention_; }
  FeedForward* feed_forward() { return feed_forward_ ? &**feed_forward_ : nullptr; }

 private:
  Tensor dropped(const Tensor& x, const char* name, const Ctx&) const;

  bool pre_, whole_;
  double dropout_;
  std::unique_ptr<Child<Norm>> norm1_, norm2_;
  Child<AttentionLayer> attention_;
  std::unique_ptr<Child<FeedForward>> feed_forward_;
};

struct Encoded {
  Tensor x;         // [B, N or fewer, D]
  Tensor mask;      // u8, of its rows
  Tensor external;  // [B, g, D]: the external tokens at the end, or undefined
};

class Transformer : public Module {
 public:
  Transformer(const TransformerConfig&, RngKey key);
  Encoded forward(const Tensor& x, const Tensor& mask, const SideInputs&, const Ctx&) const;  // with the last norm when pre-norm
  bool shortens() const;                                                                      // some layer gives fewer rows than it reads
  i64 external_tokens() const { return external_ ? external_->shape()[0] : 0; }
  const std::vector<std::unique_ptr<Child<TransformerBlock>>>& blocks() const { return blocks_; }

 private:
  Tensor run_block(std::size_t i, const Tensor& x, const Tensor& mask, const SideInputs&, const Ctx&) const;
  Tensor run_reversible(const Tensor& x, const Tensor& mask, const SideInputs&, const Ctx&) const;
  std::vector<Parameter*> weights_of(TransformerBlock&) const;
  void make_external_tokens(i64 dim, RngKey key);
  void check_reversible() const;

  bool recompute_, reversible_;
  Child<SharedWeights> shared_;
  std::unique_ptr<Weight> external_;  // [g, D]
  std::vector<std::unique_ptr<Child<TransformerBlock>>> blocks_;
  std::unique_ptr<Child<Norm>> last_norm_;
};

}  // namespace tapeformer
