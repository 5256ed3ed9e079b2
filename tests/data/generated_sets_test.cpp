#include "data/generated_sets.h"

#include <algorithm>

#include "data/audio_file.h"
#include "data/dataset.h"
#include "data/table.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

Table part(const TempDir& dir, const std::string& file) { return read_table(dir / file, table_format(file, "auto"), {}); }

TEST(GeneratedText, SameSeedSameFile) {
  const TempDir dir;
  generated_text(dir / "a", 3, 200);
  generated_text(dir / "b", 3, 200);
  generated_text(dir / "c", 4, 200);
  EXPECT_EQ(read_text_file(dir / "a/train.csv"), read_text_file(dir / "b/train.csv"));
  EXPECT_NE(read_text_file(dir / "a/train.csv"), read_text_file(dir / "c/train.csv"));
}

// The label is the colour before the animal that the sentence ends with.
TEST(GeneratedText, LabelAnswersTheSentence) {
  const TempDir dir;
  generated_text(dir.str(), 1, 500);
  std::size_t rows = 0;
  for (const char* file : {"train.csv", "valid.csv", "test.csv"}) {
    const Table t = part(dir, file);
    rows += t.rows.size();
    for (const TableRow& row : t.rows) {
      ASSERT_EQ(row.problem, "");
      const std::string &label = row.fields[t.column("label")], &text = row.fields[t.column("text")];
      const auto asked = text.find(". the ") + 6;
      const std::string animal = text.substr(asked, text.size() - 3 - asked);
      EXPECT_TRUE(contains(text, label + " " + animal));
    }
  }
  EXPECT_EQ(rows, 500u);
}

TEST(GeneratedSound, ClipsAreReadableAndLabelled) {
  const TempDir dir;
  generated_sound(dir.str(), 1, 20);
  const Table t = part(dir, "train.tsv");
  ASSERT_EQ(t.rows.size(), 16u);
  for (const TableRow& row : t.rows) {
    const i64 samples = audio_frames(dir / row.fields[t.column("path")]);
    EXPECT_GE(samples, 2400);
    EXPECT_LE(samples, 6400);
  }
  const std::string first = read_text_file(dir / "clips/00000.wav");
  generated_sound(dir / "again", 1, 20);
  EXPECT_EQ(read_text_file(dir / "again/clips/00000.wav"), first);
}

TEST(GeneratedSets, TooFewSamplesIsAnError) {
  const TempDir dir;
  EXPECT_EQ(message_of([&] { generated_text(dir.str(), 1, 9); }), "samples: got 9, expected at least 10");
}

}  // namespace
}  // namespace tapeformer
