#include "data/tokenizer.h"

#include <chrono>

#include "core/hdf5_file.h"
#include "core/rng.h"
#include "data/bpe_trainer.h"
#include "data/unicode.h"
#include "data/word_splitter.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

using Texts = std::vector<std::string>;
using Ids = std::vector<i64>;

const Texts kTexts{"the cat sat on the mat", "the Dog's cat didn't sit , it 's \xC3\xA9t\xC3\xA9!", "naïve \xE6\x97\xA5\xE6\x9C\xAC cat"};

TokenizerConfig config(const std::string& type) {
  TokenizerConfig c;
  c.type = type;
  return c;
}

std::string random_text(std::uint64_t seed) {
  const RngKey key(seed);
  std::string out;
  const auto size = key.below(1000, 40);
  for (std::uint64_t i = 0; i < size; ++i) {
    const auto pick = key.below(i, 6);
    out += to_utf8(pick == 0   ? ' '
                   : pick == 1 ? static_cast<std::int32_t>(0xA1 + key.below(i + 100, 0x700))
                   : pick == 2 ? 0x1F600
                               : static_cast<std::int32_t>(33 + key.below(i + 200, 94)));
  }
  return out;
}

TEST(Tokenizer, ByteAndBpeGiveEveryTextBack) {
  for (const char* type : {"byte", "bpe"}) {
    TokenizerConfig c = config(type);
    c.nfc = false;
    const auto t = train_tokenizer(c, kTexts);
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      const std::string text = random_text(seed);
      const Ids ids = t->encode(text);
      EXPECT_EQ(t->decode(ids), text) << type;
      for (i64 id : ids) EXPECT_TRUE(id >= kSpecialTokens && id < t->vocab());
    }
    const std::string bytes("\x00\xFF\x80 x", 5);
    EXPECT_EQ(t->decode(t->encode(bytes)), bytes) << type;
  }
}

TEST(Tokenizer, CharGivesKnownTextBackAndMarksTheRest) {
  const auto t = train_tokenizer(config("char"), kTexts);
  for (const std::string& text : kTexts) EXPECT_EQ(t->decode(t->encode(text)), text);
  EXPECT_EQ(t->encode("t\xE2\x82\xAC")[1], kUnknownToken);
  EXPECT_EQ(t->decode(t->encode("t\xE2\x82\xAC")), "t[UNK]");
}

TEST(Tokenizer, WordsByFrequencyThenBytes) {
  TokenizerConfig c = config("word");
  c.min_count = 1;
  const auto t = train_tokenizer(c, Texts{"b a b c a b", "d"});
  EXPECT_EQ(t->token(3), "b");
  EXPECT_EQ(t->token(4), "a");
  EXPECT_EQ(t->token(5), "c");
  EXPECT_EQ(t->token(6), "d");
  EXPECT_EQ(t->vocab(), 7);
  EXPECT_EQ(t->encode("a zz b"), (Ids{4, kUnknownToken, 3}));
  EXPECT_EQ(t->token(0) + t->token(1) + t->token(2), "[PAD][UNK][CLS]");
}

TEST(Tokenizer, LimitsOnVocabulary) {
  TokenizerConfig c = config("word");
  EXPECT_EQ(train_tokenizer(c, Texts{"a a b"})->vocab(), 4);  // b occurs once
  c.min_count = 1;
  c.vocab = 4;
  EXPECT_EQ(train_tokenizer(c, Texts{"a a b"})->vocab(), 4);
  c.lowercase = true;
  EXPECT_EQ(train_tokenizer(c, Texts{"\xC3\x89t\xC3\xA9"})->token(3), "\xC3\xA9t\xC3\xA9");
}

TEST(Tokenizer, ComposedAndDecomposedAreTheSame) {
  const auto t = train_tokenizer(config("byte"), {});
  EXPECT_EQ(t->encode("e\xCC\x81"), t->encode("\xC3\xA9"));
}

TEST(Tokenizer, SavedAndLoaded) {
  TempDir dir;
  for (const std::string& type : tokenizer_types()) {
    const auto t = train_tokenizer(config(type), kTexts);
    {
      Hdf5File file = Hdf5File::create(dir / "t.h5");
      t->save(file, "/tokenizer");
      file.close();
    }
    const auto again = load_tokenizer(Hdf5File::open(dir / "t.h5"), "/tokenizer");
    EXPECT_EQ(again->vocab(), t->vocab()) << type;
    for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(again->encode(random_text(seed)), t->encode(random_text(seed))) << type;
    for (const std::string& text : kTexts) EXPECT_EQ(again->encode(text), t->encode(text)) << type;
  }
}

TEST(Tokenizer, Mistakes) {
  TokenizerConfig c = config("byte");
  c.vocab = 300;
  EXPECT_TRUE(contains(message_of([&] { train_tokenizer(c, {}); }), "a byte tokenizer has a fixed vocabulary"));
  c = config("bpe");
  c.vocab = 100;
  EXPECT_TRUE(contains(message_of([&] { train_tokenizer(c, {}); }), "vocab: got 100, expected at least 259 for bpe"));
  EXPECT_TRUE(contains(message_of([] { read_config<TokenizerConfig>(ConfigNode::parse("type: wrod", "y")); }), "(did you mean 'word'?)"));
}

