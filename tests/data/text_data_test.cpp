#include "core/hdf5_file.h"
#include "data/dataset.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

struct TextData : ::testing::Test {
  TempDir dir;
  ConfigNode section(const std::string& train, const std::string& more = "") {
    return ConfigNode::parse("type: text\ntrain: " + dir.write("train.csv", train) + "\n" + more, "run.yaml");
  }
  std::string error(const std::string& train, const std::string& more = "") {
    return message_of([&] { load_data(section(train, more)); });
  }
};

const std::string kTrain = "label,text\nneg,bad bad film\npos,good good film\n";

TEST_F(TextData, LoadsAndCollates) {
  const DataSet set = load_data(section(kTrain, "tokenizer: {type: word, min_count: 1}\nadd_cls: true"));
  const DataInfo& info = set.preprocessor->info();
  EXPECT_EQ(info.labels, (std::vector<std::string>{"neg", "pos"}));
  EXPECT_EQ(info.vocab, 6);
  EXPECT_EQ(set.train->size(), 2);
  EXPECT_EQ(set.train->get(1, {}).tokens, (std::vector<i64>{2, 5, 5, 4}));  // bad and film and good occur twice
  EXPECT_EQ(set.train->get(1, {}).label, 1);
  EXPECT_EQ(set.train->describe(1), (dir / "train.csv") + ":3");
  EXPECT_EQ(set.valid, nullptr);
  EXPECT_EQ(set.preprocessor->sample_of_line("film good").tokens, (std::vector<i64>{2, 4, 5}));
  EXPECT_TRUE(set.preprocessor->reads_lines());
  EXPECT_TRUE(contains(message_of([&] { set.preprocessor->sample_of_line("  "); }), "the text is empty"));
  EXPECT_TRUE(contains(message_of([&] { set.preprocessor->sample_of_file("x"); }), "expected a line and not a file"));
}

TEST_F(TextData, TruncationKeepsTheHead) {
  const DataSet set = load_data(section(kTrain, "tokenizer: {type: word, min_count: 1}\nmax_length: 2"));
  EXPECT_EQ(set.train->get(0, {}).tokens, (std::vector<i64>{3, 3}));
  EXPECT_EQ(set.train->length(0), 2);
  EXPECT_EQ(set.preprocessor->sample_of_line("film good bad").tokens.size(), 2u);
}

TEST_F(TextData, NumbersAsLabelsAreInNumericOrder) {
  const DataSet set = load_data(section("label,text\n10,a\n9,b\n2,c\n"));
  EXPECT_EQ(set.preprocessor->info().labels, (std::vector<std::string>{"2", "9", "10"}));
}

TEST_F(TextData, ProblemsAreReportedTogether) {
  const std::string bad = "label,text\nneg,a\npos,\nneg,\xFF\npos,b,c\n,d\npos,\"  \"\npos,e\n";
  const std::string message = error(bad);
  EXPECT_TRUE(contains(message, "5 of 7 rows cannot be used (data.on_empty: skip and data.on_error: skip leaves them out)"));
  EXPECT_TRUE(contains(message, "train.csv:3: the text (column 'text') is empty"));
  EXPECT_TRUE(contains(message, "train.csv:4: not valid UTF-8"));
  EXPECT_TRUE(contains(message, "train.csv:5: got 3 fields, expected 2"));
  EXPECT_TRUE(contains(message, "train.csv:6: the label (column 'label') is empty"));
  EXPECT_TRUE(contains(error(bad, "on_error: skip"), "2 of 7 rows cannot be used (data.on_empty: skip leaves them out)"));
  EXPECT_EQ(load_data(section(bad, "on_error: skip\non_empty: skip")).train->size(), 2);
}

TEST_F(TextData, UnknownLabels) {
  const std::string valid = "valid: " + dir.write("valid.csv", "label,text\npso,x\npos,y\n");
  const std::string message = error(kTrain, valid);
  EXPECT_TRUE(contains(message, "valid.csv:2: label 'pso' does not occur in the training part, which has: neg, pos (did you mean 'pos'?)"));
  EXPECT_EQ(load_data(section(kTrain, valid + "\non_unknown_label: skip")).valid->size(), 1);
}

