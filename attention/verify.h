// verify.h: runs the variant that a golden file names on the file's inputs and parameters and compares outputs and gradients, in f64 and
// f32. A file holds root attributes `variant` and `config` (JSON), groups /inputs (q, k, v, x, mask, cotangent, side inputs, fixed random
// draws), /params, /outputs and /grads (of sum(o * cotangent)). Whoever ports a model from elsewhere can write one and check the port.
#pragma once
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

struct TensorCheck {
  std::string name;  // "outputs/o", "grads/q"
  DType dtype = DType::F64;
  double error = 0;  // largest |got - expected| - relative tolerance share
  double allowed = 0;
  bool padding_exact = true;  // rows of padding are exactly 0
  bool pass = false;
};

struct GoldenReport {
  std::string file, variant, type;  // type: the registered name that ran
  std::string skipped;              // why nothing ran: the variant (or a part of it) is not known
  std::vector<TensorCheck> checks;
  bool pass() const;
};

GoldenReport verify_golden(const std::string& file);  // IoError, ConfigError, ShapeError when the file does not fit

}  // namespace tapeformer
