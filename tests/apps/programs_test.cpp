// The programs as a user runs them, on a generated text task.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/config.h"
#include "core/hdf5_file.h"
#include "core/rng.h"
#include "tests/apps/process.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

std::string table(int rows, std::uint64_t seed) {
  const std::vector<std::vector<std::string>> words = {{"apple", "rose", "fire"}, {"sky", "sea", "ice"}, {"grass", "leaf", "frog"}};
  const std::vector<std::string> noise = {"the", "a", "of", "and", "very", "is"}, labels = {"red", "blue", "green"};
  std::string out = "text,label\n";
  for (int i = 0; i < rows; ++i) {
    const RngKey k = RngKey(seed).fold_in(static_cast<std::uint64_t>(i));
    const std::size_t label = k.below(0, 3);
    const std::uint64_t before = k.below(1, 5), after = k.below(2, 5);
    for (std::uint64_t n = 0; n < before; ++n) out += noise[k.below(10 + n, 6)] + " ";
    out += words[label][k.below(3, 3)];
    for (std::uint64_t n = 0; n < after; ++n) out += " " + noise[k.below(20 + n, 6)];
    out += "," + labels[label] + "\n";
  }
  return out;
}

constexpr const char* kConfig = R"(seed: 3
data:
  type: text
  train: train.csv
  valid: valid.csv
  test: test.csv
  columns: {text: text, label: label}
  tokenizer: {type: word}
  max_length: 16
model: {type: encoder_classifier, dim: 16, layers: 1, heads: 2, ff_dim: 32, dropout: 0.1}
optim: {type: adamw, lr: 1e-2}
schedule: {type: cosine, warmup: 5}
train: {steps: 60, batch_size: 8, accumulate: 2, bucket: 4, validate_every: 20, save_every: 7, log_every: 20, ema: 0.9}
)";

