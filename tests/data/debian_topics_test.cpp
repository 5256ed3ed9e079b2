#include "data/debian_topics.h"

#include <cstdlib>

#include "data/dataset.h"
#include "data/hash_split.h"
#include "data/table.h"
#include "data/voice_prompts.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

// Puts programs of our own before the real ones while it lives.
class FakePath {
 public:
  explicit FakePath(const TempDir& dir) : dir_(dir), old_(std::getenv("PATH")) {
    ::setenv("PATH", ((dir / "bin") + ":" + old_).c_str(), 1);
  }
  ~FakePath() { ::setenv("PATH", old_.c_str(), 1); }
  void program(const std::string& name, const std::string& script) const {
    std::filesystem::permissions(dir_.write("bin/" + name, "#!/bin/sh\n" + script), std::filesystem::perms::owner_all);
  }

 private:
  const TempDir& dir_;
  std::string old_;
};

std::string stanzas() {
  std::string out;
  for (int i = 0; i < 60; ++i)
    out += "Package: b" + std::to_string(i) + "\nSource: src" + std::to_string(i) +
           " (1.0)\nSection: " + (i % 2 ? "contrib/games" : "net") + "\nDescription: \"synopsis\", number " + std::to_string(i) +
           "\nDescription-md5: m" + std::to_string(i) + "\n\n";
  out += "Package: a0\nSource: src0\nSection: net\nDescription: the first of its source\nDescription-md5: x\n\n";
  return out + "Package: other\nSection: libs\nDescription: a library\n\n";
}

i64 count_text(const std::string& file, const std::string& text) {
  const Table t = read_table(file, TableFormat::Csv, {});
  i64 n = 0;
  for (const TableRow& row : t.rows) n += row.fields[t.column("text")] == text;
  return n;
}

TEST(DebianTopics, OnePackageASourceSplitByHash) {
  TempDir dir;
  FakePath path(dir);
  path.program("apt-cache", "cat " + dir.write("avail", stanzas()));
  const DebianTopics t = debian_topics(dir / "out", dir / "none");
  EXPECT_EQ(t.short_texts.train + t.short_texts.valid + t.short_texts.test, 60);
  EXPECT_GT(t.short_texts.train, 35);
  EXPECT_EQ(t.long_texts.train, 0);
  EXPECT_FALSE(std::filesystem::exists(dir / "out/long"));
  const std::string part(name_of(part_of("src0"))), other(name_of(part_of("src7")));
  EXPECT_EQ(count_text(dir / ("out/short/" + part + ".csv"), "the first of its source"), 1);
  EXPECT_EQ(count_text(dir / ("out/short/" + part + ".csv"), "\"synopsis\", number 0"), 0);
  EXPECT_EQ(count_text(dir / ("out/short/" + other + ".csv"), "\"synopsis\", number 7"), 1);
}

TEST(DebianTopics, LongDescriptions) {
  TempDir dir;
  if (!std::filesystem::exists("/usr/lib/apt/apt-helper")) GTEST_SKIP() << "no apt-helper here";
  FakePath path(dir);
  path.program("apt-cache", "cat " + dir.write("avail", stanzas()));
  std::string lists;
  for (int i = 0; i < 60; ++i)
    lists += "Package: b" + std::to_string(i) + "\nDescription-md5: m" + std::to_string(i) + "\nDescription-en: synopsis " +
             std::to_string(i) + "\n first line\n .\n  second line\n\n";
  dir.write("lists/host_i18n_Translation-en", lists);
  const DebianTopics t = debian_topics(dir / "out", dir / "lists");
  EXPECT_EQ(t.long_texts.train + t.long_texts.valid + t.long_texts.test, 59);  // a0 has none
  EXPECT_EQ(count_text(dir / ("out/long/" + std::string(name_of(part_of("src7"))) + ".csv"), "synopsis 7 first line second line"), 1);
}

TEST(DebianTopics, Mistakes) {
  TempDir dir;
  FakePath path(dir);
  path.program("apt-cache", "true");
  EXPECT_TRUE(contains(message_of([&] { debian_topics(dir / "out"); }), "apt-cache dumpavail prints nothing; `apt-get update`"));
  path.program("apt-cache", "exit 127");
  EXPECT_TRUE(contains(message_of([&] { debian_topics(dir / "out"); }), "apt-cache dumpavail' failed (is the program installed?)"));
}

TEST(VoicePrompts, SaysWhatToInstall) {
  TempDir dir;
  FakePath path(dir);
  path.program("dpkg", "exit 1");
  EXPECT_TRUE(contains(message_of([&] { voice_prompts(dir / "out"); }), "apt-get install asterisk-core-sounds-en-wav"));
}

TEST(HashSplit, ShareOfEachPart) {
  int counts[3] = {};
  for (int i = 0; i < 10000; ++i) ++counts[static_cast<int>(part_of("name " + std::to_string(i)))];
  EXPECT_NEAR(counts[0], 8000, 150);
  EXPECT_NEAR(counts[1], 1000, 100);
  EXPECT_NEAR(counts[2], 1000, 100);
}

}  // namespace
}  // namespace tapeformer
