// standardiser.h: mean 0 and deviation 1 for each feature.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "core/hdf5_file.h"

namespace tapeformer {

class Standardiser {
 public:
  Standardiser() = default;  // changes nothing
  Standardiser(const std::vector<double>& mean, const std::vector<double>& deviation);
  // Over all rows of [N, dim] blocks, in their order.
  static Standardiser fit(const std::vector<std::span<const float>>& blocks, i64 dim);
  void apply(std::span<float> rows) const;  // [N, dim]
  bool empty() const { return mean_.empty(); }
  void save(Hdf5File&, const std::string& group) const;
  static Standardiser load(const Hdf5File&, const std::string& group);

 private:
  std::vector<float> mean_, scale_;
};

}  // namespace tapeformer
