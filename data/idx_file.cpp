#include "data/idx_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/hdf5_file.h"

namespace tapeformer {
namespace {

constexpr std::size_t kMostAxes = 4;
constexpr std::uint8_t kBytes = 8;  // element type: unsigned byte

std::uint8_t byte_at(const std::string& bytes, std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); }

}  // namespace

bool looks_like_idx(const std::string& bytes) {
  return bytes.size() >= 4 && bytes[0] == 0 && bytes[1] == 0 && byte_at(bytes, 2) == kBytes && byte_at(bytes, 3) >= 1 &&
         byte_at(bytes, 3) <= kMostAxes;
}

IdxArray parse_idx(const std::string& bytes, const std::string& name) {
  if (!looks_like_idx(bytes)) {
    std::string start;
    for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 4); ++i) start += fmt::format(" {:02x}", byte_at(bytes, i));
    throw DataError(fmt::format("{}: is no IDX file of bytes: it starts with{}, expected 00 00 08 and a rank of 1 to {}", name,
                                start.empty() ? " nothing" : start, kMostAxes));
  }
  IdxArray out;
  const std::size_t rank = byte_at(bytes, 3), header = 4 + 4 * rank;
  if (bytes.size() < header)
    throw DataError(fmt::format("{}: is truncated: the header needs {} bytes, got {}", name, header, bytes.size()));
  double expected = 1;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    i64 size = 0;
    for (std::size_t i = 0; i < 4; ++i) size = size << 8 | byte_at(bytes, 4 + 4 * axis + i);
    out.sizes.push_back(size);
    expected *= static_cast<double>(size);
  }
  const std::size_t got = bytes.size() - header;
  if (static_cast<double>(got) != expected) {
    std::string sizes;
    for (i64 s : out.sizes) sizes += (sizes.empty() ? "" : " x ") + std::to_string(s);
    const double each = expected / static_cast<double>(std::max<i64>(out.sizes[0], 1));
    throw DataError(fmt::format("{}: {}: the header says {} bytes ({}), the file has {}{}", name,
                                static_cast<double>(got) < expected ? "is truncated" : "goes on after its end", expected, sizes, got,
                                static_cast<double>(got) < expected ? fmt::format("; record {} is the first incomplete one",
                                                                                  static_cast<i64>(static_cast<double>(got) / each))
                                                                    : ""));
  }
  out.values.assign(bytes.begin() + static_cast<std::ptrdiff_t>(header), bytes.end());
  return out;
}

std::string read_bytes(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!std::filesystem::exists(file)) throw IoError(file + ": no such file");
  if (!in || std::filesystem::is_directory(file)) throw IoError(file + ": cannot be read");
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) throw IoError(file + ": cannot be read");
  return bytes;
}

void write_idx(const std::string& file, const IdxArray& array) {
  TAPEFORMER_ASSERT(!array.sizes.empty() && array.sizes.size() <= kMostAxes, "an IDX array has 1 to 4 axes");
  std::string out{'\0', '\0', static_cast<char>(kBytes), static_cast<char>(array.sizes.size())};
  for (i64 size : array.sizes)
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(size >> shift & 0xff);
  out.append(array.values.begin(), array.values.end());
  write_file_atomically(file, out);
}

}  // namespace tapeformer
