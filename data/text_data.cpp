// text_data.cpp: labelled texts in CSV, TSV or JSONL files, as token ids.
#include <algorithm>

#include "core/log.h"
#include "core/parallel.h"
#include "data/data_type.h"
#include "data/hdf5_text.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

namespace tapeformer {
namespace {

struct TextColumns {
  std::string text = "text", text2, label = "label", id;
};
template <class V>
void visit_fields(V& v, TextColumns& c) {
  v("text", c.text, "column of the text");
  v("text2", c.text2, "column of the second text, for models of pairs (matching); empty = none");
  v("label", c.label, "column of the label");
  v("id", c.id, "column of a name for each row, shown in messages; empty = none");
}

struct TextSettings {
  ConfigNode train, valid, test;
  std::string format = "auto";
  bool header = true;
  TextColumns columns;
  TokenizerConfig tokenizer;
  i64 max_length = 512;
  bool add_cls = false;
  Policies policies;
};
template <class V>
void visit_fields(V& v, TextSettings& s) {
  v("train", s.train, "training texts; labels and tokenizer are fitted on them");
  v("valid", s.valid, "texts to choose by while training");
  v("test", s.test, "texts to report on");
  v("format", s.format, OneOf{"auto", "csv", "tsv", "jsonl"}, "auto: by the file's ending");
  v("header", s.header, "csv, tsv: the first line names the columns; false: there is none, columns are 1, 2, ...");
  v("columns", s.columns, "which column, or JSON key, holds what");
  v("tokenizer", s.tokenizer, "how text becomes ids");
  v("max_length", s.max_length, at_least(1), "most tokens of a text, [CLS] included; longer ones keep their beginning");
  v("add_cls", s.add_cls, "put the token [CLS] in front of every text");
  visit_fields(v, s.policies);
}

TextSettings read_settings(const ConfigNode& data) {
  TextSettings s = read_config<TextSettings>(data, {}, {"type"});
  validate(s.tokenizer, data["tokenizer"]);
  if (s.columns.text == s.columns.label || s.columns.text2 == s.columns.label)
    throw ConfigError(fmt::format("{}: text and label are both the column '{}'", data["columns"].place(), s.columns.label));
  return s;
}

ConfigNode write_settings(const TextSettings& s) {
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("text"));
  const ConfigNode fields = write_config(s);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  return out;
}

struct LabelledText {
  std::string text, text2, label, place;
};

std::shared_ptr<const Sample> second_of(std::vector<i64> tokens) {
  Sample s;
  s.tokens = std::move(tokens);
  return std::make_shared<const Sample>(std::move(s));
}

class TextDataset final : public Dataset {
 public:
  struct Row {
    std::vector<std::int32_t> tokens, second;
    i64 label;
    std::string place;
  };
  TextDataset(std::vector<Row> rows, bool pairs) : rows_(std::move(rows)), pairs_(pairs) {}
  i64 size() const override { return static_cast<i64>(rows_.size()); }
  i64 length(i64 i) const override { return static_cast<i64>(std::max(row(i).tokens.size(), row(i).second.size())); }
  Sample get(i64 i, std::optional<RngKey>) const override {
    Sample s;
    s.tokens.assign(row(i).tokens.begin(), row(i).tokens.end());
    s.label = row(i).label;
    if (pairs_) s.second = second_of({row(i).second.begin(), row(i).second.end()});
    return s;
  }
  std::string describe(i64 i) const override { return row(i).place; }

