// model.h: a whole network with its loss. Losses and metrics are sums and counts, never means, so that they add up over micro-batches,
// batches and processes whatever their sizes.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/registry.h"
#include "data/dataset.h"
#include "layers/module.h"

namespace tapeformer {

struct LossSum {
  Tensor sum;        // [] on the tape
  double count = 0;  // labels that took part
};

struct Output {
  Tensor logits;  // [B, C], or [B, N, C] for one label a frame
  LossSum loss;   // loss.sum undefined when the batch has no labels
};

class Model : public Module {
 public:
  virtual Output forward(const Batch&, const Ctx&) const = 0;
  struct LayerSummary {
    std::string name;
    std::string kind;  // "embedding", "attention full", ...
    i64 parameters = 0;
  };
  virtual std::vector<LayerSummary> summary() = 0;
};

struct ModelEntry {
  std::string summary;
  std::function<std::unique_ptr<Model>(const ConfigNode& config, const DataInfo&, RngKey init)> build;
  std::function<ConfigNode(const ConfigNode&)> resolve;  // every default filled in; ConfigError on mistakes
  std::function<std::vector<FieldHelp>()> explain;
};
Registry<ModelEntry>& model_registry();  // by model.type

// From the `model` section. ConfigError when the model cannot take this data (a variant that needs what the data lacks, and so on).
std::unique_ptr<Model> build_model(const ConfigNode& model, const DataInfo&, RngKey init);
ConfigNode resolve_model_config(const ConfigNode& model);

}  // namespace tapeformer
