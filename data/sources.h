// sources.h: which files, and which of their rows, make up a part: `train: a.csv`, `train: [a.tsv, b.tsv]`, or
// `train: {files: [a.tsv, b.tsv], where: {speaker: [george, theo]}, exclude: {take: 3}}`.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "data/problems.h"
#include "data/table.h"

namespace tapeformer {

struct RowFilter {
  using Values = std::vector<std::string>;
  std::vector<std::pair<std::string, Values>> where,
      exclude;  // column, values; every `where` must hold, no `exclude` may
  bool empty() const { return where.empty() && exclude.empty(); }
};

struct PartSource {
  std::vector<std::string> files;
  RowFilter filter;
  std::string name() const { return join(files, " + "); }  // for messages
};

PartSource read_source(const ConfigNode&);                    // ConfigError
bool keeps(const RowFilter&, const Table&, const TableRow&);  // a row with a problem is kept; DataError for an unknown column
// Every file of the source, with the rows that the filter keeps. `columns` must exist in each.
std::vector<Table> read_tables(const PartSource&, const std::string& format, const std::vector<std::string>& columns, bool header = true);

}  // namespace tapeformer