TEST_F(TextData, ConfigMistakes) {
  EXPECT_TRUE(contains(error(kTrain, "max_lenght: 3"), "run.yaml:3: max_lenght: unknown key"));
  EXPECT_TRUE(contains(error(kTrain, "max_lenght: 3"), "(did you mean 'max_length'?)"));
  EXPECT_TRUE(
      contains(error(kTrain, "columns: {text: txt}"), "train.csv:1: no column 'txt', the header has: label, text (did you mean 'text'?)"));
  EXPECT_TRUE(contains(error("label,text\na,x\na,\nb,\n"), "train.csv:3"));  // the bad row, not the label count that it led to
  EXPECT_TRUE(contains(error("label,text\na,x\na,y\n"), "got 1 different label ('a'), expected two or more"));
  EXPECT_TRUE(contains(message_of([] { load_data(ConfigNode::parse("type: txet", "run.yaml")); }),
                       "run.yaml:1: type: got 'txet', expected one of: audio, features, graph, image, text (did you mean 'text'?)"));
  EXPECT_TRUE(contains(message_of([] { load_data(ConfigNode::parse("type: text", "run.yaml")); }), "no key 'train'"));
  EXPECT_TRUE(contains(message_of([] { load_data(ConfigNode::parse("max_length: 3", "run.yaml")); }), "no key 'type'"));
  EXPECT_TRUE(contains(error(kTrain, "tokenizer: {type: byte, vocab: 9}"), "a byte tokenizer has a fixed vocabulary"));
}

TEST_F(TextData, ResolvedConfigReadsBack) {
  const ConfigNode data = section(kTrain, "tokenizer: {type: bpe}");
  const ConfigNode resolved = resolve_data_config(data);
  EXPECT_EQ(resolved["max_length"].text(), "512");
  EXPECT_EQ(resolve_data_config(ConfigNode::parse(resolved.yaml(), "y")).json(), resolved.json());
  EXPECT_TRUE(contains(explain_data_config("text"), "tokenizer.type"));
  EXPECT_TRUE(contains(explain_data_config("text"), "file, list of files, or {files, where, exclude}"));
}

TEST_F(TextData, SavedPreprocessorReadsRawText) {
  const ConfigNode data = section(kTrain, "tokenizer: {type: word, min_count: 1}\nadd_cls: true");
  const DataSet set = load_data(data);
  {
    Hdf5File file = Hdf5File::create(dir / "p.h5");
    set.preprocessor->save(file, "/data");
    file.close();
  }
  const auto loaded = load_preprocessor(Hdf5File::open(dir / "p.h5"), "/data");
  EXPECT_EQ(loaded->info().labels, set.preprocessor->info().labels);
  EXPECT_EQ(loaded->sample_of_line("good film zzz").tokens, set.preprocessor->sample_of_line("good film zzz").tokens);
  const std::string test = dir.write("test.csv", "label,text\npos,good\n");
  EXPECT_EQ(loaded->dataset(test, Part::Test)->get(0, {}).label, 1);
  const DataSet again = load_data(ConfigNode::parse("type: text\ntest: " + test, "eval.yaml"), loaded);
  EXPECT_EQ(again.test->size(), 1);
  EXPECT_EQ(again.train, nullptr);
  EXPECT_TRUE(contains(message_of([&] { load_data(ConfigNode::parse("type: text\nmax_length: 9", "eval.yaml"), loaded); }),
                       "eval.yaml:2: max_length: got 9, but the data was prepared with 512"));
}

