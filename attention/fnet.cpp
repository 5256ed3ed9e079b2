// fnet.cpp: a Fourier transform in place of attention: Lee-Thorp et al., "FNet: Mixing Tokens with Fourier Transforms", NAACL 2022,
// section 3.2. No parameters; the block around it brings norm, residual and feed-forward.
#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct FnetConfig {
  std::string norm = "ortho", pad_mode = "trim";
};
template <class V>
void visit_fields(V& v, FnetConfig& c) {
  v("norm", c.norm, OneOf{"ortho", "none"}, "factor (N D)^-1/2, or 1 as in the paper, whose blocks are post-norm");
  v("pad_mode", c.pad_mode, OneOf{"trim", "zero"},
    "trim: over each sample's own tokens, whatever the padding; zero: over the padded length, padding as zeros");
}

class Fnet final : public AttentionCore {
 public:
  using Config = FnetConfig;
  static AttentionInfo describe() {
    return {.name = "fnet",
            .summary = "a Fourier transform over positions and features, nothing learned",
            .formula = "o = Re(DFT over positions (DFT over features (x)))",
            .paper = "Lee-Thorp et al. 2022, arXiv 2105.03824",
            .cost = "time N D (log N + log D), memory N D",
            .place = Place::Mix,
            .causal = false,
            .q = false,
            .k = false,
            .v = false};
  }
  Fnet(Config c, const AttentionSpec&, RngKey) : config_(std::move(c)) {}
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    return ops::fourier_mix(in.x, {.mask = in.mask, .ortho = config_.norm == "ortho", .trim = config_.pad_mode == "trim"});
  }

 private:
  Config config_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Fnet>();

}  // namespace
}  // namespace tapeformer
