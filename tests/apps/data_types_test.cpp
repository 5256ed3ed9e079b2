// Graphs, images and pairs of texts through the programs, from files to predictions.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/apps/process.h"

namespace tapeformer {
namespace {

class DataTypes : public ::testing::Test {
 protected:
  int run(const std::string& name, const std::vector<std::string>& arguments, const std::string& input = "") {
    Process p(dir, name, arguments, input);
    const int code = p.wait();
    out = p.out();
    err = p.err();
    return code;
  }
  std::ptrdiff_t lines() const { return std::count(out.begin(), out.end(), '\n'); }
  TempDir dir;
  std::string out, err;
};

TEST_F(DataTypes, Graph) {
  std::string nodes = "node\tlabel\tsplit\tfeatures\n", edges = "source\ttarget\n";
  for (int i = 0; i < 30; ++i) {
    nodes += "n" + std::to_string(i) + "\t" + (i % 2 ? "odd" : "even") + "\t" + (i < 20 ? "train" : "test") + "\t" + std::to_string(i % 2) +
             "\n";
    edges += "n" + std::to_string(i) + "\tn" + std::to_string((i + 2) % 30) + "\n";
  }
  dir.write("nodes.tsv", nodes);
  dir.write("edges.tsv", edges);
  dir.write("run.yaml", R"(data:
  type: graph
  train: {files: nodes.tsv, where: {split: train}}
  test: {files: nodes.tsv, where: {split: test}}
model: {type: encoder_classifier, dim: 8, layers: 1, heads: 2, positions: none, attention: {type: graph}}
optim: {type: adamw, lr: 2e-2}
train: {steps: 20}
)");
  ASSERT_EQ(run("train", {"run.yaml"}), 0) << err;
  ASSERT_EQ(run("evaluate", {"runs/run"}), 0) << err;
  EXPECT_TRUE(contains(out, "10 nodes of 1 samples"));
  EXPECT_TRUE(contains(out, "accuracy  1.0000"));
  ASSERT_EQ(run("predict", {"runs/run", "nodes.tsv"}), 0) << err;
  EXPECT_EQ(lines(), 30);
  EXPECT_TRUE(contains(out, "nodes.tsv\tn3\todd\t"));
  ASSERT_EQ(run("predict", {"runs/run", "nodes.tsv", "--json"}), 0) << err;
  EXPECT_TRUE(contains(out, R"("nodes":[{"node":"n0","label":"even",)"));
  ASSERT_EQ(run("evaluate", {"runs/run", "--predictions", "p.tsv"}), 0) << err;
  EXPECT_TRUE(contains(text_of(dir / "p.tsv"), "source\tnode\tlabel\tprediction\tprobability\nnodes.tsv\tn0\t-\teven\t"));
  EXPECT_EQ(run("predict", {"runs/run", "none.tsv"}), 1);
  EXPECT_TRUE(contains(err, "error: none.tsv: no such file"));
}

TEST_F(DataTypes, ImagesAndOverlays) {
  ASSERT_EQ(run("prepare", {"pathfinder", "--out", "d", "--samples", "12,4,5", "--size", "16", "--contour", "3", "--distractors", "1"}), 0)
      << err;
  EXPECT_TRUE(contains(out, "12 + 4 + 5 images"));
  EXPECT_TRUE(contains(out, "distance of the circles"));
  dir.write("run.yaml", R"(data:
  type: image
  train: d/train-images-idx3-ubyte
  test: d/test-images-idx3-ubyte
model: {type: encoder_classifier, dim: 8, layers: 1, heads: 2, patch: 4}
train: {epochs: 1, batch_size: 4}
)");
  dir.write("small.yaml", "model: {dim: 4}\ntrain: {epochs: 0, steps: 2}\n");
  ASSERT_EQ(run("train", {"run.yaml", "small.yaml"}), 0) << err;
  EXPECT_TRUE(contains(err, "finished at step 2"));
  EXPECT_TRUE(contains(text_of(dir / "runs/run-small/config.yaml"), "dim: 4"));
  ASSERT_EQ(run("evaluate", {"runs/run-small"}), 0) << err;
  ASSERT_EQ(run("predict", {"runs/run-small", "d/test-images-idx3-ubyte"}), 0) << err;
  EXPECT_EQ(lines(), 5);
  EXPECT_TRUE(contains(out, "d/test-images-idx3-ubyte:4\t"));
  dir.write("bad.yaml", "model:\n  dmi: 4\n");
  EXPECT_EQ(run("train", {"run.yaml", "bad.yaml"}), 1);
  EXPECT_TRUE(contains(err, "error: bad.yaml:2: model.dmi: unknown key"));
}

TEST_F(DataTypes, PairsOfTexts) {
  std::string rows = "same\tleft\tright\n";
  for (int i = 0; i < 20; ++i) rows += i % 2 ? "yes\tred\tred\n" : "no\tred\tblue sky\n";
  dir.write("p.tsv", rows);
  dir.write("run.yaml", R"(data:
  type: text
  train: p.tsv
  test: p.tsv
  columns: {text: left, text2: right, label: same}
model: {type: matching, dim: 8, layers: 1, heads: 2, hidden: [8]}
optim: {type: adamw, lr: 1e-2}
train: {steps: 40, batch_size: 10}
)");
  ASSERT_EQ(run("train", {"run.yaml"}), 0) << err;
  ASSERT_EQ(run("evaluate", {"runs/run"}), 0) << err;
  EXPECT_TRUE(contains(out, "accuracy  1.0000"));
  EXPECT_EQ(run("predict", {"runs/run"}, "red\tred\nred\tblue\nred\n"), 1);
  EXPECT_EQ(out.substr(0, 4), "yes\t");
  EXPECT_TRUE(contains(out, "\nno\t"));
  EXPECT_TRUE(contains(err, "standard input:3: got one text, expected two with a tab between them"));
}

TEST_F(DataTypes, ListopsShortcuts) {
  ASSERT_EQ(
      run("prepare", {"listops", "--out", "d", "--samples", "50,10,20", "--min-length", "5", "--max-length", "40", "--max-depth", "4"}), 0)
      << err;
  EXPECT_TRUE(contains(out, "on the test part: majority 0."));
  EXPECT_EQ(run("prepare", {"listops", "--out", "d", "--min-length", "5", "--max-length", "6"}), 1);
  EXPECT_TRUE(contains(err, "error: max-length: got 6, expected at least 7"));
}

}  // namespace
}  // namespace tapeformer
