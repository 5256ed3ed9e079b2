// image_file.h: sets of small images with labels: CIFAR-10 binary records (label, then red, green and blue planes of 32 x 32), IDX arrays
// [n, height, width] or [n, height, width, 3] with a second file of labels, and single binary PGM and PPM pictures.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/shape.h"

namespace tapeformer {

struct ImageSet {
  struct File {  // images that follow one another in a file
    std::string name;
    i64 count = 0, first = 0;
  };
  i64 height = 0, width = 0, channels = 0;  // 1 grey, 3 red, green, blue
  std::vector<std::uint8_t> pixels;         // [n, height, width, channels]
  std::vector<i64> labels;                  // [n], or empty
  std::vector<File> files;                  // in order
  i64 bytes() const { return height * width * channels; }
  i64 size() const { return bytes() > 0 ? static_cast<i64>(pixels.size()) / bytes() : 0; }
  std::span<const std::uint8_t> image(i64 i) const { return {pixels.data() + i * bytes(), static_cast<std::size_t>(bytes())}; }
  File origin(i64 i) const;        // where one image comes from
  std::string place(i64 i) const;  // "test.bin: record 17", counted from 0 in each file
};

// format: "auto", "cifar" or "idx". An IDX file of labels may follow its images in the list; otherwise it is the file whose name has
// `labels` for `images` and `idx1` for `idx3`. with_labels false: none are looked for. IoError; DataError naming file and record.
ImageSet read_images(const std::vector<std::string>& files, const std::string& format, bool with_labels);

// 0.2989 R + 0.587 G + 0.114 B, rounded.
void make_grey(ImageSet&);

}  // namespace tapeformer
