#include "data/word_splitter.h"

#include "data/unicode.h"

namespace tapeformer {
namespace {

constexpr std::size_t kLongestEnding = 2;  // letters after the apostrophe: 's, 'll, 've

bool is_apostrophe(std::int32_t c) { return c == '\'' || c == 0x2019; }

bool is_word_char(std::string_view text, std::size_t at) {
  if (at >= text.size()) return false;
  const std::int32_t c = next_codepoint(text, at);
  const CharKind kind = kind_of(c);
  return kind == CharKind::Letter || kind == CharKind::Digit || c == '_';
}

// The end of the word that starts at `at`.
std::size_t word_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    const bool apostrophe = is_apostrophe(next_codepoint(text, next));
    if (apostrophe ? !is_word_char(text, next) : !is_word_char(text, at)) break;
    at = next;
  }
  return at;
}

// The end of an ending such as 's at `at` (an apostrophe), or `at` when there is none.
std::size_t ending_end(std::string_view text, std::size_t at) {
  std::size_t first = at;
  next_codepoint(text, first);
  const std::size_t end = word_end(text, first);
  return end > first && end - first <= kLongestEnding ? end : at;
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    const std::int32_t c = next_codepoint(text, end);
    if (kind_of(c) == CharKind::Space) {
      at = end;
      continue;
    }
    if (is_word_char(text, at))
      end = word_end(text, at);
    else if (is_apostrophe(c) && ending_end(text, at) > at)
      end = ending_end(text, at);
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::vector<std::string_view> split_blanks(std::string_view text) {
  std::vector<std::string_view> words;
  std::size_t start = 0;
  const auto close = [&](std::size_t end) {
    if (end > start) words.push_back(text.substr(start, end - start));
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    if (kind_of(next_codepoint(text, at)) != CharKind::Space) continue;
    close(here);
    start = at;
  }
  close(text.size());
  return words;
}

}  // namespace tapeformer
