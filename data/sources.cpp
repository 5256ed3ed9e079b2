#include "data/sources.h"

#include <algorithm>

namespace tapeformer {
namespace {

std::vector<std::string> texts(const ConfigNode& node, const char* expected) {
  std::vector<std::string> out;
  if (node.is_scalar()) out.push_back(node.text());
  for (const ConfigNode& item : node.items()) {
    if (!item.is_scalar()) detail::fail(item, "a list or section", expected);
    out.push_back(item.text());
  }
  if (out.empty() || out[0].empty()) detail::fail(node, node.is_map() ? "a section" : "nothing", expected);
  return out;
}

std::vector<std::pair<std::string, RowFilter::Values>> conditions(const ConfigNode& node) {
  std::vector<std::pair<std::string, RowFilter::Values>> out;
  if (!node || node.is_null()) return out;
  if (!node.is_map()) detail::fail(node, detail::shown(node), "column: value, or column: [value, value]");
  for (const auto& [column, values] : node.entries()) out.emplace_back(column, texts(values, "a value or a list of values"));
  return out;
}

struct SourceSection {
  ConfigNode files, where, exclude;
};
template <class V>
void visit_fields(V& v, SourceSection& s) {
  v("files", s.files, "a file or a list of files");
  v("where", s.where, "keep only rows with column: value (or one of a list)");
  v("exclude", s.exclude, "leave out rows with column: value (or one of a list)");
}

bool holds(const Table& table, const TableRow& row, const std::pair<std::string, RowFilter::Values>& condition) {
  const std::string& value = row.fields[table.column(condition.first)];
  return std::find(condition.second.begin(), condition.second.end(), value) != condition.second.end();
}

}  // namespace

bool keeps(const RowFilter& filter, const Table& table, const TableRow& row) {
  if (!row.problem.empty()) return true;
  const auto held = [&](const auto& condition) { return holds(table, row, condition); };
  return std::all_of(filter.where.begin(), filter.where.end(), held) && std::none_of(filter.exclude.begin(), filter.exclude.end(), held);
}

PartSource read_source(const ConfigNode& node) {
  PartSource source;
  if (!node.is_map()) {
    source.files = texts(node, "a file or a list of files");
    return source;
  }
  const SourceSection section = read_config<SourceSection>(node);
  if (!section.files) detail::fail(node, "no key 'files'", "a file or a list of files under it");
  source.files = texts(section.files, "a file or a list of files");
  source.filter = {conditions(section.where), conditions(section.exclude)};
  return source;
}

std::vector<Table> read_tables(const PartSource& source, const std::string& format, const std::vector<std::string>& columns, bool header) {
  std::vector<std::string> wanted = columns;
  for (const auto* list : {&source.filter.where, &source.filter.exclude})
    for (const auto& [column, values] : *list) wanted.push_back(column);
  std::vector<Table> tables;
  std::size_t rows = 0;
  for (const std::string& file : source.files) {
    Table table = read_table(file, table_format(file, format), wanted, header);
    for (const std::string& name : wanted) table.column(name);
    std::erase_if(table.rows, [&](const TableRow& row) { return !keeps(source.filter, table, row); });
    rows += table.rows.size();
    tables.push_back(std::move(table));
  }
  if (rows == 0) throw DataError(source.name() + ": no row is left by `where` and `exclude`");
  return tables;
}

}  // namespace tapeformer
