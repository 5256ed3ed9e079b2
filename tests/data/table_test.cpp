#include "data/table.h"

#include "data/sources.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

using Fields = std::vector<std::string>;

Table csv(const TempDir& dir, const std::string& content) { return read_table(dir.write("t.csv", content), TableFormat::Csv, {}); }
std::string csv_error(const TempDir& dir, const std::string& content) {
  return message_of([&] { csv(dir, content); });
}

TEST(Table, CsvQuotesCommasLineBreaks) {
  TempDir dir;
  const Table t = csv(dir, "label,text\r\npos,\"a, \"\"b\"\"\r\nc\"\r\n\r\nneg,plain\r\n");
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.columns, (Fields{"label", "text"}));
  EXPECT_EQ(t.rows[0].fields, (Fields{"pos", "a, \"b\"\r\nc"}));
  EXPECT_EQ(t.rows[0].line, 2);
  EXPECT_EQ(t.rows[1].fields, (Fields{"neg", "plain"}));
  EXPECT_EQ(t.rows[1].line, 5);
  EXPECT_EQ(t.column("text"), 1u);
}

TEST(Table, LastLineWithoutEndAndByteOrderMark) {
  TempDir dir;
  const Table t = csv(dir, "\xEF\xBB\xBFlabel,text\na,\"\"\nb,c");
  EXPECT_EQ(t.columns[0], "label");
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.rows[0].fields[1], "");
  EXPECT_EQ(t.rows[1].fields[1], "c");
}

TEST(Table, TsvTakesQuotesLiterally) {
  TempDir dir;
  const Table t = read_table(dir.write("t.tsv", "a\tb\r\n\"x\ty,z\r\n"), TableFormat::Tsv, {});
  EXPECT_EQ(t.rows.at(0).fields, (Fields{"\"x", "y,z"}));
}

TEST(Table, JsonLines) {
  TempDir dir;
  const std::string file = dir.write("t.jsonl",
                                     "{\"text\": \"a\\nb\", \"label\": 3, \"more\": []}\n\n{\"txet\": \"c\", "
                                     "\"label\": \"x\"}\nnot json\n{\"text\": null, \"label\": 1}\n");
  const Table t = read_table(file, TableFormat::Jsonl, {"text", "label"});
  ASSERT_EQ(t.rows.size(), 4u);
  EXPECT_EQ(t.rows[0].fields, (Fields{"a\nb", "3"}));
  EXPECT_EQ(t.rows[1].line, 3);
  EXPECT_TRUE(contains(t.rows[1].problem, "no key 'text'"));
  EXPECT_TRUE(contains(t.rows[1].problem, "did you mean 'txet'?"));
  EXPECT_EQ(t.rows[2].problem, "is not a JSON object");
  EXPECT_EQ(t.rows[3].problem, "'text' is null, expected text or a number");
}

TEST(Table, RowProblemsKeepTheirLine) {
  TempDir dir;
  const Table t = csv(dir, "label,text\na,b,c\nonly\nx,\xC3\x28\nx,\"y\"z\nfine,row\n");
  ASSERT_EQ(t.rows.size(), 5u);
  EXPECT_EQ(t.rows[0].problem, "got 3 fields, expected 2 as in the header");
  EXPECT_EQ(t.rows[1].problem, "got 1 fields, expected 2 as in the header");
  EXPECT_EQ(t.rows[2].problem, "not valid UTF-8: byte 0xc3 at position 0 of a field");
  EXPECT_TRUE(contains(t.rows[3].problem, "text follows a closing quote"));
  EXPECT_EQ(t.rows[4].problem, "");
  EXPECT_EQ(t.place(t.rows[2]), t.file + ":4");
}

TEST(Table, FilesThatCannotBeRead) {
  TempDir dir;
  EXPECT_TRUE(contains(csv_error(dir, ""), "t.csv:1: the file is empty"));
  EXPECT_TRUE(contains(csv_error(dir, " \n\n"), "t.csv:1: the file is empty"));
  EXPECT_TRUE(contains(csv_error(dir, "label,text\n"), "t.csv:1: there is a header and no row below it"));
  EXPECT_TRUE(contains(csv_error(dir, "a,b\n1,2\n3,\"4\n5,6\n"), "t.csv:3: a quote is opened and never closed"));
  EXPECT_TRUE(contains(csv_error(dir, "a,a\n1,2\n"), "t.csv:1: the header has the column 'a' twice"));
  EXPECT_TRUE(contains(csv_error(dir, std::string("\xFF\xFE"
                                                  "a\0b\0",
                                                  6)),
                       "t.csv:1: is UTF-16, expected UTF-8"));
  EXPECT_TRUE(contains(message_of([&] { read_table(dir / "none.csv", TableFormat::Csv, {}); }), "none.csv: no such file"));
  EXPECT_TRUE(contains(message_of([&] { read_table(dir.str(), TableFormat::Csv, {}); }), "cannot be read"));
  EXPECT_TRUE(contains(message_of([&] { csv(dir, "label,text\na,b\n").column("txt"); }),
                       "t.csv:1: no column 'txt', the header has: label, text (did you mean 'text'?)"));
  EXPECT_TRUE(contains(message_of([&] { table_format("x.dat", "auto"); }), "x.dat: the ending does not tell the format"));
}

TEST(Sources, FilesAndFilters) {
  TempDir dir;
  const std::string a = dir.write("a.tsv", "path\tspeaker\n1\tann\n2\tbob\n"), b = dir.write("b.tsv", "path\tspeaker\n3\tcid\n4\tann\n");
  const auto tables = [&](const std::string& yaml) {
    return read_tables(read_source(ConfigNode::parse("s: " + yaml, "y")["s"]), "auto", {"path"});
  };
  EXPECT_EQ(tables(a).at(0).rows.size(), 2u);
  EXPECT_EQ(tables("[" + a + ", " + b + "]").at(1).rows[0].fields[0], "3");
  const auto without = tables("{files: [" + a + ", " + b + "], exclude: {speaker: ann}}");
  EXPECT_EQ(without[0].rows.at(0).fields[0], "2");
  EXPECT_EQ(without[1].rows.size(), 1u);
  EXPECT_EQ(tables("{files: " + a + ", where: {speaker: [ann, cid]}}")[0].rows.size(), 1u);
  EXPECT_TRUE(
      contains(message_of([&] { tables("{files: " + a + ", where: {speaker: zoe}}"); }), "no row is left by `where` and `exclude`"));
  EXPECT_TRUE(contains(message_of([&] { tables("{files: " + a + ", where: {speaksr: ann}}"); }), "(did you mean 'speaker'?)"));
  EXPECT_TRUE(contains(message_of([&] { tables("{where: {speaker: ann}}"); }), "no key 'files'"));
  EXPECT_TRUE(contains(message_of([&] { tables("{files: " + a + ", were: {}}"); }), "unknown key"));
}

}  // namespace
}  // namespace tapeformer
