#include "data/image_file.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "data/idx_file.h"

namespace tapeformer {
namespace {

constexpr i64 kCifarSide = 32, kCifarPlane = kCifarSide * kCifarSide, kCifarRecord = 1 + 3 * kCifarPlane;

ImageSet read_cifar(const std::string& bytes, const std::string& name) {
  const auto size = static_cast<i64>(bytes.size()), count = size / kCifarRecord;
  if (size == 0) throw DataError(name + ": is empty");
  if (static_cast<std::uint8_t>(bytes[0]) > 9)
    throw DataError(
        fmt::format("{}: starts with the byte {}, expected CIFAR-10 records (a label of 0 to 9 first), an IDX file, or a binary "
                    "PGM or PPM picture",
                    name, static_cast<std::uint8_t>(bytes[0])));
  if (size % kCifarRecord != 0)
    throw DataError(fmt::format("{}: record {} is truncated: it has {} bytes, expected {} (label, then 32 x 32 red, green, blue)", name,
                                count, size % kCifarRecord, kCifarRecord));
  ImageSet out{kCifarSide, kCifarSide, 3, {}, {}, {{name, count}}};
  out.pixels.resize(static_cast<std::size_t>(count * 3 * kCifarPlane));
  auto to = out.pixels.begin();
  for (i64 i = 0; i < count; ++i) {
    const auto* const record = reinterpret_cast<const std::uint8_t*>(bytes.data()) + i * kCifarRecord;
    if (record[0] > 9) throw DataError(fmt::format("{}: record {}: got label {}, expected 0 to 9", name, i, record[0]));
    out.labels.push_back(record[0]);
    for (i64 p = 0; p < kCifarPlane; ++p)
      for (i64 c = 0; c < 3; ++c) *to++ = record[1 + c * kCifarPlane + p];
  }
  return out;
}

ImageSet images_of(IdxArray array, const std::string& name) {
  const std::vector<i64>& s = array.sizes;
  if (s.size() < 3 || (s.size() == 4 && s[3] != 1 && s[3] != 3))
    throw DataError(
        fmt::format("{}: got an array of {} axes, expected images [n, height, width] or [n, height, width, 3]", name, s.size()));
  return {s[1], s[2], s.size() == 4 ? s[3] : 1, std::move(array.values), {}, {{name, s[0]}}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  if (const std::size_t at = text.rfind(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::string label_file_of(const std::string& images) {
  const std::filesystem::path path(images);
  const std::string name = path.filename().string();
  std::string labels = replaced(name, "images", "labels");
  for (const char* rank : {"idx3", "idx4"}) labels = replaced(labels, rank, "idx1");
  const std::string file = (path.parent_path() / labels).string();
  if (labels == name || !std::filesystem::exists(file))
    throw DataError(fmt::format("{}: no file of its labels{}; name it after the images: [images, labels]", images,
                                labels == name ? "" : " (looked for " + file + ")"));
  return file;
}

void attach(ImageSet& set, const IdxArray& labels, const std::string& name) {
  if (labels.sizes.size() != 1 || labels.sizes[0] != set.size())
    throw DataError(
        fmt::format("{}: got {} labels, expected {}, one for each image of {}", name, labels.sizes[0], set.size(), set.files[0].name));
  set.labels.assign(labels.values.begin(), labels.values.end());
}

void append(ImageSet& all, ImageSet next) {
  if (all.files.empty()) {
    all = std::move(next);
    return;
  }
  if (all.height != next.height || all.width != next.width || all.channels != next.channels)
    throw DataError(fmt::format("{}: got images of {} x {} x {}, expected {} x {} x {} as in {}", next.files[0].name, next.height,
                                next.width, next.channels, all.height, all.width, all.channels, all.files[0].name));
  all.pixels.insert(all.pixels.end(), next.pixels.begin(), next.pixels.end());
  all.labels.insert(all.labels.end(), next.labels.begin(), next.labels.end());
  all.files.push_back(next.files[0]);
}

// Binary PGM (P5) or PPM (P6) with one byte a value.
ImageSet read_pnm(const std::string& bytes, const std::string& name) {
  if (bytes[1] != '5' && bytes[1] != '6')
    throw DataError(fmt::format("{}: is a picture of the kind P{}, expected a binary PGM (P5) or PPM (P6)", name, bytes[1]));
  std::size_t at = 2;
  const auto number = [&] {
    while (at < bytes.size() && (std::isspace(static_cast<unsigned char>(bytes[at])) || bytes[at] == '#'))
      if (bytes[at++] == '#')
        while (at < bytes.size() && bytes[at] != '\n') ++at;
    i64 x = 0;
    const std::size_t start = at;
    while (at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9' && x < 1000000) x = 10 * x + (bytes[at++] - '0');
    if (x >= 1000000) throw DataError(name + ": the header of a PGM or PPM picture names a side of a million pixels or more");
    if (at == start) throw DataError(name + ": the header of a PGM or PPM picture needs width, height and 255");
    return x;
  };
  ImageSet out{.channels = bytes[1] == '6' ? 3 : 1, .files = {{name, 1}}};
  out.width = number();
  out.height = number();
  if (const i64 most = number(); most != 255) throw DataError(fmt::format("{}: got a largest value of {}, expected 255", name, most));
  ++at;  // one white space after the header
  if (out.width < 1 || out.height < 1) throw DataError(fmt::format("{}: the picture has {} x {} pixels", name, out.height, out.width));
  if (static_cast<i64>(bytes.size()) - static_cast<i64>(at) != out.bytes())
    throw DataError(fmt::format("{}: got {} bytes of pixels, expected {} ({} x {} x {})", name, bytes.size() - std::min(at, bytes.size()),
                                out.bytes(), out.height, out.width, out.channels));
  out.pixels.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
  return out;
}

bool is_pnm(const std::string& bytes) { return bytes.size() > 2 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '7'; }

bool is_idx(const std::string& bytes, const std::string& name, const std::string& format) {
  if (format != "auto") return format == "idx";
  return std::filesystem::path(name).filename().string().find("idx") != std::string::npos ||
         (looks_like_idx(bytes) && static_cast<i64>(bytes.size()) % kCifarRecord != 0);
}

}  // namespace

ImageSet::File ImageSet::origin(i64 i) const {
  for (const File& f : files) {
    if (i < f.count) return {f.name, 1, f.first + i};
    i -= f.count;
  }
  return {"image", 1, i};
}

std::string ImageSet::place(i64 i) const {
  const File f = origin(i);
  return fmt::format("{}: record {}", f.name, f.first);
}

ImageSet read_images(const std::vector<std::string>& files, const std::string& format, bool with_labels) {
  ImageSet all;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string &name = files[f], bytes = read_bytes(name);
    if (is_pnm(bytes)) {
      if (with_labels) throw DataError(name + ": is a single picture without a label");
      append(all, read_pnm(bytes, name));
    } else if (!is_idx(bytes, name, format)) {
      append(all, read_cifar(bytes, name));
    } else {
      ImageSet set = images_of(parse_idx(bytes, name), name);
      std::string label_file;
      if (f + 1 < files.size()) {
        const std::string next = read_bytes(files[f + 1]);
        if (looks_like_idx(next) && next[3] == 1) label_file = files[++f];
      }
      if (with_labels && label_file.empty()) label_file = label_file_of(name);
      if (with_labels) attach(set, parse_idx(read_bytes(label_file), label_file), label_file);
      append(all, std::move(set));
    }
  }
  if (all.size() == 0) throw DataError(files[0] + ": holds no image");
  return all;
}

void make_grey(ImageSet& set) {
  if (set.channels == 1) return;
  for (std::size_t p = 0; p < set.pixels.size() / 3; ++p) {
    const double r = set.pixels[3 * p], g = set.pixels[3 * p + 1], b = set.pixels[3 * p + 2];
    set.pixels[p] = static_cast<std::uint8_t>(std::min(255L, std::lround(0.2989 * r + 0.587 * g + 0.114 * b)));
  }
  set.pixels.resize(set.pixels.size() / 3);
  set.channels = 1;
}

}  // namespace tapeformer
