// tokenizer.h: text to ids and back. Ids 0, 1 and 2 are [PAD], [UNK] and [CLS] for every type.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/registry.h"

namespace tapeformer {

class Hdf5File;

constexpr i64 kPadToken = 0, kUnknownToken = 1, kClsToken = 2, kSpecialTokens = 3;

struct TokenizerConfig {
  std::string type = "word";
  i64 vocab = 0;
  i64 min_count = 0;
  bool lowercase = false;
  bool nfc = true;
  std::string split = "words", drop;
};
std::vector<std::string> tokenizer_types();
template <class V>
void visit_fields(V& v, TokenizerConfig& c) {
  v("type", c.type, OneOf(tokenizer_types()),
    "byte: the 256 bytes; char: characters; word: words and punctuation; bpe: pairs of bytes merged by frequency");
  v("vocab", c.vocab, Range{0, 1e6},
    "most ids, the three special ones included; 0 = the usual of the type (char 2000, word 30000, bpe 4000)");
  v("min_count", c.min_count, Range{0, 1e9},
    "char, word: rarer ones become [UNK]; bpe: rarer pairs are not merged; 0 = the usual of the type (char 1, word 2, "
    "bpe 2)");
  v("lowercase", c.lowercase, "turn capitals into small letters");
  v("nfc", c.nfc, "bring Unicode into composed form (NFC) first");
  v("split", c.split, OneOf{"words", "blanks"}, "word: at words and punctuation, or at white space only");
  v("drop", c.drop, "characters to leave out, after the rest of the normalisation; ListOps with its parentheses: ()");
}
void validate(const TokenizerConfig&, const ConfigNode& place);  // ConfigError

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerConfig config) : config_(std::move(config)) {}
  virtual ~Tokenizer() = default;
  std::vector<i64> encode(std::string_view text) const { return encode_normalised(normalise(text)); }
  virtual std::string decode(std::span<const i64> ids) const = 0;  // special tokens are left out
  virtual i64 vocab() const = 0;
  virtual std::string token(i64 id) const = 0;  // for printing; "[PAD]" and so on for the first three
  std::string normalise(std::string_view text) const;
  const TokenizerConfig& config() const { return config_; }
  void save(Hdf5File&, const std::string& group) const;  // reads back with load_tokenizer

 protected:
  virtual std::vector<i64> encode_normalised(std::string_view text) const = 0;
  virtual std::vector<std::string> state() const = 0;  // what from_state needs
  TokenizerConfig config_;
};

std::unique_ptr<Tokenizer> train_tokenizer(const TokenizerConfig&, std::span<const std::string> texts);
std::unique_ptr<Tokenizer> load_tokenizer(const Hdf5File&, const std::string& group);

// A type registers how it is trained (on normalised texts) and made from its saved state.
struct TokenizerType {
  i64 usual_vocab, usual_min_count;  // 0: the type has no such setting
  i64 least_vocab;
  std::function<std::unique_ptr<Tokenizer>(const TokenizerConfig&, std::span<const std::string>)> train;
  std::function<std::unique_ptr<Tokenizer>(const TokenizerConfig&, std::vector<std::string>)> from_state;
};
Registry<TokenizerType>& tokenizer_registry();

// Entries in order of falling count, then of bytes; at most `limit`, none rarer than min_count.
std::vector<std::string> most_frequent(const std::vector<std::pair<std::string, i64>>& counts, i64 min_count, i64 limit);
std::string special_name(i64 id);

}  // namespace tapeformer