class Programs : public ::testing::Test {
 protected:
  Programs() {
    dir.write("train.csv", table(120, 1));
    dir.write("valid.csv", table(40, 2));
    dir.write("test.csv", table(40, 3));
    dir.write("run.yaml", kConfig);
  }
  int run(const std::string& name, const std::vector<std::string>& arguments, const std::string& input = "") {
    Process p(dir, name, arguments, input);
    const int code = p.wait();
    out = p.out();
    err = p.err();
    return code;
  }
  int train(std::vector<std::string> more) {
    more.insert(more.begin(), "run.yaml");
    return run("train", more);
  }
  std::size_t lines_of(const std::string& file) {
    const std::string t = text_of(dir / file);
    return static_cast<std::size_t>(std::count(t.begin(), t.end(), '\n'));
  }
  void wait_for_lines(Process& p, const std::string& file, std::size_t n) {
    while (p.running() && lines_of(file) < n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void expect_same_tensors(const std::string& a, const std::string& b) {
    const Hdf5File x = open_checked(dir / a), y = open_checked(dir / b);
    ASSERT_EQ(x.datasets(), y.datasets());
    for (const std::string& path : x.datasets()) EXPECT_TRUE(x.read(path).to_vector() == y.read(path).to_vector()) << path;
  }
  void expect_same_runs(const std::string& a, const std::string& b) {
    EXPECT_EQ(text_of(dir / (a + "/steps.jsonl")), text_of(dir / (b + "/steps.jsonl")));
    EXPECT_EQ(text_of(dir / (a + "/validations.jsonl")), text_of(dir / (b + "/validations.jsonl")));
    expect_same_tensors(a + "/checkpoints/last.h5", b + "/checkpoints/last.h5");
    expect_same_tensors(a + "/checkpoints/best.h5", b + "/checkpoints/best.h5");
    for (const auto& entry : fs::recursive_directory_iterator(dir / b))
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
  TempDir dir;
  std::string out, err;
};

TEST_F(Programs, TrainEvaluatePredict) {
  ASSERT_EQ(train({}), 0) << err;
  EXPECT_TRUE(contains(err, "step 20/60 loss "));
  EXPECT_TRUE(contains(err, "finished at step 60; best accuracy "));
  EXPECT_EQ(lines_of("runs/run/steps.jsonl"), 60u);
  EXPECT_EQ(lines_of("runs/run/validations.jsonl"), 3u);
  for (const char* f : {"config.yaml", "log.txt", "checkpoints/best.h5", "checkpoints/last.h5", "checkpoints/previous.h5"})
    EXPECT_TRUE(fs::exists(dir / (std::string("runs/run/") + f))) << f;

  // The last checkpoint on the validation data: the trainer's numbers bit for bit, for any number of threads.
  const std::string last = text_of(dir / "runs/run/validations.jsonl");
  const std::string line = last.substr(last.rfind('\n', last.size() - 2) + 1);
  const ConfigNode trained = ConfigNode::parse(line, "validations.jsonl");
  for (const char* threads : {"1", "3"}) {
    ASSERT_EQ(run("evaluate", {"runs/run/checkpoints/last.h5", "--split", "valid", "--json", "v.json", "--threads", threads}), 0) << err;
    const ConfigNode json = ConfigNode::load(dir / "v.json");
    for (const char* key : {"loss", "accuracy", "macro_f1"}) EXPECT_EQ(std::stod(json[key].text()), std::stod(trained[key].text())) << key;
  }

  ASSERT_EQ(run("evaluate", {"runs/run", "--predictions", "p.tsv"}), 0) << err;
  EXPECT_TRUE(contains(out, "accuracy  "));
  EXPECT_TRUE(contains(out, "confusion"));
  EXPECT_EQ(lines_of("p.tsv"), 41u);
  EXPECT_TRUE(contains(text_of(dir / "p.tsv"), "test.csv:2\t"));
  ASSERT_EQ(run("evaluate", {"runs/run", "--data", "test.csv"}), 0) << err;

  ASSERT_EQ(run("predict", {"runs/run"}, "the rose is\nvery sea a\r\nfrog"), 0) << err;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3);
  EXPECT_EQ(out.substr(0, 6), "red\t0.") << out;
  EXPECT_TRUE(contains(out, "\nblue\t0.")) << out;
  const std::string from_pipe = out;
  dir.write("lines.txt", "the rose is\nvery sea a\nfrog\n");
  ASSERT_EQ(run("predict", {"runs/run", "lines.txt"}), 0) << err;
  EXPECT_EQ(out, from_pipe);
  ASSERT_EQ(run("predict", {"runs/run", "-", "--json", "--top", "2"}, "frog\n"), 0) << err;
  EXPECT_TRUE(contains(out, R"({"label":"green","probability":0.)"));
  EXPECT_TRUE(contains(out, R"("top":[{"label":"green",)"));
  EXPECT_EQ(run("predict", {"runs/run"}, "rose\n\nfrog\n"), 1);  // rows stay in step with lines
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3);
  EXPECT_TRUE(contains(out, "\n-\t0\n"));
  EXPECT_TRUE(contains(err, "error: standard input:2: "));

  EXPECT_EQ(train({}), 1);
  EXPECT_TRUE(contains(err, "error: runs/run: holds checkpoints; use --resume"));
  EXPECT_EQ(train({"--resume"}), 0) << err;
  EXPECT_EQ(lines_of("runs/run/steps.jsonl"), 60u);
  EXPECT_EQ(train({"--resume", "--set", "optim.lr=0.5"}), 1);
  EXPECT_TRUE(contains(err, "differs from that of")) << err;
  EXPECT_TRUE(contains(err, "optim.lr")) << err;
}

TEST_F(Programs, AClosedPipeEndsQuietly) {
  ASSERT_EQ(train({"--set", "train.steps=2"}), 0) << err;
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "frog\n";
  dir.write("many.txt", lines);
  const std::string command = "cd " + dir.str() + " && " + BINARY_DIR + "/apps/predict runs/run many.txt 2> err.txt | head -n 1 > head.txt";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(text_of(dir / "err.txt"), "");
  EXPECT_EQ(lines_of("head.txt"), 1u);
}

TEST_F(Programs, ResumeAfterSignalsIsBitForBit) {
  ASSERT_EQ(train({"--run-dir", "whole", "--threads", "2", "--set", "train.steps=200"}), 0) << err;
  for (const int number : {SIGTERM, SIGINT}) {
    const std::string name = number == SIGTERM ? "term" : "int";
    {
      Process p(dir, "train", {"run.yaml", "--run-dir", name, "--threads", "1", "--set", "train.steps=200"});
      wait_for_lines(p, name + "/steps.jsonl", 11);
      p.signal(number);
      EXPECT_EQ(p.wait(), 128 + number) << p.err();
      EXPECT_TRUE(contains(p.err(), "interrupted, checkpoint saved at step"));
      EXPECT_LT(lines_of(name + "/steps.jsonl"), 200u);
    }
    ASSERT_EQ(train({"--run-dir", name, "--resume", "--threads", "3", "--set", "train.steps=200"}), 0) << err;
    expect_same_runs("whole", name);
  }
}

TEST_F(Programs, ResumeAfterKillIsBitForBit) {
  const std::string steps = "train.steps=200";
  ASSERT_EQ(train({"--run-dir", "whole", "--set", steps}), 0) << err;
  for (const std::size_t lines : {1u, 5u, 21u, 40u, 75u, 141u}) {  // one run, killed again and again
    Process p(dir, "train", {"run.yaml", "--run-dir", "killed", "--resume", "--set", steps});
    wait_for_lines(p, "killed/steps.jsonl", lines);
    p.signal(SIGKILL);
    EXPECT_EQ(p.wait(), -SIGKILL);
  }
  dir.write("killed/checkpoints/last.h5.tmp123", "what a kill in the middle of saving leaves");
  ASSERT_EQ(train({"--run-dir", "killed", "--resume", "--threads", "1", "--set", steps}), 0) << err;
  expect_same_runs("whole", "killed");

  // A damaged last checkpoint: the one before is used, and says so.
  std::string bytes = text_of(dir / "killed/checkpoints/last.h5");
  bytes[bytes.size() / 2] ^= 1;
  dir.write("killed/checkpoints/last.h5", bytes);
  ASSERT_EQ(train({"--run-dir", "killed", "--resume", "--set", steps}), 0) << err;
  EXPECT_TRUE(contains(err, "warning: killed/checkpoints/last.h5: is damaged"));
  EXPECT_TRUE(contains(err, "using killed/checkpoints/previous.h5"));
  expect_same_runs("whole", "killed");
}

TEST_F(Programs, OverwritingLosesNothingBeforeTheDataIsSound) {
  ASSERT_EQ(train({"--run-dir", "r", "--set", "train.steps=4"}), 0) << err;
  const std::string before = text_of(dir / "r/checkpoints/best.h5");
  EXPECT_EQ(train({"--run-dir", "r", "--overwrite", "--set", "data.train=nope.csv"}), 1);
  EXPECT_NE(err.find("nope.csv: no such file"), std::string::npos) << err;
  EXPECT_TRUE(text_of(dir / "r/checkpoints/best.h5") == before);
  ASSERT_EQ(train({"--run-dir", "r", "--overwrite", "--set", "train.steps=4"}), 0) << err;
  EXPECT_TRUE(text_of(dir / "r/checkpoints/best.h5") == before);  // the same run gives the same bytes
}

TEST_F(Programs, VerifyAndBenchFailLikeTheOthers) {
  EXPECT_EQ(run("verify", {"run.yaml"}), 1);
  EXPECT_NE(out.find("FAIL"), std::string::npos) << out;
  EXPECT_EQ(run("verify", {}), 2);
  EXPECT_EQ(err.rfind("error: ", 0), 0u) << err;
  EXPECT_EQ(run("bench", {"--lengths", "0"}), 2);
  EXPECT_EQ(err.rfind("error: ", 0), 0u) << err;
  EXPECT_EQ(run("bench", {"--variants", "fulll"}), 1);
  EXPECT_NE(err.find("did you mean 'full'?"), std::string::npos) << err;
}

TEST_F(Programs, DryRunPredictsMemory) {
  ASSERT_EQ(train({"--dry-run"}), 0) << err;
  EXPECT_FALSE(fs::exists(dir / "runs"));
  for (const char* part : {"padding", "total", "FLOP", "predicted peak memory"}) EXPECT_TRUE(contains(out, part)) << part;
  const std::vector<std::string> larger = {"--set", "model.dim=64", "--set", "model.ff_dim=256", "--set", "train.batch_size=32"};
  std::vector<std::string> dry = larger;
  dry.push_back("--dry-run");
  ASSERT_EQ(train(dry), 0) << err;
  const double predicted = std::stod(out.substr(out.find("predicted peak memory") + 21));
  ASSERT_EQ(train(larger), 0) << err;
  const double used = std::stod(err.substr(err.find("peak memory ") + 12));
  EXPECT_NEAR(predicted / used, 1, 0.1) << "MiB: predicted " << predicted << ", used " << used;
}

TEST_F(Programs, ErrorsAreClearAndExitCodesTell) {
  const auto expect_error = [&](int code, const std::string& text) {
    EXPECT_TRUE(contains(err, text));
    EXPECT_EQ(err.find("terminate"), std::string::npos) << err;
    EXPECT_NE(code, 0);
  };
  expect_error(run("train", {"none.yaml"}), "error: none.yaml: cannot open the configuration");
  dir.write("bad.yaml", std::string(kConfig) + "trian: {steps: 3}\n");
  expect_error(run("train", {"bad.yaml"}), "error: bad.yaml:14: trian: unknown key, expected one of: ");
  expect_error(run("train", {"bad.yaml"}), "(did you mean 'train'?)");
  std::string two = kConfig;
  two.replace(two.find("lr: 1e-2"), 8, "lrr: 1e-2");
  two.replace(two.find("steps: 60"), 9, "steps: -4");
  dir.write("two.yaml", two);
  const int code = run("train", {"two.yaml"});
  expect_error(code, "error: two.yaml:11: optim.lrr: unknown key");
  expect_error(code, "error: two.yaml:13: train.steps: got -4, expected at least 0");
  expect_error(train({"--set", "train.metric=acuracy"}),
               "train.metric: got 'acuracy', expected one of: accuracy, macro_f1, loss (did you mean 'accuracy'?)");
  expect_error(train({"--set", "data.train=none.csv"}), "none.csv");
  expect_error(run("evaluate", {"none"}), "error: none: no such file or run directory");
  expect_error(run("evaluate", {"run.yaml"}), "error: run.yaml: is not a file that this program saved");
  expect_error(run("predict", {"run.yaml"}, "x\n"), "error: run.yaml: is not a file that this program saved");
  EXPECT_EQ(train({"--set", "foo"}), 2);
  expect_error(2, "got 'foo', expected KEY=VALUE");
  EXPECT_EQ(run("train", {}), 2);
  EXPECT_EQ(run("evaluate", {}), 2);
  EXPECT_EQ(run("predict", {"x", "--top", "0"}), 2);
  EXPECT_EQ(run("train", {"--nope"}), 2);
  expect_error(run("train", {"--explain", "optim.adamx"}), "no such key (did you mean 'optim.adam'?)");
  for (const char* name : {"train", "evaluate", "predict"}) {
    EXPECT_EQ(run(name, {"--help"}), 0);
    EXPECT_TRUE(contains(out, "Examples:"));
    EXPECT_EQ(run(name, {"--version"}), 0);
    EXPECT_TRUE(contains(out, "tapeformer"));
  }
}

TEST_F(Programs, PrintConfigAndExplain) {
  ASSERT_EQ(train({"--print-config", "--set", "train.clip=0.5"}), 0) << err;
  EXPECT_TRUE(contains(out, "clip: 0.5"));
  EXPECT_TRUE(contains(out, "eval_batch_size: 8"));
  dir.write("again.yaml", out);
  const std::string first = out;
  ASSERT_EQ(run("train", {"again.yaml", "--print-config"}), 0) << err;
  EXPECT_EQ(out, first);
  for (const char* key : {"all", "train", "train.clip", "optim", "optim.adamw", "optim.adamw.lr", "schedule.plateau", "data.text",
                          "model.encoder_classifier", "attention.local", "seed"}) {
    EXPECT_EQ(run("train", {"--explain", key}), 0) << key;
    EXPECT_GT(out.size(), 20u) << key;
  }
}

}  // namespace
}  // namespace tapeformer
