#include "data/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/log.h"
#include "data/unicode.h"

namespace tapeformer {
namespace {

class CsvParser {
 public:
  CsvParser(const std::string& file, std::string_view text) : file_(file), text_(text) {}
  bool done() const { return at_ >= text_.size(); }

  TableRow next() {
    TableRow row;
    row.line = line_;
    do row.fields.push_back(field(row));
    while (take(','));
    end_line();
    return row;
  }

 private:
  bool take(char c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool at_line_end() const {
    return done() || text_[at_] == '\n' || (text_[at_] == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] == '\n'));
  }
  void end_line() {
    take('\r');
    if (take('\n')) ++line_;
  }
  std::string field(TableRow& row) { return take('"') ? quoted(row) : plain(); }

  std::string plain() {
    const std::size_t start = at_;
    while (!at_line_end() && text_[at_] != ',') ++at_;
    return std::string(text_.substr(start, at_ - start));
  }
  std::string quoted(TableRow& row) {
    const i64 opened = line_;
    std::string out;
    while (true) {
      if (done()) throw DataError(fmt::format("{}:{}: a quote is opened and never closed", file_, opened));
      const char c = text_[at_++];
      if (c == '\n') ++line_;
      if (c != '"')
        out += c;
      else if (take('"'))
        out += '"';
      else
        break;
    }
    if (!at_line_end() && text_[at_] != ',') {
      row.problem = "text follows a closing quote (an inner quote must be doubled)";
      out += plain();
    }
    return out;
  }

  const std::string& file_;
  std::string_view text_;
  std::size_t at_ = 0;
  i64 line_ = 1;
};

// Lines without their end, CR LF or LF.
template <class F>
void each_line(std::string_view text, F&& f) {
  i64 line = 1;
  for (std::size_t at = 0; at < text.size(); ++line) {
    std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view content = text.substr(at, end - at);
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    f(line, content);
    at = end + 1;
  }
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(separator, at);
    out.emplace_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return out;
    at = end + 1;
  }
}

bool is_empty_line(const TableRow& row) { return row.fields.size() == 1 && row.fields[0].empty(); }

void check_utf8(TableRow& row) {
  for (const std::string& f : row.fields) {
    const std::size_t at = first_invalid_utf8(f);
    if (at == kValid || !row.problem.empty()) continue;
    row.problem = fmt::format("not valid UTF-8: byte 0x{:02x} at position {} of a field", static_cast<unsigned char>(f[at]), at);
  }
}

void check_width(TableRow& row, std::size_t columns) {
  if (row.problem.empty() && row.fields.size() != columns)
    row.problem = fmt::format("got {} fields, expected {} as in the header", row.fields.size(), columns);
}

void take_header(Table& table, TableRow row) {
  check_utf8(row);
  if (!row.problem.empty()) throw DataError(fmt::format("{}:{}: header: {}", table.file, row.line, row.problem));
  table.columns = std::move(row.fields);
  for (auto c = table.columns.begin(); c != table.columns.end(); ++c)
    if (std::find(table.columns.begin(), c, *c) != c)
      throw DataError(fmt::format("{}:{}: the header has the column '{}' twice", table.file, row.line, *c));
}

void add_row(Table& table, TableRow row, bool header) {
  if (is_empty_line(row)) return;
  if (table.columns.empty()) {
    if (header) return take_header(table, std::move(row));
    for (std::size_t c = 1; c <= row.fields.size(); ++c) table.columns.push_back(std::to_string(c));
  }
  check_width(row, table.columns.size());
  check_utf8(row);
  table.rows.push_back(std::move(row));
}

std::string json_field(const nlohmann::json& object, const std::string& name, TableRow& row) {
  const auto it = object.find(name);
  if (it == object.end()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    row.problem = fmt::format("no key '{}', the object has: {}{}", name, join(keys), did_you_mean(name, keys));
    return "";
  }
  if (it->is_string()) return it->get<std::string>();
  if (it->is_primitive() && !it->is_null()) return it->dump();
  row.problem = fmt::format("'{}' is {}, expected text or a number", name, it->type_name());
  return "";
}

TableRow json_row(i64 line, std::string_view content, const std::vector<std::string>& wanted) {
  TableRow row;
  row.line = line;
  if (const std::size_t at = first_invalid_utf8(content); at != kValid) {
    row.problem = fmt::format("not valid UTF-8: byte 0x{:02x} at position {}", static_cast<unsigned char>(content[at]), at);
    return row;
  }
  const nlohmann::json object = nlohmann::json::parse(content, nullptr, false);
  if (!object.is_object()) {
    row.problem = "is not a JSON object";
    return row;
  }
  for (const std::string& name : wanted) row.fields.push_back(json_field(object, name, row));
  return row;
}

}  // namespace

std::size_t Table::column(const std::string& name) const {
  const auto it = std::find(columns.begin(), columns.end(), name);
  if (it == columns.end())
    throw DataError(fmt::format("{}:1: no column '{}', the header has: {}{}", file, name, join(columns), did_you_mean(name, columns)));
  return static_cast<std::size_t>(it - columns.begin());
}

std::string Table::place(const TableRow& row) const { return fmt::format("{}:{}", file, row.line); }

TableFormat table_format(const std::string& file, const std::string& format) {
  std::string ending = std::filesystem::path(file).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (format == "csv" || (format == "auto" && ending == ".csv")) return TableFormat::Csv;
  if (format == "tsv" || (format == "auto" && (ending == ".tsv" || ending == ".tab"))) return TableFormat::Tsv;
  if (format == "jsonl" || (format == "auto" && (ending == ".jsonl" || ending == ".ndjson"))) return TableFormat::Jsonl;
  throw DataError(fmt::format("{}: the ending does not tell the format; expected .csv, .tsv or .jsonl, or set data.format", file));
}

std::string read_text_file(const std::string& file) {
  if (!std::filesystem::exists(file)) throw IoError(file + ": no such file");
  std::ifstream in(file, std::ios::binary);
  std::stringstream buffer;
  buffer << in.rdbuf();
  if (!in || std::filesystem::is_directory(file)) {
    if (!std::filesystem::is_directory(file) && std::filesystem::file_size(file) == 0) return "";
    throw IoError(file + ": cannot be read");
  }
  std::string text = std::move(buffer).str();
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    throw DataError(file + ":1: is UTF-16, expected UTF-8 (iconv -f UTF-16 -t UTF-8 converts it)");
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.erase(0, 3);
    log::info(file + ": the byte order mark at its start is left out");
  }
  if (const std::size_t end = text.find('\n'); end != std::string::npos && end > 0 && text[end - 1] == '\r')
    log::info(file + ": lines end with CR LF, read as line ends");
  return text;
}

Table read_table(const std::string& file, TableFormat format, const std::vector<std::string>& wanted, bool header) {
  const std::string text = read_text_file(file);
  Table table;
  table.file = file;
  if (is_blank(text)) throw DataError(file + ":1: the file is empty");
  if (format == TableFormat::Jsonl) {
    table.columns = wanted;
    each_line(text, [&](i64 line, std::string_view content) {
      if (!is_blank(content)) table.rows.push_back(json_row(line, content, wanted));
    });
  } else if (format == TableFormat::Tsv) {
    each_line(text, [&](i64 line, std::string_view content) { add_row(table, {line, split(content, '\t'), ""}, header); });
  } else {
    for (CsvParser parser(table.file, text); !parser.done();) add_row(table, parser.next(), header);
  }
  if (table.rows.empty()) throw DataError(file + ":1: there is a header and no row below it");
  return table;
}

}  // namespace tapeformer
