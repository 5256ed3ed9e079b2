// The encoder classifier: everything its configuration offers builds, runs, learns, ignores padding and says what is
// wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "core/error.h"
#include "core/parallel.h"
#include "models/model.h"
#include "optim/optimizer.h"

namespace tapeformer {
namespace {

using Input = DataInfo::Input;
using Target = DataInfo::Target;

class EncoderClassifier : public testing::Test {  // the models are tiny: one thread, unless a test says otherwise
 protected:
  EncoderClassifier() { set_thread_count(1); }
  ~EncoderClassifier() override { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

DataInfo data_of(Input input, Target target, i64 max_length = 12) {
  DataInfo d{.input = input, .target = target, .vocab = 11, .feature_dim = 5, .max_length = max_length, .labels = {"a", "b", "c"}};
  if (input == Input::Tokens)
    d.feature_dim = 0;
  else
    d.vocab = 0;
  return d;
}

// Samples of the given lengths, padded to `width` positions.
Batch batch_of(const DataInfo& data, std::vector<i64> lengths, i64 width) {
  const i64 B = static_cast<i64>(lengths.size());
  Batch b;
  b.mask = Tensor::zeros({B, width}, DType::U8);
  if (data.input == Input::Tokens)
    b.tokens = Tensor::zeros({B, width}, DType::I64);
  else
    b.features = Tensor::zeros({B, width, data.feature_dim});
  b.labels = Tensor::full(data.target == Target::Sequence ? Shape{B} : Shape{B, width}, static_cast<double>(kIgnoreLabel), DType::I64);
  for (i64 s = 0; s < B; ++s) {
    const RngKey key = RngKey(17).fold_in(static_cast<std::uint64_t>(s));
    b.rows.push_back(100 + 7 * s);
    for (i64 n = 0; n < lengths[static_cast<std::size_t>(s)]; ++n) {
      const auto i = static_cast<std::uint64_t>(n);
      b.mask.mut_ptr<std::uint8_t>()[s * width + n] = 1;
      if (b.tokens.defined()) b.tokens.mut_ptr<i64>()[s * width + n] = static_cast<i64>(key.below(i, 11));
      for (i64 f = 0; f < data.feature_dim; ++f)
        b.features.mut_ptr<float>()[(s * width + n) * data.feature_dim + f] =
            static_cast<float>(key.normal(i * 64 + static_cast<std::uint64_t>(f)));
      if (data.target == Target::Frame) b.labels.mut_ptr<i64>()[s * width + n] = static_cast<i64>(key.below(1000 + i, 3));
    }
    if (data.target == Target::Sequence) b.labels.mut_ptr<i64>()[s] = s % 3;
  }
  return b;
}

// A small model's keys, then `keys` over them.
ConfigNode config_of(const std::string& keys) {
  ConfigNode out = ConfigNode::parse("{dim: 8, layers: 2, heads: 2, ff_dim: 12, dropout: 0}", "run.yaml");
  const ConfigNode more = ConfigNode::parse("{" + keys + "}", "run.yaml");
  for (const auto& [key, value] : more.entries()) out.set(key, value);
  return out;
}

std::unique_ptr<Model> model_of(const std::string& keys, const DataInfo& data) { return build_model(config_of(keys), data, RngKey(1)); }

double difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::abs(x[i] - y[i]);
    if (!(e <= worst)) worst = std::isnan(e) ? INFINITY : e;
  }
  return worst;
}

Ctx training(const Batch& b, std::uint64_t step = 1) { return {.training = true, .key = RngKey(3).fold_in(step), .rows = b.rows}; }

void backward(Model& model, const Batch& batch, const Ctx& ctx, double factor = 1) {
  Tape tape;
  const Output out = model.forward(batch, ctx);
  tape.backward(out.loss.sum, Tensor::full({}, factor));
}

const std::vector<std::string>& settings() {
  static const std::vector<std::string> s{
      "",
      "pooling: max",
      "pooling: cls",
      "pooling: last",
      "pooling: attention",
      "norm_position: post",
      "norm: rms_norm",
      "positions: sinusoidal",
      "positions: rotary",
      "positions: none",
      "activation: swiglu",
      "activation: relu, bias: false",
      "head_dim: 6, positions: rotary",
      "causal: true",
      "layers: 0",
      "stem: {layers: 2, kernel: 3}",
      "causal: true, stem: {layers: 1, kernel: 4}",
      "recompute: true",
      "reversible: true",
      "reversible: true, attention: {type: reformer, chunk_len: 3, n_buckets: 4}",
      "attention: local",
      "attention: {type: local, window: 2}",
      "attention: {type: linear_transformer}",
      "attention: {type: synthesizer}",
      "attention: {type: synthesizer, kind: dense}",
      "attention: {type: sinkhorn, block_size: 3}",
      "attention: {type: hybrid, heads: [{type: local, window: 1}, {type: sinkhorn, block_size: 4}]}",
      "attention: [{type: local, window: 2}, {type: full}]",
  };
  return s;
}

TEST_F(EncoderClassifier, EverySettingRunsForward) {
  for (Input input : {Input::Tokens, Input::Features})
    for (Target target : {Target::Sequence, Target::Frame})
      for (const std::string& s : settings()) {
        SCOPED_TRACE(s);
        const DataInfo data = data_of(input, target);
        const auto model = model_of(s, data);
        const Batch batch = batch_of(data, {7, 3, 12}, 12);
        const Output out = model->forward(batch, {});
        EXPECT_EQ(out.logits.shape(), target == Target::Sequence ? (Shape{3, 3}) : (Shape{3, 12, 3}));
        EXPECT_EQ(out.loss.count, target == Target::Sequence ? 3 : 22);
        EXPECT_TRUE(std::isfinite(out.loss.sum.item()));
        backward(*model, batch, training(batch));
        for (const Parameter* p : model->parameters()) {
          EXPECT_TRUE(p->grad.defined()) << p->name << " gets no gradient";
          EXPECT_LT(p->grad.defined() ? difference(p->grad, p->grad) : 0, 1) << p->name << " has a NaN gradient";
        }
        i64 counted = 0, all = 0;
        for (const Model::LayerSummary& row : model->summary()) counted += row.parameters;
        for (const Parameter* p : model->parameters()) all += p->value.numel();
        EXPECT_LE(counted, all);
        EXPECT_GE(counted, all * 2 / 3);  // norms have no row
      }
}

TEST_F(EncoderClassifier, MorePaddingChangesNothing) {
  for (Input input : {Input::Tokens, Input::Features})
    for (Target target : {Target::Sequence, Target::Frame})
      for (const std::string& s : settings()) {
        if (s == "stem: {layers: 2, kernel: 3}" && target == Target::Frame) continue;
        SCOPED_TRACE(s);
        const DataInfo data = data_of(input, target);
        const auto model = model_of(s, data);
        const Batch tight = batch_of(data, {7, 3}, 7), wide = batch_of(data, {7, 3}, 12);
        const Output a = model->forward(tight, {}), b = model->forward(wide, {});
        if (target == Target::Sequence) {
          EXPECT_LE(difference(a.logits, b.logits), 1e-6);
        } else {
          EXPECT_LE(difference(a.logits.slice(0, 0, 1), b.logits.slice(0, 0, 1).slice(1, 0, 7)), 1e-6);
          EXPECT_LE(difference(a.logits.slice(0, 1, 2).slice(1, 0, 3), b.logits.slice(0, 1, 2).slice(1, 0, 3)), 1e-6);
        }
        EXPECT_NEAR(a.loss.sum.item(), b.loss.sum.item(), 1e-5);
        EXPECT_EQ(a.loss.count, b.loss.count);
      }
}

TEST_F(EncoderClassifier, StridedStemShortensTheSequence) {
  const DataInfo data = data_of(Input::Features, Target::Sequence, 13);
  const auto model = model_of("stem: {layers: 2, kernel: 3, stride: 3}, attention: {type: synthesizer}", data);
  for (const Parameter* p : model->parameters())
    if (p->name.find("core.R") != std::string::npos) {
      EXPECT_EQ(p->value.shape(), (Shape{2, 5, 5})) << "max_len is ceil(13 / 3)";
    }
  const Output a = model->forward(batch_of(data, {7, 4}, 7), {}), b = model->forward(batch_of(data, {7, 4}, 13), {});
  EXPECT_EQ(a.logits.shape(), (Shape{2, 3}));
  EXPECT_LE(difference(a.logits, b.logits), 1e-6);
}

TEST_F(EncoderClassifier, CausalFramesIgnoreTheFuture) {
  const DataInfo data = data_of(Input::Features, Target::Frame);
  for (const char* attention : {"full", "local", "linear_transformer", "synthesizer"}) {
    const auto model = model_of(std::string("causal: true, stem: {layers: 1}, attention: ") + attention, data);
    const Batch a = batch_of(data, {12}, 12);
    Batch b = a;
    b.features = a.features.clone();
    b.features.slice(1, 8, 12).fill(3);
    const Tensor x = model->forward(a, {}).logits, y = model->forward(b, {}).logits;
    EXPECT_LE(difference(x.slice(1, 0, 8), y.slice(1, 0, 8)), 1e-6) << attention;
    EXPECT_GT(difference(x, y), 1e-3) << attention;
  }
}

bool same_gradients(Model& a, Model& b) {
  const auto p = a.parameters(), q = b.parameters();
  for (std::size_t i = 0; i < p.size(); ++i) {
    const Tensor x = p[i]->grad.clone(), y = q[i]->grad.clone();
    if (x.bytes() != y.bytes() || std::memcmp(x.storage()->data(), y.storage()->data(), x.bytes()) != 0) return false;
  }
  return p.size() == q.size();
}

TEST_F(EncoderClassifier, RecomputingChangesNoBit) {
  const char* dropouts = "dropout: 0.3, attention_dropout: 0.2, embedding_dropout: 0.1, token_dropout: 0.1, ";
  for (const std::string attention :
       {"{type: full}", "{type: local, window: 2}", "{type: linear_transformer}", "{type: synthesizer, kind: dense}",
        "{type: sinkhorn, block_size: 3}", "{type: hybrid, heads: [{type: full}, {type: sinkhorn, block_size: 4}]}"}) {
    SCOPED_TRACE(attention);
    const DataInfo data = data_of(Input::Tokens, Target::Sequence);
    const std::string keys = "dim: 8, layers: 3, heads: 2, " + std::string(dropouts) + "attention: " + attention;
    const auto build = [&](const std::string& more) {
      return build_model(ConfigNode::parse("{" + keys + more + "}", "run.yaml"), data, RngKey(1));
    };
    const auto kept = build(""), again = build(", recompute: true"), other = build("");
    const Batch batch = batch_of(data, {7, 12, 1}, 12);
    backward(*kept, batch, training(batch));
    backward(*again, batch, training(batch));
    EXPECT_TRUE(same_gradients(*kept, *again));
    backward(*other, batch, training(batch, 2));
    EXPECT_FALSE(same_gradients(*kept, *other)) << "dropout had no effect";
  }
}

TEST_F(EncoderClassifier, ThreadsChangeNoBit) {
  const DataInfo data = data_of(Input::Tokens, Target::Frame, 150);
  const std::string keys = "dropout: 0.2, attention: [{type: full}, {type: linear_transformer}]";
  const Batch batch = batch_of(data, {150, 70, 33}, 150);
  const auto build = [&] {
    return build_model(ConfigNode::parse("{dim: 8, layers: 2, heads: 2, " + keys + "}", "run.yaml"), data, RngKey(1));
  };
  const auto one = build();
  backward(*one, batch, training(batch));
  for (int threads : {2, 3, 8}) {
    set_thread_count(threads);
    const auto many = build();
    backward(*many, batch, training(batch));
    EXPECT_TRUE(same_gradients(*one, *many)) << threads;
  }
}

// The loss is a sum: of two halves of a batch it adds up to that of the whole, and so do the gradients.
TEST_F(EncoderClassifier, LossesAddUpOverMicroBatches) {
  for (Target target : {Target::Sequence, Target::Frame}) {
    const DataInfo data = data_of(Input::Tokens, target);
    const auto whole = model_of("class_weights: [1, 2, 3], label_smoothing: 0.1", data),
               parts = model_of("class_weights: [1, 2, 3], label_smoothing: 0.1", data);
    const Batch all = batch_of(data, {7, 3, 12}, 12);
    double sum = 0, count = 0;
    for (const auto& [from, to] : {std::pair<i64, i64>{0, 1}, {1, 3}}) {
      Batch part;
      part.tokens = all.tokens.slice(0, from, to).to_contiguous();
      part.mask = all.mask.slice(0, from, to).to_contiguous();
      part.labels = all.labels.slice(0, from, to).to_contiguous();
      part.rows.assign(all.rows.begin() + from, all.rows.begin() + to);
      const Output out = parts->forward(part, training(part));
      sum += out.loss.sum.item();
      count += out.loss.count;
      backward(*parts, part, training(part));
    }
    const Output out = whole->forward(all, training(all));
    EXPECT_NEAR(out.loss.sum.item(), sum, 1e-4);
    EXPECT_EQ(out.loss.count, count);
    backward(*whole, all, training(all));
    for (std::size_t i = 0; i < whole->parameters().size(); ++i)
      EXPECT_LE(difference(whole->parameters()[i]->grad, parts->parameters()[i]->grad), 1e-4) << whole->parameters()[i]->name;
  }
}

TEST_F(EncoderClassifier, EvaluationIgnoresTrainingOnlyKeys) {
  const DataInfo data = data_of(Input::Tokens, Target::Sequence);
  const auto plain = model_of("", data), noisy = model_of(
                                             "token_dropout: 0.5, embedding_dropout: 0.5, attention_dropout: 0.5, "
                                             "label_smoothing: 0.2, class_weights: [1, 2, 3]",
                                             data);
  const Batch batch = batch_of(data, {7, 3, 12}, 12);
  EXPECT_EQ(difference(plain->forward(batch, {}).logits, noisy->forward(batch, {.key = RngKey(5)}).logits), 0);
  EXPECT_EQ(plain->forward(batch, {}).loss.sum.item(), noisy->forward(batch, {}).loss.sum.item());
  EXPECT_GT(difference(noisy->forward(batch, training(batch)).logits, noisy->forward(batch, {}).logits), 1e-4);
}

// Loss a label after some steps of AdamW on one batch.
double overfit(const std::string& keys, const DataInfo& data, int steps) {
  const auto model =
      build_model(ConfigNode::parse("{dim: 16, layers: 1, heads: 2, dropout: 0, " + keys + "}", "run.yaml"), data, RngKey(1));
  const auto parameters = model->parameters();
  const auto optimizer = build_optimizer(ConfigNode::parse("{type: adamw, lr: 0.02, weight_decay: 0}", "run.yaml"), parameters);
  const Batch batch = batch_of(data, {8, 5, 8, 3, 6, 7}, 8);
  for (int step = 1; step <= steps; ++step) {
    zero_grad(parameters);
    backward(*model, batch, training(batch, static_cast<std::uint64_t>(step)), data.target == Target::Sequence ? 1 / 6.0 : 1 / 37.0);
    optimizer->step(0.02, step);
  }
  const Output out = model->forward(batch, {});
  return out.loss.sum.item() / out.loss.count;
}

TEST_F(EncoderClassifier, LearnsOneBatchByHeart) {
  for (const std::string attention :
       {"{type: full}", "{type: local, window: 2}", "{type: linear_transformer}", "{type: synthesizer}", "{type: synthesizer, kind: dense}",
        "{type: sinkhorn, block_size: 3}", "{type: hybrid, heads: [{type: full}, {type: local, window: 1}]}"})
    EXPECT_LT(overfit("attention: " + attention, data_of(Input::Tokens, Target::Sequence), 40), 0.05) << attention;
  for (const std::string mixer : {"{type: fnet}", "{type: rnn, hidden: 5}", "{type: lstm, bidirectional: true}", "{type: gru, layers: 2}",
                                  "{type: mlp_mixer}", "{type: gmlp, tiny_attention: 4}", "{type: conv1d}", "{type: conformer, dropout: 0}",
                                  "{type: conformer, dropout: 0, conv_norm: batch, attention: {type: local, window: 2}}"})
    EXPECT_LT(overfit("attention: " + mixer, data_of(Input::Tokens, Target::Sequence), 60),
              mixer.find("batch") == std::string::npos ? 0.05 : 0.3)
        << mixer;
  EXPECT_LT(overfit("", data_of(Input::Features, Target::Sequence), 40), 0.05);
  EXPECT_LT(overfit("", data_of(Input::Features, Target::Frame), 120), 0.05);
  EXPECT_LT(overfit("norm_position: post, activation: swiglu", data_of(Input::Tokens, Target::Frame), 150), 0.05);
  EXPECT_GT(overfit("", data_of(Input::Tokens, Target::Sequence), 0), 0.5);
}

std::string refusal(const std::string& yaml, const DataInfo& data) {
  try {
    build_model(ConfigNode::parse(yaml, "run.yaml")["model"], data, RngKey(1));
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST_F(EncoderClassifier, SaysWhatIsWrong) {
  const DataInfo data = data_of(Input::Tokens, Target::Sequence), frames = data_of(Input::Tokens, Target::Frame);
  const auto says = [](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << "said '" << said << "', not '" << part << "'";
  };
  says(refusal("model: {dim: 10, heads: 4}", data), "model.dim: got 10, expected a multiple of model.heads (4); or set model.head_dim");
  EXPECT_EQ(refusal("model: {dim: 10, heads: 4, head_dim: 4}", data), "");
  says(refusal("model: {dim: 6, heads: 2, positions: rotary}", data), "model.positions: rotary needs an even head size, got 3");
  says(refusal("model: {class_weights: [1, 2]}", data), "model.class_weights: got 2 values, the data has 3 classes: a, b, c");
  says(refusal("model: {stem: {layers: 1, stride: 2}}", frames),
       "model.stem.stride: more than 1 needs stem.layers > 0 and one label a sequence");
  says(refusal("model: {stem: {stride: 2}}", data), "model.stem.stride: more than 1 needs");
  says(refusal("model: {layers: 3, attention: [{type: full}, {type: local}]}", data),
       "model.attention: the list has 2 entries, expected one for each of the 3 layers");
  says(refusal("model: {layers: 2, attention: [{type: full}]}", data), "the list has 1 entries, expected one for each of the 2 layers");
  says(refusal("model: {layers: 2, attention: []}", data), "the list has 0 entries, expected one for each of the 2 layers");
  says(refusal("model:\n  layers: 2\n  attention:\n    - {type: full}\n    - {type: lokal}", data),
       "run.yaml:5: model.attention[1].type: got 'lokal', expected one of: ");
  says(refusal("model:\n  layers: 2\n  attention:\n    - {type: full}\n    - {type: local, windo: 3}", data),
       "run.yaml:5: model.attention[1].windo");
  says(refusal("model:\n  attention: {type: local,\n    windo: 3}", data), "(did you mean 'window'?)");
  says(refusal("model:\n  heads: 2\n  attention:\n    type: hybrid\n    heads:\n      - {type: full}\n      - {type: locl}", data),
       "run.yaml:7: model.attention.heads[1].type: got 'locl'");
  says(refusal("model:\n  dimm: 8", data), "run.yaml:2: model.dimm");
  says(refusal("model:\n  pooling: men", data), "run.yaml:2: model.pooling: got 'men', expected one of: mean, max, cls, last, attention");
  says(refusal("model: {type: encoder_classifer}", data), "(did you mean 'encoder_classifier'?)");
  says(refusal("model: {dropout: 1.5}", data), "model.dropout: got 1.5, expected 0 to 0.95");
  says(refusal("model: {causal: true, heads: 2, attention: {type: sinkhorn, sortcut: 1}}", data), "sortcut has no causal form");
  DataInfo one = data;
  one.labels = {"a"};
  says(refusal("model: {}", one), "data: the training part has 1 label(s), a classifier needs at least 2");
  const std::string both = refusal("model:\n  dropout: 2\n  heads: 0", data);
  says(both, "run.yaml:2: model.dropout");
  says(both, "run.yaml:3: model.heads");
}

TEST_F(EncoderClassifier, RefusesInputsThatAreTooLong) {
  const DataInfo data = data_of(Input::Tokens, Target::Sequence, 6);
  const auto model = model_of("", data);
  try {
    model->forward(batch_of(data, {7}, 7), {});
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "[positions] the input has 7 positions, the model accepts at most 6");
  }
}

TEST_F(EncoderClassifier, ResolvedConfigBuildsTheSame) {
  const DataInfo data = data_of(Input::Tokens, Target::Sequence);
  const Batch batch = batch_of(data, {7, 3}, 7);
  for (const std::string& s : settings()) {
    SCOPED_TRACE(s);
    const ConfigNode node = config_of(s), resolved = resolve_model_config(node);
    EXPECT_EQ(resolved["type"].text(), "encoder_classifier");
    const auto a = build_model(node, data, RngKey(1)), b = build_model(resolved, data, RngKey(1));
    EXPECT_EQ(difference(a->forward(batch, {}).logits, b->forward(batch, {}).logits), 0);
    EXPECT_EQ(resolve_model_config(resolved), resolved);
  }
}

}  // namespace
}  // namespace tapeformer
