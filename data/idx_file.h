// idx_file.h: arrays of bytes in the IDX format of the MNIST files: 00 00 08 rank, big-endian sizes, values.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.h"

namespace tapeformer {

struct IdxArray {
  std::vector<i64> sizes;
  std::vector<std::uint8_t> values;  // row-major
};
bool looks_like_idx(const std::string& bytes);  // by its first four bytes
// name stands for the file in messages. DataError: wrong magic number, another element type, truncated, too long.
IdxArray parse_idx(const std::string& bytes, const std::string& name);
std::string read_bytes(const std::string& file);  // IoError
void write_idx(const std::string& file, const IdxArray&);

}  // namespace tapeformer
