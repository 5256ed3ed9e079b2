#include "data/hdf5_text.h"

#include <cstring>

#include "core/error.h"

namespace tapeformer {

void write_text(Hdf5File& file, const std::string& path, const std::string& text) {
  Tensor t = Tensor::empty({static_cast<i64>(text.size())}, DType::U8);
  if (!text.empty()) std::memcpy(t.mut_ptr<std::uint8_t>(), text.data(), text.size());
  file.write(path, t);
}

std::string read_text(const Hdf5File& file, const std::string& path) {
  const Tensor t = file.read(path);
  if (t.dtype() != DType::U8) throw IoError(path + ": holds no text");
  return std::string(reinterpret_cast<const char*>(t.ptr<std::uint8_t>()), static_cast<std::size_t>(t.numel()));
}

void write_texts(Hdf5File& file, const std::string& path, const std::vector<std::string>& texts) {
  std::string all;
  std::vector<i64> sizes;
  for (const std::string& text : texts) {
    all += text;
    sizes.push_back(static_cast<i64>(text.size()));
  }
  file.write(path + "/sizes", Tensor::from(sizes, {static_cast<i64>(sizes.size())}));
  write_text(file, path + "/bytes", all);
}

std::vector<std::string> read_texts(const Hdf5File& file, const std::string& path) {
  const std::string all = read_text(file, path + "/bytes");
  const Tensor sizes = file.read(path + "/sizes");
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (double size : sizes.to_vector()) {
    const auto n = static_cast<std::size_t>(size);
    if (size < 0 || at + n > all.size()) throw IoError(path + ": the sizes do not fit the text");
    texts.push_back(all.substr(at, n));
    at += n;
  }
  return texts;
}

}  // namespace tapeformer