 private:
  const Row& row(i64 i) const { return rows_.at(static_cast<std::size_t>(i)); }
  std::vector<Row> rows_;
  bool pairs_;
};

// The usable rows of a part; the others go to `problems`.
std::vector<LabelledText> read_rows(const PartSource& source, const TextSettings& s, Problems& problems, std::size_t& total) {
  std::vector<std::string> wanted{s.columns.text, s.columns.label};
  for (const std::string& column : {s.columns.text2, s.columns.id})
    if (!column.empty()) wanted.push_back(column);
  const bool pairs = !s.columns.text2.empty();
  std::vector<LabelledText> rows;
  for (Table& table : read_tables(source, s.format, wanted, s.header)) {
    const std::size_t text = table.column(s.columns.text), label = table.column(s.columns.label);
    const std::size_t text2 = pairs ? table.column(s.columns.text2) : text;
    total += table.rows.size();
    for (TableRow& row : table.rows) {
      std::string place = table.place(row);
      if (!row.problem.empty()) {
        problems.add(Fault::Bad, place + ": " + row.problem);
        continue;
      }
      if (!s.columns.id.empty()) place += fmt::format(" ({})", row.fields[table.column(s.columns.id)]);
      if (row.fields[label].empty())
        problems.add(Fault::Bad, fmt::format("{}: the label (column '{}') is empty", place, s.columns.label));
      else if (is_blank(row.fields[text]))
        problems.add(Fault::Empty, fmt::format("{}: the text (column '{}') is empty", place, s.columns.text));
      else if (is_blank(row.fields[text2]))
        problems.add(Fault::Empty, fmt::format("{}: the second text (column '{}') is empty", place, s.columns.text2));
      else
        rows.push_back({row.fields[text], pairs ? row.fields[text2] : "", row.fields[label], std::move(place)});
    }
  }
  return rows;
}

class TextPreprocessor final : public Preprocessor {
 public:
  TextPreprocessor(TextSettings s, std::unique_ptr<Tokenizer> tokenizer, std::vector<std::string> labels)
      : settings_(std::move(s)), tokenizer_(std::move(tokenizer)) {
    info_.vocab = tokenizer_->vocab();
    info_.max_length = settings_.max_length;
    info_.pair = !settings_.columns.text2.empty();
    info_.labels = std::move(labels);
  }

  const DataInfo& info() const override { return info_; }
  ConfigNode settings() const override { return write_settings(settings_); }
  const Policies& policies() const override { return settings_.policies; }
  bool reads_lines() const override { return true; }

  void save(Hdf5File& file, const std::string& group) const override {
    write_text(file, group + "/settings", settings().json());
    write_texts(file, group + "/labels", info_.labels);
    tokenizer_->save(file, group + "/tokenizer");
  }

  using Preprocessor::dataset;
  std::unique_ptr<Dataset> dataset(const PartSource& source, const Policies& policies, Part) const override {
    Problems problems(source.name(), policies);
    std::size_t total = 0;
    const std::vector<LabelledText> rows = read_rows(source, settings_, problems, total);
    return dataset_of(rows, source.name(), problems, total);
  }

  std::unique_ptr<Dataset> dataset_of(const std::vector<LabelledText>& texts, const std::string& name, Problems& problems,
                                      std::size_t total) const {
    std::vector<TextDataset::Row> rows(texts.size());
    parallel_for(static_cast<i64>(texts.size()), 256, [&](i64 begin, i64 end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const std::vector<i64> ids = encode(texts[i].text), second = info_.pair ? encode(texts[i].text2) : std::vector<i64>();
        rows[i] = {{ids.begin(), ids.end()}, {second.begin(), second.end()}, label_index(info_.labels, texts[i].label), texts[i].place};
      }
    });
    drop_unusable(rows, texts, problems);
    problems.report(total);
    if (rows.empty()) throw DataError(name + ": no row can be used");
    report_truncated(rows, name);
    return std::make_unique<TextDataset>(std::move(rows), info_.pair);
  }

