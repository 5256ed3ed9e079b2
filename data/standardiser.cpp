#include "data/standardiser.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tapeformer {

Standardiser::Standardiser(const std::vector<double>& mean, const std::vector<double>& deviation) {
  for (std::size_t f = 0; f < mean.size(); ++f) {
    mean_.push_back(static_cast<float>(mean[f]));
    scale_.push_back(deviation[f] > 1e-6 ? static_cast<float>(1 / deviation[f]) : 1.0f);  // a constant feature becomes 0
  }
}

Standardiser Standardiser::fit(const std::vector<std::span<const float>>& blocks, i64 dim) {
  const auto width = static_cast<std::size_t>(dim);
  std::vector<double> sum(width), squares(width);
  double count = 0;
  const auto each = [&](auto&& f) {
    for (std::span<const float> block : blocks)
      for (std::size_t i = 0; i < block.size(); ++i) f(i % width, static_cast<double>(block[i]));
  };
  for (std::span<const float> block : blocks) count += static_cast<double>(block.size() / width);
  each([&](std::size_t f, double x) { sum[f] += x; });
  for (double& s : sum) s /= std::max(count, 1.0);
  each([&](std::size_t f, double x) { squares[f] += (x - sum[f]) * (x - sum[f]); });
  for (double& s : squares) s = std::sqrt(s / std::max(count, 1.0));
  return Standardiser(sum, squares);
}

void Standardiser::apply(std::span<float> rows) const {
  for (std::size_t i = 0; !empty() && i < rows.size(); ++i) rows[i] = (rows[i] - mean_[i % mean_.size()]) * scale_[i % mean_.size()];
}

void Standardiser::save(Hdf5File& file, const std::string& group) const {
  if (empty()) return;
  file.write(group + "/mean", Tensor::from(mean_, {static_cast<i64>(mean_.size())}));
  file.write(group + "/scale", Tensor::from(scale_, {static_cast<i64>(scale_.size())}));
}

Standardiser Standardiser::load(const Hdf5File& file, const std::string& group) {
  Standardiser out;
  if (!file.exists(group + "/mean")) return out;
  for (double x : file.read(group + "/mean").to_vector()) out.mean_.push_back(static_cast<float>(x));
  for (double x : file.read(group + "/scale").to_vector()) out.scale_.push_back(static_cast<float>(x));
  if (out.mean_.size() != out.scale_.size()) throw IoError(group + ": mean and scale differ in size");
  return out;
}

}  // namespace tapeformer
