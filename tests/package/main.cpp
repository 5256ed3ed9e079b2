// Trains a model for a few steps, through the installed headers alone.
#include <fmt/format.h>

#include "attention/attention.h"
#include "autograd/tape.h"
#include "data/dataset.h"
#include "models/model.h"
#include "optim/optimizer.h"

using namespace tapeformer;

int main() {
  try {
    DataInfo info;
    info.vocab = 20;
    info.max_length = 6;
    info.labels = {"no", "yes"};
    std::vector<Sample> samples(8);
    for (i64 i = 0; i < 8; ++i) samples[static_cast<std::size_t>(i)] = {.tokens = {3 + i, 5 + i % 2, 4, 7}, .label = i % 2};
    const Batch batch = collate(samples, {0, 1, 2, 3, 4, 5, 6, 7}, info);
    const ConfigNode config = ConfigNode::parse(
        "{type: encoder_classifier, dim: 16, layers: 1, heads: 4, dropout: 0, attention: {type: hybrid, heads: [{type: "
        "local, repeat: 2}, {type: full, repeat: 2}]}}",
        "config");
    const std::unique_ptr<Model> model = build_model(config, info, RngKey(1));
    std::vector<Parameter*> parameters = model->parameters();
    const std::unique_ptr<Optimizer> optimizer = build_optimizer(ConfigNode::parse("{type: adamw, lr: 0.01}", "optim"), parameters);
    double first = 0, last = 0;
    for (i64 step = 1; step <= 20; ++step) {
      Tape tape;
      const Output out = model->forward(batch, {.training = true, .key = RngKey(2), .rows = batch.rows, .step = step});
      tape.backward(out.loss.sum);
      scale_grads(parameters, 1 / out.loss.count);
      last = out.loss.sum.item() / out.loss.count;
      if (step == 1) first = last;
      optimizer->step(optimizer->base_lr(), step);
      zero_grad(parameters);
    }
    fmt::print("attention: {}\nloss {:.3f} -> {:.3f}\n", fmt::join(attention_registry().names(), " "), first, last);
    return last < 0.5 * first ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
