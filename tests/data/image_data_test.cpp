#include <cmath>

#include "core/hdf5_file.h"
#include "data/dataset.h"
#include "data/idx_file.h"
#include "data/image_file.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

struct ImageData : ::testing::Test {
  TempDir dir;
  // n grey images of 2 x 3 pixels with the values 10 i, 10 i + 1, ...
  std::string idx(const std::string& part, const std::vector<std::uint8_t>& labels) {
    IdxArray images{{static_cast<i64>(labels.size()), 2, 3}, {}};
    for (std::size_t i = 0; i < labels.size(); ++i)
      for (std::size_t p = 0; p < 6; ++p) images.values.push_back(static_cast<std::uint8_t>(10 * i + p));
    write_idx(dir / (part + "-images-idx3-ubyte"), images);
    write_idx(dir / (part + "-labels-idx1-ubyte"), {{static_cast<i64>(labels.size())}, labels});
    return dir / (part + "-images-idx3-ubyte");
  }
  static std::string cifar_record(int label, int red, int green, int blue) {
    return std::string(1, static_cast<char>(label)) + std::string(1024, static_cast<char>(red)) +
           std::string(1024, static_cast<char>(green)) + std::string(1024, static_cast<char>(blue));
  }
  DataSet load(const std::string& train, const std::string& more = "") {
    return load_data(ConfigNode::parse("type: image\ntrain: " + train + "\n" + more, "run.yaml"));
  }
  std::string error(const std::string& train, const std::string& more = "") {
    return message_of([&] { load(train, more); });
  }
};

