// debian_topics.h: a text set that every Debian machine can make: package descriptions, the archive section is the
// label. Packages of one source stay in one part, one package a source.
#pragma once
#include <string>

#include "core/shape.h"

namespace tapeformer {

struct TopicCounts {
  i64 train = 0, valid = 0, test = 0;
};
struct DebianTopics {
  TopicCounts short_texts;  // <out_dir>/short/{train,valid,test}.csv: the one-line descriptions
  TopicCounts long_texts;   // <out_dir>/long/...: the whole descriptions; all 0 and no files without Translation lists
};
// Runs apt-cache; lists: where apt keeps the Translation lists. IoError when it is missing or knows no package (apt-get
// update fetches the lists).
DebianTopics debian_topics(const std::string& out_dir, const std::string& lists = "/var/lib/apt/lists");

}  // namespace tapeformer
