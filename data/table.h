// table.h: rows of named columns from CSV (RFC 4180), TSV (no quoting) and JSONL files, each row with its line number.
#pragma once
#include <string>
#include <vector>

#include "core/shape.h"

namespace tapeformer {

struct TableRow {
  i64 line = 0;                     // where the row starts, from 1
  std::vector<std::string> fields;  // as many as columns, unless there is a problem
  std::string problem;              // why the row cannot be used, or ""
};

struct Table {
  std::string file;
  std::vector<std::string> columns;
  std::vector<TableRow> rows;
  std::size_t column(const std::string& name) const;  // DataError with the nearest spelling
  std::string place(const TableRow& row) const;       // "train.csv:17"
};

enum class TableFormat { Csv, Tsv, Jsonl };
// format: "auto" (by the file's ending), "csv", "tsv", "jsonl".
TableFormat table_format(const std::string& file, const std::string& format);
// wanted: the columns that a JSONL row must have; CSV and TSV name theirs in the first line, or without a header are numbered from 1.
// IoError, DataError.
Table read_table(const std::string& file, TableFormat, const std::vector<std::string>& wanted, bool header = true);

// The content of a text file without its byte order mark. IoError when it cannot be read, DataError for UTF-16.
std::string read_text_file(const std::string& file);

}  // namespace tapeformer
