#include "models/model.h"

namespace tapeformer {

Registry<ModelEntry>& model_registry() {
  static Registry<ModelEntry> registry("model type");
  return registry;
}

namespace {

const ModelEntry& entry_of(const ConfigNode& model) {
  const ConfigNode& type = model["type"];
  const std::string name = type ? type.text() : "encoder_classifier";
  if (!model_registry().contains(name))
    detail::fail(type, detail::shown(type), "one of: " + join(model_registry().names()) + did_you_mean(name, model_registry().names()));
  return model_registry().get(name);
}

}  // namespace

std::unique_ptr<Model> build_model(const ConfigNode& model, const DataInfo& data, RngKey init) {
  return entry_of(model).build(model, data, init);
}

ConfigNode resolve_model_config(const ConfigNode& model) { return entry_of(model).resolve(model); }

}  // namespace tapeformer
