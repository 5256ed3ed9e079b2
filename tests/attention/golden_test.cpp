// Every golden file whose variant is registered, in f64 and f32, outputs and gradients. Larger files run from
// ../shared/golden beside the checkout, or from the folder in the environment variable TAPEFORMER_GOLDEN, where there
// is one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "attention/verify.h"
#include "core/hdf5_file.h"
#include "tests/attention/cases.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> out;
  if (!fs::is_directory(folder)) return out;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".h5") out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

int count_passing(const std::vector<std::string>& files) {
  int passed = 0, skipped = 0;
  for (const std::string& file : files) {
    const GoldenReport report = verify_golden(file);
    if (!report.skipped.empty()) {
      EXPECT_TRUE(report.checks.empty()) << file;
      EXPECT_FALSE(report.pass()) << file;
      ++skipped;
      continue;
    }
    for (const TensorCheck& c : report.checks)
      EXPECT_TRUE(c.pass) << file << ": " << c.name << " " << name_of(c.dtype) << ": error " << c.error << ", allowed " << c.allowed
                          << (c.padding_exact ? "" : ", padding is not exactly 0");
    EXPECT_GE(report.checks.size(), 4u) << file << ": too little was compared";
    passed += report.pass();
  }
  std::cout << passed << " golden files passed, " << skipped << " name variants that are not registered\n";
  return passed;
}

TEST(Golden, FilesOfThisRepository) { EXPECT_GE(count_passing(files_in(SOURCE_DIR "/tests/golden")), 162); }

TEST(Golden, LargerFiles) {
  const char* named = std::getenv("TAPEFORMER_GOLDEN");
  const std::vector<std::string> files = files_in(named ? fs::path(named) : fs::path(SOURCE_DIR) / ".." / "shared" / "golden");
  if (files.empty()) GTEST_SKIP() << "no ../shared/golden";
  EXPECT_GE(count_passing(files), 294);
}

struct Change {  // what to do to a copy of a golden file
  std::string drop, nudge, variant;
};

std::string copy_of(const std::string& from, const Change& change) {
  const Hdf5File in = Hdf5File::open(from);
  const std::string path = (fs::temp_directory_path() / ("tapeformer_golden_" + std::to_string(getpid()) + ".h5")).string();
  Hdf5File out = Hdf5File::create(path);
  for (const std::string& name : in.datasets()) {
    if (name == change.drop) continue;
    Tensor t = in.read(name).clone();
    if (name == change.nudge) t.mut_ptr<double>()[t.numel() / 2] += 1e-4;
    out.write(name, t);
  }
  out.write_attribute("/", "variant", change.variant.empty() ? in.read_text("/", "variant") : change.variant);
  out.write_attribute("/", "config", in.read_text("/", "config"));
  if (in.has_attribute("/", "margin")) out.write_attribute("/", "margin", in.read_number("/", "margin"));
  out.close();
  return path;
}

std::vector<std::string> failing(const GoldenReport& report) {
  std::vector<std::string> out;
  for (const TensorCheck& c : report.checks)
    if (!c.pass) out.push_back(c.name + " " + std::string(name_of(c.dtype)));
  return out;
}

TEST(Golden, AWrongValueFails) {
  for (const char* name : {"full__causal_pad", "synthesizer_random__pad_short", "linear_transformer__full_pad"}) {
    const std::string file = std::string(SOURCE_DIR "/tests/golden/") + name + ".h5";
    EXPECT_TRUE(verify_golden(copy_of(file, {})).pass()) << name;
    for (const char* dataset : {"/outputs/o", "/grads/v"}) {
      const GoldenReport report = verify_golden(copy_of(file, {.nudge = dataset}));
      EXPECT_FALSE(report.pass()) << name << dataset;
      ASSERT_FALSE(failing(report).empty()) << name << dataset;
      EXPECT_EQ(failing(report)[0], std::string(dataset + 1) + " f64");
    }
    EXPECT_FALSE(verify_golden(copy_of(file, {.nudge = "/inputs/v"})).pass()) << name;
  }
}

TEST(Golden, UnknownVariantIsSkippedWithItsName) {
  const std::string file = SOURCE_DIR "/tests/golden/full__causal_pad.h5";
  const GoldenReport report = verify_golden(copy_of(file, {.variant = "locale"}));
  EXPECT_FALSE(report.pass());
  EXPECT_EQ(report.skipped.rfind("unknown variant 'locale', known: " + join(attention_registry().names()), 0), 0u) << report.skipped;
  EXPECT_NE(report.skipped.find("(did you mean 'local'?)"), std::string::npos) << report.skipped;
  const GoldenReport kind =
      verify_golden(copy_of(SOURCE_DIR "/tests/golden/synthesizer_random__full.h5", {.variant = "synthesizer_strange"}));
  EXPECT_NE(kind.skipped.find("'strange'"), std::string::npos) << kind.skipped;
}

TEST(Golden, DamagedFilesAreNamed) {
  const std::string file = SOURCE_DIR "/tests/golden/synthesizer_random__full.h5";
  const auto message = [](const std::string& path) { return suite::message_of([&] { verify_golden(path); }); };
  const auto expect = [&](const Change& change, const std::string& text) {
    const std::string path = copy_of(file, change), said = message(path);
    EXPECT_NE(said.find(path), std::string::npos) << said;
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  expect({.drop = "/outputs/o"}, "dataset '/outputs/o' is missing");
  expect({.drop = "/inputs/cotangent"}, "dataset '/inputs/cotangent' is missing");
  expect({.drop = "/params/R"}, "missing datasets: params/R");
  expect({.drop = "/inputs/v"}, "inputs/v");
  EXPECT_NE(message("/nowhere/at_all.h5").find("/nowhere/at_all.h5"), std::string::npos);
}

}  // namespace
}  // namespace tapeformer
