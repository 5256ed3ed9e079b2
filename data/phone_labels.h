// phone_labels.h: which phone is spoken when: TIMIT's `.phn` files (start sample, end sample, phone on each line), and
// the folding of phones into fewer classes.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/config.h"

namespace tapeformer {

struct PhoneSegment {
  i64 start, end;  // samples of the sound file, [start, end)
  std::string phone;
};
std::vector<PhoneSegment> read_phones(const std::string& path);  // IoError, DataError with the line
// The phone at a sample; `silence` before, between and after the segments.
const std::string& phone_at(const std::vector<PhoneSegment>&, i64 sample, const std::string& silence);

struct FoldingSettings {
  std::string file, from = "phone", to;
};
template <class V>
void visit_fields(V& v, FoldingSettings& s) {
  v("file", s.file, "table (TSV or CSV) of phones and their classes; empty = every phone is a class");
  v("from", s.from, "column of the phone as it stands in the alignment");
  v("to", s.to, "column of the class");
}
std::map<std::string, std::string> read_folding(const FoldingSettings&);  // ConfigError, IoError, DataError

}  // namespace tapeformer
