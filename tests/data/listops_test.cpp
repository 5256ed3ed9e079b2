#include "data/listops.h"

#include <set>

#include "data/dataset.h"
#include "data/table.h"
#include "data/tokenizer.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

ListopsSettings small() {
  return {.seed = 3, .samples = {400, 50, 100}, .min_length = 20, .max_length = 100, .max_depth = 5, .max_args = 5};
}

TEST(Listops, Values) {
  EXPECT_EQ(listops_value("[SM 1 2 3 ]"), 6);
  EXPECT_EQ(listops_value("[MAX 2 9 [MIN 4 7 ] 0 ]"), 9);
  EXPECT_EQ(listops_value("[MED 1 [SM 7 8 ] 9 [MIN 2 3 ] ]"), 3);
  EXPECT_EQ(listops_value("[SM [MED 5 6 ] [MAX 3 8 1 ] [SM 9 9 ] ]"), 1);
  EXPECT_EQ(listops_value("[MED 1 2 ]"), 1);
  EXPECT_EQ(listops_value("[MED 1 2 3 4 ]"), 2);
  EXPECT_EQ(listops_value("[MED 3 4 8 9 ]"), 6);
  EXPECT_EQ(listops_value("[MED 9 1 5 ]"), 5);
  EXPECT_EQ(listops_value("7"), 7);
}

TEST(Listops, WhatIsNoExpression) {
  const auto error = [](const char* text) { return message_of([&] { listops_value(text); }); };
  EXPECT_EQ(error("[MAX 2 9"), "token 4 of the expression: got its end, expected ]");
  EXPECT_EQ(error("[MAX ]"), "token 2 of the expression: got ']', expected an argument");
  EXPECT_EQ(error("[SUM 1 ]"), "token 1 of the expression: got '[SUM', expected a digit or an operator");
  EXPECT_EQ(error("1 2"), "token 2 of the expression: got '2', expected the end");
}

TEST(Listops, Parentheses) {
  EXPECT_EQ(listops_parentheses("[MAX 2 9 ]"), "( ( ( [MAX 2 ) 9 ) ] )");
  EXPECT_EQ(listops_parentheses("[SM 1 [MIN 2 3 ] ]"), "( ( ( [SM 1 ) ( ( ( [MIN 2 ) 3 ) ] ) ) ] )");
}

// Shares and lengths of the definition, on trees of any length.
TEST(Listops, TreesFollowTheDefinition) {
  i64 digits = 0, passed = 0;
  constexpr i64 kTrees = 4000;
  for (i64 i = 0; i < kTrees; ++i) {
    const std::string e = listops_expression(RngKey(1).fold_in(static_cast<std::uint64_t>(i)), 10, 10, 1000000);
    const i64 length = std::count(e.begin(), e.end(), ' ') + 1;
    digits += length == 1;
    passed += length > 500 && length < 2000;
    EXPECT_EQ(listops_expression(RngKey(1).fold_in(static_cast<std::uint64_t>(i)), 1, 10, 1000000).size(), 1u);
  }
  EXPECT_NEAR(static_cast<double>(digits) / kTrees, 0.75, 0.03);
  EXPECT_NEAR(static_cast<double>(passed) / kTrees, 0.082, 0.02);
}

TEST(Listops, ALimitLeavesOutWhatIsLongerAndChangesNothingElse) {
  i64 left_out = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const RngKey key = RngKey(1).fold_in(i);
    const std::string e = listops_expression(key, 10, 10, 1000000);
    const i64 length = std::count(e.begin(), e.end(), ' ') + 1;
    EXPECT_EQ(listops_expression(key, 10, 10, length), e);
    EXPECT_EQ(listops_expression(key, 10, 10, length - 1), "");
  }
  for (std::uint64_t i = 0; i < 100; ++i) left_out += listops_expression(RngKey(2).fold_in(i), 1000000, 10, 5000).empty();
  EXPECT_GT(left_out, 5) << "six arguments a node on average and a quarter of them nodes: many of these trees have no end";
}

TEST(Listops, FilesAreReproducibleDistinctAndRight) {
  const TempDir dir;
  const ListopsShortcuts a = generate_listops(dir / "a", small()), b = generate_listops(dir / "b", small());
  EXPECT_EQ(a.first_token, b.first_token);
  EXPECT_GE(a.first_token, a.majority);
  EXPECT_GT(a.majority, 0.1);
  std::set<std::string> seen;
  std::size_t rows = 0;
  for (const char* part : {"train.tsv", "valid.tsv", "test.tsv"}) {
    EXPECT_EQ(read_text_file(dir / ("a/" + std::string(part))), read_text_file(dir / ("b/" + std::string(part))));
    const Table t = read_table(dir / ("a/" + std::string(part)), TableFormat::Tsv, {});
    EXPECT_EQ(t.columns, (std::vector<std::string>{"Source", "Target"}));
    for (const TableRow& row : t.rows) {
      ++rows;
      EXPECT_TRUE(seen.insert(row.fields[0]).second);
      const i64 length = std::count(row.fields[0].begin(), row.fields[0].end(), ' ') + 1;
      EXPECT_GT(length, 20);
      EXPECT_LT(length, 100);
      EXPECT_EQ(std::to_string(listops_value(row.fields[0])), row.fields[1]);
    }
  }
  EXPECT_EQ(rows, 550u);
  ListopsSettings other = small();
  other.seed = 4;
  generate_listops(dir / "c", other);
  EXPECT_NE(read_text_file(dir / "a/test.tsv"), read_text_file(dir / "c/test.tsv"));
}

// The word tokenizer reads 15 tokens, and the same ones from a file with parentheses.
TEST(Listops, TextDataReadsBothForms) {
  const TempDir dir;
  ListopsSettings s = small();
  generate_listops(dir / "plain", s);
  s.parentheses = true;
  generate_listops(dir / "original", s);
  const auto load = [&](const std::string& folder) {
    return load_data(ConfigNode::parse("type: text\ntrain: " + (dir / folder) +
                                           "/train.tsv\ncolumns: {text: Source, label: Target}\n"
                                           "tokenizer: {type: word, split: blanks, drop: \"()\"}\nmax_length: 100\n",
                                       "y"));
  };
  const DataSet plain = load("plain"), original = load("original");
  EXPECT_EQ(plain.preprocessor->info().vocab, 15 + kSpecialTokens);
  EXPECT_EQ(plain.preprocessor->info().labels, (std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}));
  ASSERT_EQ(plain.train->size(), original.train->size());
  for (i64 i = 0; i < plain.train->size(); ++i) {
    EXPECT_EQ(plain.train->get(i, {}).tokens, original.train->get(i, {}).tokens);
    EXPECT_GT(plain.train->length(i), 20);
  }
}

TEST(Listops, SettingsThatCannotBeMet) {
  const TempDir dir;
  const auto error = [&](auto&& change) {
    ListopsSettings s = small();
    change(s);
    return message_of([&] { generate_listops(dir.str(), s); });
  };
  EXPECT_TRUE(contains(error([](auto& s) { s.max_length = 21; }), "max-length: got 21, expected at least 22"));
  EXPECT_TRUE(contains(error([](auto& s) { s.max_args = 1; }), "max-args: got 1, expected at least 2"));
  EXPECT_TRUE(contains(error([](auto& s) { s.samples[1] = 0; }), "samples: got 0, expected at least 1"));
  EXPECT_TRUE(contains(error([](auto& s) { s.max_depth = 2; }), "trees in a row gave no new expression of more than 20"));
}

}  // namespace
}  // namespace tapeformer
