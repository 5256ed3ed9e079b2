// word_splitter.h: where words begin and end. A word is a run of letters, digits, combining marks and inner
// apostrophes; other marks and ideographs stand alone; English endings split off by a blank ('s, n't, 'll) stay whole.
#pragma once
#include <string_view>
#include <vector>

namespace tapeformer {

std::vector<std::string_view> split_words(std::string_view utf8);

std::vector<std::string_view> split_blanks(std::string_view text);  // at white space only

}  // namespace tapeformer
