#include "data/phone_labels.h"

#include <algorithm>
#include <sstream>

#include "data/table.h"

namespace tapeformer {

std::vector<PhoneSegment> read_phones(const std::string& path) {
  std::istringstream in(read_text_file(path));
  std::vector<PhoneSegment> out;
  std::string line;
  for (i64 number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::istringstream fields(line);
    PhoneSegment s{};
    std::string rest;
    if (!(fields >> s.start >> s.end >> s.phone) || fields >> rest)
      throw DataError(fmt::format("{}:{}: got '{}', expected a start sample, an end sample and a phone", path, number, line));
    if (s.start < 0 || s.end < s.start || (!out.empty() && s.start < out.back().end))
      throw DataError(fmt::format("{}:{}: the segment {} to {} runs backwards or overlaps the one before", path, number, s.start, s.end));
    out.push_back(std::move(s));
  }
  if (out.empty()) throw DataError(path + ":1: holds no segment");
  return out;
}

const std::string& phone_at(const std::vector<PhoneSegment>& segments, i64 sample, const std::string& silence) {
  const auto after = std::upper_bound(segments.begin(), segments.end(), sample, [](i64 s, const PhoneSegment& p) { return s < p.end; });
  return after == segments.end() || sample < after->start ? silence : after->phone;
}

std::map<std::string, std::string> read_folding(const FoldingSettings& s) {
  if (s.to.empty()) throw ConfigError("data.folding.to: got nothing, expected the column of " + s.file + " that holds the class");
  const Table table = read_table(s.file, table_format(s.file, "auto"), {s.from, s.to});
  const std::size_t from = table.column(s.from), to = table.column(s.to);
  std::map<std::string, std::string> out;
  for (const TableRow& row : table.rows) {
    if (!row.problem.empty()) throw DataError(table.place(row) + ": " + row.problem);
    if (!out.emplace(row.fields[from], row.fields[to]).second)
      throw DataError(fmt::format("{}: '{}' stands twice in column '{}'", table.place(row), row.fields[from], s.from));
  }
  return out;
}

}  // namespace tapeformer
