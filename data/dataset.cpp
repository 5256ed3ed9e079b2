#include "data/dataset.h"

#include <algorithm>
#include <cstring>

namespace tapeformer {
namespace {

void check_sample(const Sample& s, const DataInfo& info) {
  const bool tokens = info.input == DataInfo::Input::Tokens;
  TAPEFORMER_ASSERT(s.features.defined() != tokens, "a sample's input is not of the kind its data set declares");
  TAPEFORMER_ASSERT(info.target == DataInfo::Target::Sequence || static_cast<i64>(s.frame_labels.size()) == s.length(),
                    "a sample has not one frame label a position");
}

void put_features(const Sample& s, float* row, i64 dim) {
  if (s.length() == 0) return;
  TAPEFORMER_ASSERT(s.features.dim(1) == dim, "a sample has not the feature size its data set declares");
  const Tensor f = s.features.to_contiguous();
  std::memcpy(row, f.ptr<float>(), f.bytes());
}

void put_edges(const std::vector<Sample>& samples, std::map<std::string, Tensor>& side) {
  i64 count = 0;
  for (const Sample& s : samples) count += s.edges.defined() ? s.edges.dim(1) : 0;
  Tensor edges = Tensor::empty({2, count}, DType::I64), batch = Tensor::empty({count}, DType::I64);
  for (i64 b = 0, at = 0; b < static_cast<i64>(samples.size()); ++b) {
    const Tensor& own = samples[static_cast<std::size_t>(b)].edges;
    if (!own.defined()) continue;
    const i64 E = own.dim(1);
    for (i64 row = 0; row < 2; ++row) std::copy_n(own.ptr<i64>() + row * E, E, edges.mut_ptr<i64>() + row * count + at);
    std::fill_n(batch.mut_ptr<i64>() + at, E, b);
    at += E;
  }
  side["edges"] = std::move(edges);
  side["edge_batch"] = std::move(batch);
}

std::shared_ptr<const Batch> collate_seconds(const std::vector<Sample>& samples, const std::vector<i64>& rows, DataInfo info) {
  info.pair = false;
  std::vector<Sample> seconds;
  for (const Sample& s : samples) {
    TAPEFORMER_ASSERT(s.second != nullptr, "a sample is no pair, which its data set declares");
    seconds.push_back(*s.second);
  }
  return std::make_shared<const Batch>(collate(seconds, rows, info));
}

}  // namespace

std::string_view name_of(Part part) { return part == Part::Train ? "train" : part == Part::Valid ? "valid" : "test"; }

i64 Batch::real_tokens() const {
  i64 count = 0;
  for (std::uint8_t m : mask.data<std::uint8_t>()) count += m;
  return count + (second ? second->real_tokens() : 0);
}

std::unique_ptr<Dataset> Preprocessor::dataset(const std::string& file, Part part) const {
  return dataset(PartSource{{file}, {}}, policies(), part);
}

Batch collate(const std::vector<Sample>& samples, const std::vector<i64>& rows, const DataInfo& info) {
  const auto B = static_cast<i64>(samples.size());
  i64 N = 1;
  for (const Sample& s : samples) {
    check_sample(s, info);
    N = std::max(N, s.length());
  }
  Batch batch;
  batch.rows = rows;
  batch.mask = Tensor::zeros({B, N}, DType::U8);
  const bool tokens = info.input == DataInfo::Input::Tokens, frames = info.target == DataInfo::Target::Frame;
  if (tokens)
    batch.tokens = Tensor::zeros({B, N}, DType::I64);
  else
    batch.features = Tensor::zeros({B, N, info.feature_dim});
  batch.labels = Tensor::empty(frames ? Shape{B, N} : Shape{B}, DType::I64);
  std::uint8_t* mask = batch.mask.mut_ptr<std::uint8_t>();
  i64* labels = batch.labels.mut_ptr<i64>();
  std::fill_n(labels, batch.labels.numel(), kIgnoreLabel);
  for (i64 b = 0; b < B; ++b) {
    const Sample& s = samples[static_cast<std::size_t>(b)];
    std::fill_n(mask + b * N, s.length(), std::uint8_t{1});
    if (tokens)
      std::copy(s.tokens.begin(), s.tokens.end(), batch.tokens.mut_ptr<i64>() + b * N);
    else
      put_features(s, batch.features.mut_ptr<float>() + b * N * info.feature_dim, info.feature_dim);
    if (frames)
      std::copy(s.frame_labels.begin(), s.frame_labels.end(), labels + b * N);
    else
      labels[b] = s.label;
  }
  if (std::any_of(samples.begin(), samples.end(), [](const Sample& s) { return s.edges.defined(); })) put_edges(samples, batch.side);
  if (info.pair) batch.second = collate_seconds(samples, rows, info);
  return batch;
}

}  // namespace tapeformer
