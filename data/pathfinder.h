// pathfinder.h: Pathfinder-style images: are the two filled circles the ends of one dashed curve? A generator of our own after the
// description of Linsley et al. 2018 and the settings of Long Range Arena (Tay et al. 2021, section 2.2.5); its images are not theirs, and
// scores on them compare with one another only.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/rng.h"

namespace tapeformer {

struct PathfinderSettings {
  std::uint64_t seed = 1;
  std::array<i64, 3> samples{160000, 20000, 20000};  // train, valid, test
  i64 size = 32;                                     // height and width
  i64 contour = 14;                                  // dashes of each of the two long curves: 6 easy, 9 intermediate, 14 hard
  i64 distance = 7;                                  // between the starts of the two
  i64 distractors = -1;                              // short curves of contour / 3 dashes; -1: 20 / (contour / 3)
  double continuity = 1;                             // larger: straighter curves
};

struct PathfinderImage {
  std::vector<std::uint8_t> pixels;  // [size, size]
  bool connected = false;            // the label
  double circle_distance = 0;        // in pixels
};
PathfinderImage pathfinder_image(RngKey, const PathfinderSettings&);  // ConfigError when nothing fits

struct PathfinderShortcuts {                       // what tells the classes apart without following a curve
  double connected = 0;                            // share of the test part
  std::array<double, 2> ink{};                     // mean intensity of an image, 0 to 1, by label
  std::array<double, 2> distance{};                // mean distance of the circles in pixels, by label
  double ink_accuracy = 0, distance_accuracy = 0;  // on the test part, by the threshold that is best on the training part
};
// <out_dir>/{train,valid,test}-images-idx3-ubyte and -labels-idx1-ubyte, and labels.txt.
PathfinderShortcuts generate_pathfinder(const std::string& out_dir, const PathfinderSettings&);

}  // namespace tapeformer