TEST_F(ImageData, IdxAsTokens) {
  const DataSet set = load(idx("train", {1, 0, 2}), "input: tokens\nvalid: " + idx("valid", {2}));
  const DataInfo& info = set.preprocessor->info();
  EXPECT_EQ(info.vocab, 256);
  EXPECT_EQ(info.max_length, 6);
  EXPECT_EQ(info.labels, (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(set.train->get(1, {}).tokens, (std::vector<i64>{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(set.train->get(2, {}).label, 2);
  EXPECT_EQ(set.train->describe(2), (dir / "train-images-idx3-ubyte") + ": record 2");
  EXPECT_EQ(set.valid->size(), 1);
  const DataSet cls = load(idx("train", {1, 0}), "input: tokens\nadd_cls: true");
  EXPECT_EQ(cls.train->get(0, {}).tokens, (std::vector<i64>{256, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(cls.preprocessor->info().vocab, 257);
}

TEST_F(ImageData, CifarAsFeaturesAndGrey) {
  dir.write("labels.txt", "cat\ndog\n");
  const std::string a = dir.write("a.bin", cifar_record(0, 0, 100, 30) + cifar_record(1, 200, 100, 30)),
                    b = dir.write("b.bin", cifar_record(1, 1, 2, 3));
  const DataSet set = load("[" + a + ", " + b + "]", "normalise: none");
  const DataInfo& info = set.preprocessor->info();
  ASSERT_TRUE(info.image);
  EXPECT_EQ(info.image->height * info.image->width * info.image->channels, 3072);
  EXPECT_EQ(info.labels, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(set.train->describe(2), b + ": record 0");
  EXPECT_NEAR(set.train->get(1, {}).features.to_vector()[0], 200 / 255.0, 1e-6);
  EXPECT_NEAR(set.train->get(1, {}).features.to_vector()[3071], 30 / 255.0, 1e-6);
  const DataSet grey = load(a, "input: tokens");
  EXPECT_EQ(grey.train->get(1, {}).tokens[7], std::lround(0.2989 * 200 + 0.587 * 100 + 0.114 * 30));
  const DataSet scaled = load(a);  // mean 0 and deviation 1 of each colour: 0 and 200 become -1 and 1, equal ones 0
  EXPECT_NEAR(scaled.train->get(1, {}).features.to_vector()[0], 1, 1e-5);
  EXPECT_NEAR(scaled.train->get(0, {}).features.to_vector()[0], -1, 1e-5);
  EXPECT_NEAR(scaled.train->get(0, {}).features.to_vector()[1], 0, 1e-5);
}

TEST_F(ImageData, AugmentationIsKeyed) {
  const DataSet set = load(idx("train", {0, 1}), "input: tokens\naugment: {shift: 1, flip: true}");
  const std::vector<i64> plain{10, 11, 12, 13, 14, 15};
  EXPECT_EQ(set.train->get(1, {}).tokens, plain);
  bool flipped = false, moved = false, kept = false;
  for (std::uint64_t k = 0; k < 100; ++k) {
    const std::vector<i64> t = set.train->get(1, RngKey(k)).tokens;
    EXPECT_EQ(t, set.train->get(1, RngKey(k)).tokens);
    flipped |= t == std::vector<i64>{12, 11, 10, 15, 14, 13};
    moved |= t == std::vector<i64>{0, 0, 0, 0, 10, 11};  // one down and one to the right
    kept |= t == plain;
  }
  EXPECT_TRUE(flipped && moved && kept);
}

TEST_F(ImageData, LabelFilesCanBeNamed) {
  const std::string images = idx("train", {0, 1});
  std::filesystem::rename(dir / "train-labels-idx1-ubyte", dir / "classes");
  EXPECT_TRUE(contains(error(images), "train-images-idx3-ubyte: no file of its labels (looked for " + (dir / "train-labels-idx1-ubyte")));
  EXPECT_EQ(load("[" + images + ", " + (dir / "classes") + "]").train->size(), 2);
}

TEST_F(ImageData, DamagedFiles) {
  const std::string images = idx("train", {0, 1, 1}), bytes = read_bytes(images);
  EXPECT_TRUE(contains(
      error(dir.write("cut-images-idx3-ubyte", bytes.substr(0, bytes.size() - 1))),
      "cut-images-idx3-ubyte: is truncated: the header says 18 bytes (3 x 2 x 3), the file has 17; record 2 is the first incomplete one"));
  EXPECT_TRUE(contains(error(dir.write("more-images-idx3-ubyte", bytes + "x")), "goes on after its end: the header says 18 bytes"));
  EXPECT_TRUE(contains(error(dir.write("bad-images-idx3-ubyte", "abcd" + bytes)), "starts with 61 62 63 64, expected 00 00 08"));
  EXPECT_TRUE(contains(error(dir.write("empty-images-idx3-ubyte", "")), "starts with nothing"));
  EXPECT_TRUE(contains(error(dir.write("short-images-idx3-ubyte", bytes.substr(0, 10))), "the header needs 16 bytes, got 10"));
  write_idx(dir / "train-labels-idx1-ubyte", {{2}, {0, 1}});
  EXPECT_TRUE(contains(error(images), "train-labels-idx1-ubyte: got 2 labels, expected 3, one for each image of"));
  const std::string record = cifar_record(0, 1, 2, 3);
  EXPECT_TRUE(
      contains(error(dir.write("a.bin", record + record.substr(5))), "a.bin: record 1 is truncated: it has 3068 bytes, expected 3073"));
  EXPECT_TRUE(contains(error(dir.write("a.bin", "")), "a.bin: is empty"));
  EXPECT_TRUE(contains(error(dir.write("a.bin", record + cifar_record(12, 1, 1, 1))), "a.bin: record 1: got label 12, expected 0 to 9"));
  dir.write("names", "x\ny\n");
  const std::string good = dir.write("b.bin", record + cifar_record(1, 1, 1, 1)),
                    bad = dir.write("c.bin", record + cifar_record(7, 1, 1, 1));
  const std::string names = "names: " + (dir / "names") + "\nvalid: " + bad;
  EXPECT_TRUE(contains(error(good, names), "c.bin: record 1: label 7 is out of range, expected 0 to 1"));
  const DataSet set = load(good, names + "\non_unknown_label: skip");
  EXPECT_EQ(set.valid->size(), 1);
  EXPECT_EQ(set.valid->describe(0), bad + ": record 0");
  EXPECT_TRUE(contains(error("[" + good + ", " + idx("train", {0}) + "]"), "got images of 2 x 3 x 1, expected 32 x 32 x 3 as in"));
  EXPECT_TRUE(
      contains(error(good, "valid: " + idx("train", {0})), "got images of 2 x 3 x 1, expected 32 x 32 x 3 as in the training part"));
  EXPECT_TRUE(contains(error(good, "input: tokens\ngrey: false"), "grey: got false, but tokens are grey intensities"));
  EXPECT_TRUE(contains(error(dir / "none.bin"), "none.bin: no such file"));
}

TEST_F(ImageData, SavedAndSinglePictures) {
  const DataSet set = load(idx("train", {0, 1}));
  {
    Hdf5File f = Hdf5File::create(dir / "p.h5");
    set.preprocessor->save(f, "/data");
    f.close();
  }
  const auto loaded = load_preprocessor(Hdf5File::open(dir / "p.h5"), "/data");
  EXPECT_EQ(loaded->info().image->width, 3);
  const std::vector<double> first = set.train->get(0, {}).features.to_vector();
  EXPECT_EQ(loaded->samples_of_file(dir / "train-images-idx3-ubyte").size(), 2u);
  EXPECT_EQ(loaded->samples_of_file(dir / "train-images-idx3-ubyte")[0].features.to_vector(), first);
  const std::string pixels{'\0', '\1', '\2', '\3', '\4', '\5'};
  EXPECT_EQ(loaded->sample_of_file(dir.write("one.pgm", "P5\n# made by hand\n3 2\n255\n" + pixels)).features.to_vector(), first);
  EXPECT_TRUE(
      contains(message_of([&] { loaded->sample_of_file(dir.write("cut.pgm", "P5 3 2 255\n123")); }), "got 3 bytes of pixels, expected 6"));
  EXPECT_TRUE(contains(message_of([&] { loaded->sample_of_file(dir.write("ppm", "P6 1 1 255\n123")); }),
                       "got images of 1 x 1 x 3, expected 2 x 3 x 1"));
  EXPECT_TRUE(contains(message_of([&] { loaded->sample_of_file(dir / "train-images-idx3-ubyte"); }), "holds 2 images, expected one"));
  const auto refusal = [&](const char* name, const std::string& bytes) {
    return message_of([&] { loaded->sample_of_file(dir.write(name, bytes)); });
  };
  EXPECT_TRUE(
      contains(refusal("plain.pgm", "P2 3 2 255\n1 2 3 4 5 6"), "is a picture of the kind P2, expected a binary PGM (P5) or PPM (P6)"));
  EXPECT_TRUE(contains(refusal("none.pgm", "P5 0 2 255\n"), "the picture has 2 x 0 pixels"));
  EXPECT_TRUE(contains(refusal("wide.pgm", "P5 1000000 2 255\n"), "names a side of a million pixels or more"));
  EXPECT_TRUE(contains(refusal("a.png", "\x89PNG\r\n"), "starts with the byte 137, expected CIFAR-10 records"));
}

}  // namespace
}  // namespace tapeformer
