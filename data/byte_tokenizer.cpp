// Every byte is a token: id = byte + 3. No text is unknown, and decoding gives the text back.
#include <fmt/format.h>

#include "data/tokenizer.h"

namespace tapeformer {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::Tokenizer;
  i64 vocab() const override { return 256 + kSpecialTokens; }
  std::string decode(std::span<const i64> ids) const override {
    std::string out;
    for (i64 id : ids)
      if (id >= kSpecialTokens) out += static_cast<char>(id - kSpecialTokens);
    return out;
  }
  std::string token(i64 id) const override {
    if (id < kSpecialTokens) return special_name(id);
    const i64 byte = id - kSpecialTokens;
    return byte > 32 && byte < 127 ? std::string(1, static_cast<char>(byte)) : fmt::format("<{:02x}>", byte);
  }

 protected:
  std::vector<i64> encode_normalised(std::string_view text) const override {
    std::vector<i64> ids;
    ids.reserve(text.size());
    for (char c : text) ids.push_back(static_cast<unsigned char>(c) + kSpecialTokens);
    return ids;
  }
  std::vector<std::string> state() const override { return {}; }
};

const bool kRegistered = tokenizer_registry().add(
    "byte", {0, 0, 0, [](const TokenizerConfig& c, std::span<const std::string>) { return std::make_unique<ByteTokenizer>(c); },
             [](const TokenizerConfig& c, std::vector<std::string>) { return std::make_unique<ByteTokenizer>(c); }});

}  // namespace
}  // namespace tapeformer
