#include "data/tokenizer.h"

#include <algorithm>

#include "core/parallel.h"
#include "data/hdf5_text.h"
#include "data/unicode.h"

namespace tapeformer {
namespace {

std::string without(std::string_view text, std::string_view dropped) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    next_codepoint(text, at);
    const std::string_view c = text.substr(start, at - start);
    if (dropped.find(c) == std::string_view::npos) out += c;
  }
  return out;
}

}  // namespace

Registry<TokenizerType>& tokenizer_registry() {
  static Registry<TokenizerType> registry("tokenizer");
  return registry;
}

std::vector<std::string> tokenizer_types() { return tokenizer_registry().names(); }

void validate(const TokenizerConfig& c, const ConfigNode& place) {
  const TokenizerType& type = tokenizer_registry().get(c.type);
  const std::string at = place ? place.place() : "data.tokenizer";
  if (type.usual_vocab == 0 && c.vocab != 0)
    throw ConfigError(fmt::format("{}.vocab: got {}, but a {} tokenizer has a fixed vocabulary", at, c.vocab, c.type));
  if (c.type != "word" && c.split != "words")
    throw ConfigError(fmt::format("{}.split: got '{}', which only a word tokenizer has", at, c.split));
  if (type.usual_min_count == 0 && c.min_count != 0)
    throw ConfigError(fmt::format("{}.min_count: got {}, but a {} tokenizer counts nothing", at, c.min_count, c.type));
  if (c.vocab != 0 && c.vocab < type.least_vocab)
    throw ConfigError(fmt::format("{}.vocab: got {}, expected at least {} for {}", at, c.vocab, type.least_vocab, c.type));
}

std::string Tokenizer::normalise(std::string_view text) const {
  std::string out = config_.nfc ? normalise_nfc(text) : std::string(text);
  if (config_.lowercase) out = lowercase(out);
  return config_.drop.empty() ? out : without(out, config_.drop);
}

void Tokenizer::save(Hdf5File& file, const std::string& group) const {
  write_text(file, group + "/config", write_config(config_).json());
  write_texts(file, group + "/state", state());
}

std::unique_ptr<Tokenizer> train_tokenizer(const TokenizerConfig& given, std::span<const std::string> texts) {
  validate(given, ConfigNode());
  const TokenizerType& type = tokenizer_registry().get(given.type);
  TokenizerConfig c = given;
  if (c.vocab == 0) c.vocab = type.usual_vocab;
  if (c.min_count == 0) c.min_count = type.usual_min_count;
  const std::unique_ptr<Tokenizer> untrained = type.from_state(c, {});
  std::vector<std::string> normalised(texts.size());
  parallel_for(static_cast<i64>(texts.size()), 256, [&](i64 begin, i64 end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) normalised[i] = untrained->normalise(texts[i]);
  });
  return type.train(c, normalised);
}

std::unique_ptr<Tokenizer> load_tokenizer(const Hdf5File& file, const std::string& group) {
  const ConfigNode saved = ConfigNode::parse(read_text(file, group + "/config"), group + "/config");
  const TokenizerConfig c = read_config<TokenizerConfig>(saved);
  return tokenizer_registry().get(c.type).from_state(c, read_texts(file, group + "/state"));
}

std::vector<std::string> most_frequent(const std::vector<std::pair<std::string, i64>>& counts, i64 min_count, i64 limit) {
  std::vector<const std::pair<std::string, i64>*> order;
  for (const auto& entry : counts)
    if (entry.second >= min_count) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->second != b->second ? a->second > b->second : a->first < b->first; });
  std::vector<std::string> out;
  for (const auto* entry : order) {
    if (static_cast<i64>(out.size()) >= limit) break;
    out.push_back(entry->first);
  }
  return out;
}

std::string special_name(i64 id) { return id == kPadToken ? "[PAD]" : id == kUnknownToken ? "[UNK]" : "[CLS]"; }

}  // namespace tapeformer
