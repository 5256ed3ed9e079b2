#include "models/input_stem.h"

#include "autograd/ops.h"

namespace tapeformer {

InputStem::InputStem(const EncoderConfig& c, const DataInfo& data, RngKey key)
    : config_(c), max_len_((data.max_length + c.stem.stride - 1) / c.stem.stride) {
  const i64 D = c.t.dim;
  if (c.stem.stride > 1 && (c.stem.layers == 0 || data.target == DataInfo::Target::Frame))
    throw ConfigError("model.stem.stride: more than 1 needs stem.layers > 0 and one label a sequence");
  if (c.patch > 0)
    make_patches(c, data, key.fold_in("patches"));
  else if (data.input == DataInfo::Input::Tokens)
    embedding_ = std::make_unique<Child<Embedding>>(this, "embedding",
                                                    std::make_unique<Embedding>(data.vocab, D, key.fold_in("embedding"), c.embedding_std));
  else if (c.stem.layers == 0)
    input_ = std::make_unique<Child<Linear>>(this, "input", std::make_unique<Linear>(data.feature_dim, D, key.fold_in("input")));
  for (i64 i = 0; i < c.stem.layers; ++i) {
    const i64 in = i == 0 && data.input == DataInfo::Input::Features ? data.feature_dim : D;
    const Conv1dOptions o{.kernel = c.stem.kernel, .stride = i == 0 ? c.stem.stride : 1, .causal = c.t.causal};
    const std::string n = std::to_string(i);
    convs_.push_back(
        std::make_unique<Child<Conv1d>>(this, "stem." + n, std::make_unique<Conv1d>(in, D, o, key.fold_in("stem").fold_in(n))));
    norms_.push_back(std::make_unique<Child<Norm>>(this, "stem_norm." + n, std::make_unique<Norm>(c.t.norm, D, c.t.norm_eps, key)));
  }
  if ((c.positions == "learned" && !patches_) || c.positions == "sinusoidal")
    positions_ = std::make_unique<Child<Positions>>(
        this, "positions",
        std::make_unique<Positions>(c.positions == "learned" ? Positions::Kind::Learned : Positions::Kind::Sinusoidal, max_len_, D,
                                    key.fold_in("positions")));
}

void InputStem::make_patches(const EncoderConfig& c, const DataInfo& data, RngKey key) {
  if (!data.image) throw ConfigError("model.patch: needs images as features (data.type: image, data.input: features)");
  if (c.stem.layers > 0) throw ConfigError("model.patch: cannot be combined with model.stem");
  if (data.target == DataInfo::Target::Frame)
    throw ConfigError("model.patch: gives one row for many pixels; this task needs one output per pixel");
  image_ = data.image;
  try {
    patches_ = std::make_unique<Child<PatchEmbedding>>(
        this, "patches",
        std::make_unique<PatchEmbedding>(PatchEmbeddingConfig{.patch = c.patch,
                                                              .height = image_->height,
                                                              .width = image_->width,
                                                              .channels = image_->channels,
                                                              .dim = c.t.dim,
                                                              .class_token = c.pooling == "cls",
                                                              .positions = c.positions == "learned"},
                                         key));
  } catch (const ConfigError& e) {
    throw ConfigError(std::string("model.") + e.what());
  }
  max_len_ = (*patches_)->tokens();
}

InputStem::Rows InputStem::forward(const Batch& batch, const Ctx& ctx) const {
  Tensor mask = patches_ ? Tensor::full({batch.mask.dim(0), max_len_}, 1, DType::U8) : batch.mask;
  if (ctx.training && config_.token_dropout > 0) mask = hide_tokens(mask, ctx);
  Tensor x = embedding_ ? (*embedding_)->forward(batch.tokens) : batch.features.to(default_dtype());
  if (patches_) {
    const Tensor pixels = ops::reshape(x, {x.dim(0), image_->height, image_->width, image_->channels});
    x = (*patches_)->forward(ops::permute(pixels, {0, 3, 1, 2}));
  }
  if (input_) x = (*input_)->forward(x);
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    x = (*norms_[i])->forward(ops::gelu((*convs_[i])->forward(x, mask)));
    mask = (*convs_[i])->strided_mask(mask);
  }
  if (positions_) x = (*positions_)->forward(x);
  if (ctx.training) x = ops::dropout(x, config_.embedding_dropout, ctx.at("embedding").key, ctx.rows);
  return {x, mask};
}

// A sample keeps all its tokens when the draw would hide every one of them.
Tensor InputStem::hide_tokens(const Tensor& mask, const Ctx& ctx) const {
  Tensor out = mask.clone();
  const i64 B = mask.dim(0), N = mask.dim(1);
  const RngKey key = ctx.at("tokens").key;
  std::uint8_t* m = out.mut_ptr<std::uint8_t>();
  for (i64 b = 0; b < B; ++b) {
    const RngKey row = key.fold_in(static_cast<std::uint64_t>(ctx.rows.empty() ? b : ctx.rows[static_cast<std::size_t>(b)]));
    i64 left = 0;
    for (i64 n = 0; n < N; ++n) left += m[b * N + n] = m[b * N + n] && row.uniform(static_cast<std::uint64_t>(n)) >= config_.token_dropout;
    if (left == 0) out.slice(0, b, b + 1).copy_from(mask.slice(0, b, b + 1));
  }
  return out;
}

std::vector<Model::LayerSummary> InputStem::summary() {
  std::vector<Model::LayerSummary> rows;
  if (embedding_) rows.push_back({"embedding", "token table", count_parameters(**embedding_)});
  if (patches_) rows.push_back({"patches", "patch embedding", count_parameters(**patches_)});
  if (input_) rows.push_back({"input", "linear", count_parameters(**input_)});
  for (std::size_t i = 0; i < convs_.size(); ++i)
    rows.push_back({"stem." + std::to_string(i), "convolution", count_parameters(**convs_[i])});
  if (positions_) rows.push_back({"positions", config_.positions, count_parameters(**positions_)});
  return rows;
}

}  // namespace tapeformer
