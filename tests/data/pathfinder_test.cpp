#include "data/pathfinder.h"

#include <cmath>

#include "data/idx_file.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

PathfinderSettings easy() { return {.seed = 2, .samples = {40, 10, 20}, .contour = 6}; }

TEST(Pathfinder, SameSeedSameFiles) {
  const TempDir dir;
  generate_pathfinder(dir / "a", easy());
  generate_pathfinder(dir / "b", easy());
  for (const char* file : {"train-images-idx3-ubyte", "test-labels-idx1-ubyte", "labels.txt"})
    EXPECT_EQ(read_bytes(dir / ("a/" + std::string(file))), read_bytes(dir / ("b/" + std::string(file))));
  const IdxArray images = parse_idx(read_bytes(dir / "a/train-images-idx3-ubyte"), "a");
  EXPECT_EQ(images.sizes, (std::vector<i64>{40, 32, 32}));
  const IdxArray labels = parse_idx(read_bytes(dir / "a/valid-labels-idx1-ubyte"), "a");
  EXPECT_EQ(labels.sizes, (std::vector<i64>{10}));
}

// The two circles are the brightest spots, the border is empty, and every image is like the others in ink.
TEST(Pathfinder, ImagesHaveCirclesDashesAndAnEmptyBorder) {
  for (i64 i = 0; i < 20; ++i) {
    const PathfinderImage image = pathfinder_image(RngKey(1).fold_in(static_cast<std::uint64_t>(i)), easy());
    i64 full = 0, dim = 0;
    for (std::uint8_t p : image.pixels) {
      full += p > 230;
      dim += p > 60 && p <= 230;
    }
    EXPECT_GE(full, 5);  // two circles of 7 pixels, some of them cut by their edge
    EXPECT_LE(full, 18);
    EXPECT_GT(dim, 40);
    for (std::size_t x = 0; x < 32; ++x) EXPECT_LT(image.pixels[x], 200);
    EXPECT_GT(image.circle_distance, 2);
  }
}

// Nothing but the curves tells the classes apart: labels, ink and distance of the circles, and a linear model of the pixels.
TEST(Pathfinder, NoShortcuts) {
  constexpr i64 kTrain = 600, kTest = 400;
  std::vector<PathfinderImage> images;
  for (i64 i = 0; i < kTrain + kTest; ++i) images.push_back(pathfinder_image(RngKey(9).fold_in(static_cast<std::uint64_t>(i)), easy()));
  std::array<double, 2> count{}, ink{}, distance{};
  for (const PathfinderImage& i : images) {
    ++count[i.connected];
    for (std::uint8_t p : i.pixels) ink[i.connected] += p;
    distance[i.connected] += i.circle_distance;
  }
  for (std::size_t c = 0; c < 2; ++c) {
    ink[c] /= count[c] * 255 * 1024;
    distance[c] /= count[c];
  }
  EXPECT_NEAR(count[1] / (kTrain + kTest), 0.5, 0.06);
  EXPECT_NEAR(ink[0], ink[1], 0.01 * ink[0]);
  EXPECT_NEAR(distance[0], distance[1], 2);
  std::vector<double> w(1025);
  const auto score = [&](const PathfinderImage& i) {
    double z = w[1024];
    for (std::size_t p = 0; p < 1024; ++p) z += w[p] * i.pixels[p] / 255.0;
    return z;
  };
  for (int epoch = 0; epoch < 5; ++epoch)
    for (i64 i = 0; i < kTrain; ++i) {
      const PathfinderImage& image = images[static_cast<std::size_t>(i)];
      const double step = 0.02 * ((image.connected ? 1 : 0) - 1 / (1 + std::exp(-score(image))));
      for (std::size_t p = 0; p < 1024; ++p) w[p] += step * image.pixels[p] / 255.0;
      w[1024] += step;
    }
  double right = 0;
  for (i64 i = kTrain; i < kTrain + kTest; ++i)
    right += (score(images[static_cast<std::size_t>(i)]) > 0) == images[static_cast<std::size_t>(i)].connected;
  EXPECT_NEAR(right / kTest, 0.5, 0.1);
}

TEST(Pathfinder, SettingsThatCannotBeMet) {
  const TempDir dir;
  const auto error = [&](PathfinderSettings s) { return message_of([&] { generate_pathfinder(dir.str(), s); }); };
  EXPECT_TRUE(contains(error({.samples = {1, 1, 1}, .size = 12}), "two curves of 14 dashes and 5 of 4 do not fit into 12 x 12 pixels"));
  EXPECT_TRUE(contains(error({.size = 4}), "size: got 4, expected 12 to 1024"));
  EXPECT_TRUE(contains(error({.contour = 2}), "contour: got 2, expected at least 3"));
}

}  // namespace
}  // namespace tapeformer