  Sample sample_of_line(const std::string& line) const override {
    if (const std::size_t at = first_invalid_utf8(line); at != kValid) throw DataError(fmt::format("not valid UTF-8 at byte {}", at));
    Sample s;
    if (!info_.pair) {
      s.tokens = tokens_of(line);
      return s;
    }
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) throw DataError("got one text, expected two with a tab between them");
    s.tokens = tokens_of(line.substr(0, tab));
    s.second = second_of(tokens_of(line.substr(tab + 1)));
    return s;
  }
  Sample sample_of_file(const std::string& path) const override {
    throw DataError(path + ": text is read line by line, expected a line and not a file");
  }

 private:
  std::vector<i64> encode(const std::string& text) const {
    std::vector<i64> ids = tokenizer_->encode(text);
    if (settings_.add_cls) ids.insert(ids.begin(), kClsToken);
    return ids;
  }
  std::vector<i64> tokens_of(const std::string& text) const {  // of a text to predict
    std::vector<i64> ids = encode(text);
    if (is_blank(text) || has_no_content(ids.size())) throw DataError("the text is empty");
    if (too_long(ids.size())) ids.resize(static_cast<std::size_t>(settings_.max_length));
    return ids;
  }
  bool has_no_content(std::size_t tokens) const { return tokens == (settings_.add_cls ? 1u : 0u); }
  bool too_long(std::size_t tokens) const { return static_cast<i64>(tokens) > settings_.max_length; }

  void drop_unusable(std::vector<TextDataset::Row>& rows, const std::vector<LabelledText>& texts, Problems& problems) const {
    std::size_t to = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].label < 0)
        problems.add(Fault::UnknownLabel, rows[i].place + ": " + unknown_label(info_.labels, texts[i].label));
      else if (has_no_content(rows[i].tokens.size()) || (info_.pair && has_no_content(rows[i].second.size())))
        problems.add(Fault::Empty, rows[i].place + ": the text has no token");
      else if (to++ != i)
        rows[to - 1] = std::move(rows[i]);
    }
    rows.resize(to);
  }

  void report_truncated(std::vector<TextDataset::Row>& rows, const std::string& name) const {
    std::size_t truncated = 0, longest = 0, count = 0;
    for (TextDataset::Row& row : rows)
      for (std::vector<std::int32_t>* tokens : {&row.tokens, &row.second}) {
        count += !tokens->empty();
        longest = std::max(longest, tokens->size());
        if (!too_long(tokens->size())) continue;
        tokens->resize(static_cast<std::size_t>(settings_.max_length));
        tokens->shrink_to_fit();
        ++truncated;
      }
    if (truncated > 0)
      log::info(fmt::format("{}: cut {} of {} texts to data.max_length = {} tokens (the longest has {})", name, truncated, count,
                            settings_.max_length, longest));
  }

  TextSettings settings_;
  std::unique_ptr<Tokenizer> tokenizer_;
  DataInfo info_;
};

Fitted fit(const ConfigNode& data) {
  const TextSettings s = read_settings(data);
  const PartSource source = read_source(s.train);
  Problems problems(source.name(), s.policies);
  std::size_t total = 0;
  const std::vector<LabelledText> rows = read_rows(source, s, problems, total);
  std::vector<std::string> texts, labels;
  for (const LabelledText& row : rows) {
    texts.push_back(row.text);
    if (!row.text2.empty()) texts.push_back(row.text2);
    labels.push_back(row.label);
  }
  labels = ordered_labels(std::move(labels));
  if (rows.empty() || labels.size() < 2) problems.report(total);  // a bad row may be why
  check_class_count(labels, source.name());
  auto preprocessor = std::make_shared<TextPreprocessor>(s, train_tokenizer(s.tokenizer, texts), std::move(labels));
  auto train = preprocessor->dataset_of(rows, source.name(), problems, total);
  return {std::move(preprocessor), std::move(train)};
}

std::shared_ptr<Preprocessor> load(const ConfigNode& saved, const Hdf5File& file, const std::string& group) {
  return std::make_shared<TextPreprocessor>(read_settings(saved), load_tokenizer(file, group + "/tokenizer"),
                                            read_texts(file, group + "/labels"));
}

const bool kRegistered = data_type_registry().add("text", {[](const ConfigNode& data) { return write_settings(read_settings(data)); },
                                                           [] { return explain_config<TextSettings>(); }, fit, load});

}  // namespace
}  // namespace tapeformer
