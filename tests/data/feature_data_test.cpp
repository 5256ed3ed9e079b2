#include "core/hdf5_file.h"
#include "data/dataset.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

struct FeatureData : ::testing::Test {
  TempDir dir;
  // Three sequences of 2, 3 and 1 frames of 2 features.
  std::string file(const std::string& name, const std::vector<i64>& labels, const std::vector<i64>& lengths = {2, 3, 1},
                   const std::string& names = "") {
    Hdf5File f = Hdf5File::create(dir / name);
    f.write("/features", Tensor::from<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {6, 2}));
    f.write("/lengths", Tensor::from(lengths, {static_cast<i64>(lengths.size())}));
    f.write("/labels", Tensor::from(labels, {static_cast<i64>(labels.size())}));
    if (!names.empty()) f.write_attribute("/", "label_names", names);
    f.close();
    return dir / name;
  }
  ConfigNode section(const std::string& train, const std::string& more = "") {
    return ConfigNode::parse("type: features\ntrain: " + train + "\n" + more, "y");
  }
  std::string error(const std::string& train, const std::string& more = "") {
    return message_of([&] { load_data(section(train, more)); });
  }
};

TEST_F(FeatureData, OneLabelASequence) {
  const DataSet set = load_data(section(file("a.h5", {1, 0, kIgnoreLabel}), "normalise: none"));
  const DataInfo& info = set.preprocessor->info();
  EXPECT_EQ(info.labels, (std::vector<std::string>{"0", "1"}));
  EXPECT_EQ(info.max_length, 3);
  EXPECT_EQ(info.feature_dim, 2);
  EXPECT_EQ(set.train->get(1, {}).features.to_vector(), (std::vector<double>{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(set.train->get(0, {}).label, 1);
  EXPECT_EQ(set.train->describe(2), (dir / "a.h5") + ": sequence 2");
}

TEST_F(FeatureData, OneLabelAFrame) {
  const DataSet set = load_data(section(file("a.h5", {0, 1, 1, 0, kIgnoreLabel, 1}, {2, 3, 1}, "no\nyes"), "max_length: 2"));
  EXPECT_EQ(set.preprocessor->info().target, DataInfo::Target::Frame);
  EXPECT_EQ(set.preprocessor->info().labels, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(set.train->get(1, {}).frame_labels, (std::vector<i64>{1, 0}));
  EXPECT_EQ(set.train->length(1), 2);
}

TEST_F(FeatureData, SavedAndLoaded) {
  const std::string a = file("a.h5", {1, 0, 1});
  const DataSet set = load_data(section(a));
  {
    Hdf5File f = Hdf5File::create(dir / "p.h5");
    set.preprocessor->save(f, "/data");
    f.close();
  }
  const auto loaded = load_preprocessor(Hdf5File::open(dir / "p.h5"), "/data");
  EXPECT_EQ(loaded->dataset(a, Part::Test)->get(1, {}).features.to_vector(), set.train->get(1, {}).features.to_vector());
  EXPECT_TRUE(contains(message_of([&] { loaded->dataset(file("b.h5", {1, 0, 2}), Part::Test); }), "/labels: got 2, expected less than 2"));
}

TEST_F(FeatureData, Mistakes) {
  EXPECT_TRUE(contains(error(file("a.h5", {1, 0})), "/labels: got 2, expected 3 (one a sequence) or 6 (one a frame)"));
  EXPECT_TRUE(contains(error(file("a.h5", {1, 0, 1}), "target: frame"), "data.target is frame"));
  EXPECT_TRUE(contains(error(file("a.h5", {1, 0, 1}, {2, 3, 2})), "/lengths: add up to 7, but /features has 6 rows"));
  EXPECT_TRUE(contains(error(file("a.h5", {1, 0, 1}, {2, 4, 0})), "/lengths: sequence 2 has 0 frames, expected at least 1"));
  EXPECT_TRUE(contains(error(file("a.h5", {1, -3, 1})), "/labels: got -3, expected 0 or more"));
  EXPECT_TRUE(contains(error(file("a.h5", {1, 5, 1}, {2, 3, 1}, "no\nyes")), "/labels: got 5, expected less than 2"));
  EXPECT_TRUE(contains(error(dir / "none.h5"), "none.h5: no such file"));
  EXPECT_TRUE(contains(error(dir.write("t.h5", "text")), "is not an HDF5 file"));
  {
    Hdf5File f = Hdf5File::create(dir / "part.h5");
    f.write("/features", Tensor::zeros({2, 2}));
    f.close();
  }
  EXPECT_TRUE(contains(error(dir / "part.h5"), "no dataset '/lengths', the file has: /features"));
  EXPECT_TRUE(contains(error("{files: " + file("a.h5", {1, 0, 1}) + ", where: {a: b}}"), "HDF5 features have no columns"));
}

}  // namespace
}  // namespace tapeformer