TEST_F(TextData, Pairs) {
  const std::string rows = "a\tb\tc\n1\tgood film\tbad film bad\n0\tbad\tgood\n";
  const std::string file = dir.write("p.tsv", rows), columns = "\ncolumns: {label: a, text: b, text2: c}\n";
  const std::string more = "type: text\ntokenizer: {type: word, min_count: 1}\nmax_length: 2\ntrain: ";
  const DataSet set = load_data(ConfigNode::parse(more + file + columns, "y"));
  const DataInfo& info = set.preprocessor->info();
  EXPECT_TRUE(info.pair);
  EXPECT_EQ(info.vocab, 3 + 3);  // words of both texts
  EXPECT_EQ(set.train->length(1), 1);
  const Sample s = set.train->get(0, {});
  EXPECT_EQ(s.second->tokens, (std::vector<i64>{3, 4}));  // cut to two
  const Batch batch = collate({s, set.train->get(1, {})}, {0, 1}, info);
  EXPECT_EQ(batch.second->tokens.to_vector(), (std::vector<double>{3, 4, 5, 0}));
  EXPECT_EQ(batch.second->mask.to_vector(), (std::vector<double>{1, 1, 1, 0}));
  EXPECT_EQ(batch.real_tokens(), 6);
  const Sample line = set.preprocessor->sample_of_line("bad\tgood film");
  EXPECT_EQ(line.tokens, (std::vector<i64>{3}));
  EXPECT_EQ(line.second->tokens, (std::vector<i64>{5, 4}));
  EXPECT_TRUE(contains(message_of([&] { set.preprocessor->sample_of_line("bad"); }), "got one text, expected two with a tab between them"));
  const std::string empty = dir.write("e.tsv", rows + "1\tx\t \n");
  EXPECT_TRUE(contains(message_of([&] { load_data(ConfigNode::parse(more + empty + columns, "y")); }),
                       "e.tsv:4: the second text (column 'c') is empty"));
}

// As the retrieval task of Long Range Arena has it: label, two ids, two texts.
TEST_F(TextData, NoHeader) {
  const std::string file = dir.write("p.tsv", "1.0\tid1\tid2\tgood film\tbad film\n0.0\tid3\tid4\tbad\tgood\n");
  const std::string more = "type: text\nheader: false\ntokenizer: {type: byte}\ntrain: " + file;
  const DataSet set = load_data(ConfigNode::parse(more + "\ncolumns: {label: '1', text: '4', text2: '5'}\n", "y"));
  EXPECT_EQ(set.train->size(), 2);
  EXPECT_EQ(set.preprocessor->info().labels, (std::vector<std::string>{"0.0", "1.0"}));
  EXPECT_EQ(set.train->get(0, {}).second->length(), 8);
  EXPECT_TRUE(contains(message_of([&] { load_data(ConfigNode::parse(more + "\ncolumns: {label: '1', text: '6'}\n", "y")); }),
                       "no column '6', the header has: 1, 2, 3, 4, 5"));
}

TEST_F(TextData, LongBytes) {
  const std::string text(5000, 'x');
  const DataSet set = load_data(section("label,text\na," + text + "\nb,\"\xC3\xA9\"\n", "tokenizer: {type: byte}\nmax_length: 4096"));
  EXPECT_EQ(set.train->length(0), 4096);
  EXPECT_EQ(set.train->get(1, {}).tokens, (std::vector<i64>{0xC3 + 3, 0xA9 + 3}));
}

TEST_F(TextData, OtherFormatsAndLists) {
  const std::string tsv = dir.write("a.tsv", "sentence\tclass\none \"two\tx\n"), more = dir.write("b.tsv", "class\tsentence\ny\tthree\n");
  const DataSet set =
      load_data(ConfigNode::parse("type: text\ntrain: [" + tsv + ", " + more + "]\ncolumns: {text: sentence, label: class}", "y"));
  EXPECT_EQ(set.train->size(), 2);
  EXPECT_EQ(set.train->get(1, {}).label, 1);
  EXPECT_EQ(set.train->describe(1), more + ":2");
  const std::string jsonl = dir.write("c.jsonl", "{\"text\": \"a\", \"label\": true}\n{\"text\": \"b\", \"label\": false}\n");
  EXPECT_EQ(load_data(ConfigNode::parse("type: text\ntrain: " + jsonl, "y")).preprocessor->info().labels,
            (std::vector<std::string>{"false", "true"}));
}

}  // namespace
}  // namespace tapeformer