TEST(WordSplitter, WordsMarksApostrophesIdeographs) {
  const auto words = [](const std::string& text) {
    const auto views = split_words(text);
    return Texts(views.begin(), views.end());
  };
  EXPECT_EQ(words("Don't stop, it 's 'quoted' (x_1)!"),
            (Texts{"Don't", "stop", ",", "it", "'s", "'", "quoted", "'", "(", "x_1", ")", "!"}));
  EXPECT_EQ(words("\xE6\x97\xA5\xE6\x9C\xAC"
                  "a"),
            (Texts{"\xE6\x97\xA5", "\xE6\x9C\xAC", "a"}));
  EXPECT_EQ(words(" \t\n\xC2\xA0 "), Texts{});
  EXPECT_EQ(words("e\xCC\x81t"), Texts{"e\xCC\x81t"});
}

// The same merges by counting everything again each time.
std::vector<BpeMerge> plain_bpe(const Texts& texts, i64 merges, i64 min_count) {
  std::vector<std::vector<std::int32_t>> pieces;
  Texts names;
  for (int b = 0; b < 256; ++b) names.emplace_back(1, static_cast<char>(b));
  for (const std::string& text : texts)
    for (std::string_view piece : split_pieces(text)) {
      pieces.emplace_back();
      for (char c : piece) pieces.back().push_back(static_cast<unsigned char>(c));
    }
  std::vector<BpeMerge> out;
  while (static_cast<i64>(out.size()) < merges) {
    std::map<BpeMerge, i64> counts;
    for (const auto& p : pieces)
      for (std::size_t i = 0; i + 1 < p.size(); ++i) ++counts[{p[i], p[i + 1]}];
    const BpeMerge* best = nullptr;
    const auto text = [&](const BpeMerge& m) {
      return std::pair(names[static_cast<std::size_t>(m.first)], names[static_cast<std::size_t>(m.second)]);
    };
    for (const auto& [pair, count] : counts)
      if (count >= min_count && (!best || count > counts[*best] || (count == counts[*best] && text(pair) < text(*best)))) best = &pair;
    if (!best) break;
    const BpeMerge merged = *best;
    out.push_back(merged);
    names.push_back(text(merged).first + text(merged).second);
    for (auto& p : pieces)
      for (std::size_t i = 0; i + 1 < p.size(); ++i)
        if (p[i] == merged.first && p[i + 1] == merged.second) {
          p[i] = static_cast<std::int32_t>(names.size()) - 1;
          p.erase(p.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return out;
}

TEST(Bpe, MergesAsCountedAfresh) {
  Texts texts = kTexts;
  for (std::uint64_t seed = 0; seed < 30; ++seed) texts.push_back(random_text(seed) + " aaa aaaa banana bandana banana");
  EXPECT_EQ(train_bpe(texts, 120, 2), plain_bpe(texts, 120, 2));
}

TEST(Bpe, PiecesCoverTheText) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::string text = random_text(seed) + "  two  blanks \n ";
    std::string joined;
    for (std::string_view piece : split_pieces(text)) joined += piece;
    EXPECT_EQ(joined, text);
  }
  const auto views = split_pieces("it is 42  now!");
  EXPECT_EQ(Texts(views.begin(), views.end()), (Texts{"it", " is", " 42", " ", " now", "!"}));
}

TEST(Bpe, TrainsInSeconds) {
  Texts texts;
  const RngKey key(5);
  std::size_t bytes = 0;
  for (std::uint64_t i = 0; bytes < 4'000'000; ++i) {  // 60,000 words of Zipfian frequency
    std::string text;
    for (std::uint64_t w = 0; w < 20; ++w) {
      auto word = static_cast<std::uint64_t>(std::pow(60000.0, key.uniform(i * 20 + w)));
      for (word = RngKey(word).value() * 2654435761u + 12345; word > 20; word /= 26) text += static_cast<char>('a' + word % 26);
      text += ' ';
    }
    bytes += text.size();
    texts.push_back(std::move(text));
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(train_bpe(texts, 4000, 2).size(), 4000u);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);
}

TEST(Unicode, FindsTheFirstFault) {
  EXPECT_EQ(first_invalid_utf8("a\xC3\xA9\xF0\x9F\x98\x80"), kValid);
  EXPECT_EQ(first_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(first_invalid_utf8("\xC0\x80"), 0u);      // overlong
  EXPECT_EQ(first_invalid_utf8("\xED\xA0\x80"), 0u);  // surrogate
  EXPECT_EQ(first_invalid_utf8("x\xE2\x82"), 1u);     // cut off
  EXPECT_TRUE(is_blank(" \t\xC2\xA0\xE2\x80\x8B"));
  EXPECT_FALSE(is_blank(" . "));
}

}  // namespace
}  // namespace tapeformer
