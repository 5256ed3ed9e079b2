#include "core/hdf5_file.h"
#include "core/log.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

const std::string kNodes =
    "node\tlabel\tsplit\tfeatures\n"
    "a\tx\ttrain\t0 2\n"
    "b\ty\ttrain\t1\n"
    "c\tx\tvalid\t\n"
    "d\ty\ttest\t2 1 0 4\n";

struct GraphData : ::testing::Test {
  TempDir dir;
  ConfigNode section(const std::string& nodes = kNodes, const std::string& edges = "source\ttarget\na\tb\nb\tc\n",
                     const std::string& more = "") {
    dir.write("edges.tsv", edges);
    const std::string file = dir.write("nodes.tsv", nodes);
    std::string text = "type: graph\n";
    for (const char* part : {"train", "valid", "test"})
      text += std::string(part) + ": {files: " + file + ", where: {split: " + part + "}}\n";
    return ConfigNode::parse(text + more, "run.yaml");
  }
  std::string error(const std::string& nodes, const std::string& edges = "source\ttarget\na\tb\n", const std::string& more = "") {
    return message_of([&] { load_data(section(nodes, edges, more)); });
  }
};

TEST_F(GraphData, OneSampleIsTheWholeGraph) {
  const DataSet set = load_data(section());
  const DataInfo& info = set.preprocessor->info();
  EXPECT_EQ(info.labels, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(info.feature_dim, 5);
  EXPECT_EQ(info.max_length, 4);
  EXPECT_EQ(info.side, (std::vector<std::string>{"edges", "edge_batch"}));
  ASSERT_EQ(set.test->size(), 1);
  const Sample s = set.train->get(0, {});
  EXPECT_EQ(s.frame_labels, (std::vector<i64>{0, 1, kIgnoreLabel, kIgnoreLabel}));
  EXPECT_EQ(set.test->get(0, {}).frame_labels, (std::vector<i64>{kIgnoreLabel, kIgnoreLabel, kIgnoreLabel, 1}));
  EXPECT_EQ(s.features.to_vector(), (std::vector<double>{.5, 0, .5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, .25, .25, .25, 0, .25}));
  EXPECT_EQ(s.edges.to_vector(), (std::vector<double>{0, 1, 1, 2, 1, 0, 2, 1}));  // both directions
  Loader loader(*set.train, info, {.prefetch = 0}, RngKey(1));
  Cursor cursor;
  const Batch batch = loader.next(cursor);
  EXPECT_EQ(batch.side.at("edges").to_vector(), s.edges.to_vector());
  EXPECT_EQ(batch.side.at("edge_batch").to_vector(), (std::vector<double>{0, 0, 0, 0}));
}

TEST_F(GraphData, DirectedAndPlainFeatures) {
  const DataSet set = load_data(section(kNodes, "source\ttarget\nb\ta\nc\td\n", "directed: true\nnormalise: none\nfeature_dim: 6"));
  const Sample s = set.train->get(0, {});
  EXPECT_EQ(s.edges.to_vector(), (std::vector<double>{1, 2, 0, 3}));
  EXPECT_EQ(s.features.dim(1), 6);
  EXPECT_EQ(s.features.to_vector()[2], 1);
}

TEST_F(GraphData, SeveralGraphsInABatch) {
  const DataSet set = load_data(section());
  const Sample s = set.train->get(0, {});
  const Batch batch = collate({s, s}, {0, 1}, set.preprocessor->info());
  EXPECT_EQ(batch.side.at("edges").to_vector(), (std::vector<double>{0, 1, 1, 2, 0, 1, 1, 2, 1, 0, 2, 1, 1, 0, 2, 1}));
  EXPECT_EQ(batch.side.at("edge_batch").to_vector(), (std::vector<double>{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST_F(GraphData, SelfLoopsAndRepeatedEdgesAreLeftOutAndCounted) {
  const std::string file = dir / "log.txt";
  log::to_file(file);
  const DataSet set = load_data(section(kNodes, "source\ttarget\na\tb\na\ta\nb\ta\na\tb\n"));
  log::to_file("");
  EXPECT_EQ(set.train->get(0, {}).edges.dim(1), 2);
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_TRUE(contains(text, "edges.tsv: left out 1 self loops and 2 repeated edges, the first at " + (dir / "edges.tsv") + ":3"));
}

TEST_F(GraphData, Mistakes) {
  EXPECT_TRUE(contains(error(kNodes, "source\ttarget\na\tb\na\tq\n"), "edges.tsv:3: node 'q' does not stand in " + (dir / "nodes.tsv")));
  EXPECT_TRUE(contains(error(kNodes, "from\tto\na\tb\n"), "edges.tsv:1: no column 'source', the header has: from, to"));
  EXPECT_TRUE(contains(error(kNodes, "source\ttarget\na\n"), "edges.tsv:2: got 1 fields, expected 2"));
  EXPECT_TRUE(contains(error(kNodes + "a\tx\ttrain\t1\n"), "nodes.tsv:6: node 'a' stands twice"));
  EXPECT_TRUE(contains(error(kNodes + "e\tx\ttrain\t1 -2\n"), "nodes.tsv:6: feature index -2 is out of range"));
  EXPECT_TRUE(
      contains(error(kNodes, "source\ttarget\na\tb\n", "feature_dim: 4"), "nodes.tsv:5: feature index 4 is out of range, expected 0 to 3"));
  EXPECT_TRUE(contains(error(kNodes + "e\tx\ttrain\t1,2\n"), "nodes.tsv:6: '1,2' is no feature index"));
  EXPECT_TRUE(contains(error(kNodes + "e\tz\tvalid\t1\n"), "nodes.tsv:6: label 'z' does not occur in the training part"));
  EXPECT_TRUE(contains(error("node\tlabel\tsplit\tfeatures\na\tx\ttrain\t0\nb\tx\ttrain\t0\n"), "got 1 different label"));
  EXPECT_TRUE(contains(error(kNodes, "source\ttarget\na\tb\n", "max_length: 3"), "has 4 nodes, expected at most 3"));
  EXPECT_EQ(error(kNodes, "source\ttarget\na\tb\na\tq\n", "on_error: skip"), "");
}

TEST_F(GraphData, SavedAndLoaded) {
  const DataSet set = load_data(section());
  {
    Hdf5File f = Hdf5File::create(dir / "p.h5");
    set.preprocessor->save(f, "/data");
    f.close();
  }
  const auto loaded = load_preprocessor(Hdf5File::open(dir / "p.h5"), "/data");
  EXPECT_EQ(loaded->info().feature_dim, 5);
  EXPECT_EQ(loaded->info().labels, set.preprocessor->info().labels);
  const Sample s = loaded->sample_of_file(dir / "nodes.tsv");  // what predict reads
  EXPECT_EQ(s.features.to_vector(), set.train->get(0, {}).features.to_vector());
  EXPECT_EQ(s.frame_labels.size(), 4u);
  EXPECT_TRUE(contains(message_of([&] { loaded->sample_of_line("a"); }), "give the table of nodes as a file"));
  EXPECT_EQ(loaded->dataset(dir / "nodes.tsv", Part::Test)->get(0, {}).frame_labels, (std::vector<i64>{0, 1, 0, 1}));  // no `where`: all
}

}  // namespace
}  // namespace tapeformer
