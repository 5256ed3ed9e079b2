// The char and word tokenizers: a vocabulary of the most frequent units, ids in order of frequency; the rest is [UNK].
#include <unordered_map>

#include "data/tokenizer.h"
#include "data/unicode.h"
#include "data/word_splitter.h"

namespace tapeformer {
namespace {

using Splitter = std::vector<std::string_view> (*)(std::string_view);

std::vector<std::string_view> split_chars(std::string_view text) {
  std::vector<std::string_view> chars;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    next_codepoint(text, at);
    chars.push_back(text.substr(start, at - start));
  }
  return chars;
}

struct TransparentHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
template <class T>
using TextMap = std::unordered_map<std::string, T, TransparentHash, std::equal_to<>>;

class VocabularyTokenizer final : public Tokenizer {
 public:
  VocabularyTokenizer(const TokenizerConfig& c, std::vector<std::string> units, Splitter split, const char* separator)
      : Tokenizer(c), units_(std::move(units)), split_(split), separator_(separator) {
    for (std::size_t i = 0; i < units_.size(); ++i) ids_.emplace(units_[i], static_cast<i64>(i) + kSpecialTokens);
  }
  i64 vocab() const override { return static_cast<i64>(units_.size()) + kSpecialTokens; }
  std::string token(i64 id) const override {
    return id < kSpecialTokens ? special_name(id) : units_.at(static_cast<std::size_t>(id - kSpecialTokens));
  }
  std::string decode(std::span<const i64> ids) const override {
    std::string out;
    bool first = true;
    for (i64 id : ids) {
      if (id == kPadToken || id == kClsToken) continue;
      if (!first) out += separator_;
      out += token(id);
      first = false;
    }
    return out;
  }

 protected:
  std::vector<i64> encode_normalised(std::string_view text) const override {
    std::vector<i64> ids;
    for (std::string_view unit : split_(text)) {
      const auto it = ids_.find(unit);
      ids.push_back(it == ids_.end() ? kUnknownToken : it->second);
    }
    return ids;
  }
  std::vector<std::string> state() const override { return units_; }

 private:
  std::vector<std::string> units_;
  TextMap<i64> ids_;
  Splitter split_;
  const char* separator_;
};

std::vector<std::string> count_units(const TokenizerConfig& c, std::span<const std::string> texts, Splitter split) {
  TextMap<i64> counts;
  for (const std::string& text : texts)
    for (std::string_view unit : split(text)) {
      const auto it = counts.find(unit);
      if (it == counts.end())
        counts.emplace(unit, 1);
      else
        ++it->second;
    }
  return most_frequent({counts.begin(), counts.end()}, c.min_count, c.vocab - kSpecialTokens);
}

// splitter: of a configuration.
TokenizerType type_of(i64 vocab, i64 min_count, Splitter (*splitter)(const TokenizerConfig&), const char* separator) {
  const auto make = [=](const TokenizerConfig& c, std::vector<std::string> units) {
    return std::make_unique<VocabularyTokenizer>(c, std::move(units), splitter(c), separator);
  };
  return {vocab, min_count, kSpecialTokens + 1,
          [=](const TokenizerConfig& c, std::span<const std::string> texts) { return make(c, count_units(c, texts, splitter(c))); }, make};
}

Splitter char_splitter(const TokenizerConfig&) { return split_chars; }
Splitter word_splitter(const TokenizerConfig& c) { return c.split == "blanks" ? split_blanks : split_words; }

const bool kChar = tokenizer_registry().add("char", type_of(2000, 1, char_splitter, ""));
const bool kWord = tokenizer_registry().add("word", type_of(30000, 2, word_splitter, " "));

}  // namespace
}  // namespace tapeformer
