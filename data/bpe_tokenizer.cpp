// Byte pair encoding: ids 3 to 258 are bytes, then one id a merge. Every text can be encoded, and decoding gives it
// back.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "data/bpe_trainer.h"
#include "data/tokenizer.h"

namespace tapeformer {
namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(const TokenizerConfig& c, std::vector<BpeMerge> merges) : Tokenizer(c), merges_(std::move(merges)) {
    for (int b = 0; b < 256; ++b) text_.emplace_back(1, static_cast<char>(b));
    for (const BpeMerge& m : merges_) {
      ranks_.emplace(key_of(m.first, m.second), static_cast<std::int32_t>(text_.size()));
      text_.push_back(text_.at(static_cast<std::size_t>(m.first)) + text_.at(static_cast<std::size_t>(m.second)));
    }
  }
  i64 vocab() const override { return static_cast<i64>(text_.size()) + kSpecialTokens; }
  std::string token(i64 id) const override {
    return id < kSpecialTokens ? special_name(id) : text_.at(static_cast<std::size_t>(id - kSpecialTokens));
  }
  std::string decode(std::span<const i64> ids) const override {
    std::string out;
    for (i64 id : ids)
      if (id >= kSpecialTokens) out += token(id);
    return out;
  }

 protected:
  std::vector<i64> encode_normalised(std::string_view text) const override {
    std::vector<i64> ids;
    for (std::string_view piece : split_pieces(text)) {
      std::vector<std::int32_t> symbols;
      for (char c : piece) symbols.push_back(static_cast<unsigned char>(c));
      while (merge_first(symbols)) {
      }
      for (std::int32_t s : symbols) ids.push_back(s + kSpecialTokens);
    }
    return ids;
  }
  std::vector<std::string> state() const override {
    std::vector<std::string> out;
    for (const BpeMerge& m : merges_) out.push_back(fmt::format("{} {}", m.first, m.second));
    return out;
  }

 private:
  static std::uint64_t key_of(std::int32_t a, std::int32_t b) {
    return (static_cast<std::uint64_t>(a) << 32) | static_cast<std::uint32_t>(b);
  }

  // Applies the earliest merge that is possible, everywhere; false when there is none.
  bool merge_first(std::vector<std::int32_t>& symbols) const {
    std::int32_t best = -1;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks_.find(key_of(symbols[i], symbols[i + 1]));
      if (it != ranks_.end() && (best < 0 || it->second < best)) best = it->second;
    }
    if (best < 0) return false;
    const BpeMerge pair = merges_[static_cast<std::size_t>(best - 256)];
    std::size_t to = 0;
    for (std::size_t i = 0; i < symbols.size(); ++to) {
      const bool here = i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
      symbols[to] = here ? best : symbols[i];
      i += here ? 2 : 1;
    }
    symbols.resize(to);
    return true;
  }

  std::vector<BpeMerge> merges_;
  std::vector<std::string> text_;
  std::unordered_map<std::uint64_t, std::int32_t> ranks_;
};

BpeMerge parse_merge(const std::string& line, std::size_t symbols) {
  BpeMerge m{-1, -1};
  const char* end = line.data() + line.size();
  const auto first = std::from_chars(line.data(), end, m.first);
  if (first.ptr != end) std::from_chars(first.ptr + 1, end, m.second);
  const auto known = [&](std::int32_t s) { return s >= 0 && static_cast<std::size_t>(s) < symbols; };
  if (!known(m.first) || !known(m.second)) throw IoError(fmt::format("the saved tokenizer holds the merge '{}', which is damaged", line));
  return m;
}

std::unique_ptr<Tokenizer> train(const TokenizerConfig& c, std::span<const std::string> texts) {
  return std::make_unique<BpeTokenizer>(c, train_bpe(texts, c.vocab - 256 - kSpecialTokens, c.min_count));
}
std::unique_ptr<Tokenizer> from_state(const TokenizerConfig& c, std::vector<std::string> state) {
  std::vector<BpeMerge> merges;
  for (const std::string& line : state) merges.push_back(parse_merge(line, 256 + merges.size()));
  return std::make_unique<BpeTokenizer>(c, std::move(merges));
}

const bool kRegistered = tokenizer_registry().add("bpe", {4000, 2, 256 + kSpecialTokens, train, from_state});

}  // namespace
}  // namespace tapeformer
