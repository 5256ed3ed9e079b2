#include "core/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/rng.h"

namespace tapeformer {
namespace {

struct Inner {
  double rate = 0.5;
  std::vector<i64> sizes{1, 2};
};
template <class V>
void visit_fields(V& v, Inner& c) {
  v("rate", c.rate, Range{0, 0.9}, "a share");
  v("sizes", c.sizes, at_least(1), "sizes");
}
struct Outer {
  i64 dim = 64;
  int heads = 4;
  bool causal = false;
  std::string mode = "full";
  std::string title;
  std::optional<double> limit;
  Inner inner;
  std::vector<Inner> blocks;
};
template <class V>
void visit_fields(V& v, Outer& c) {
  v("dim", c.dim, at_least(1), "width");
  v("heads", c.heads, "heads");
  v("causal", c.causal, "no look ahead");
  v("mode", c.mode, OneOf{"full", "local", "none"}, "how");
  v("title", c.title, "text");
  v("limit", c.limit, above(0), "or none");
  v("inner", c.inner, "a section");
  v("blocks", c.blocks, "sections");
}

ConfigNode parse(const std::string& text) { return ConfigNode::parse(text, "run.yaml"); }
Outer read(const std::string& text) { return read_config<Outer>(parse(text)); }

template <class E = ConfigError, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}
std::string read_error(const std::string& text) {
  return error_of([&] { read(text); });
}

TEST(Config, ReadsEveryKindOfField) {
  const Outer c = read(
      "dim: 128\nheads: +8\ncausal: yes\nmode: local\ntitle: 'a: b'\nlimit: 2.5\ninner: {rate: 1e-1, sizes: "
      "[3]}\nblocks: [{rate: 0}, {}]\n");
  EXPECT_EQ(c.dim, 128);
  EXPECT_EQ(c.heads, 8);
  EXPECT_TRUE(c.causal);
  EXPECT_EQ(c.mode, "local");
  EXPECT_EQ(c.title, "a: b");
  EXPECT_EQ(c.limit, 2.5);
  EXPECT_EQ(c.inner.rate, 0.1);
  EXPECT_EQ(c.inner.sizes, std::vector<i64>{3});
  ASSERT_EQ(c.blocks.size(), 2u);
  EXPECT_EQ(c.blocks[1].rate, 0.5);
  EXPECT_EQ(read("").dim, 64);
  EXPECT_EQ(read("limit: null").limit, std::nullopt);
}

TEST(Config, ErrorsNamePlaceFoundAndExpected) {
  EXPECT_EQ(read_error("dim: 8\ninner:\n  rate: 1.5\n"), "run.yaml:3: inner.rate: got 1.5, expected 0 to 0.9");
  EXPECT_EQ(read_error("dim: 0"), "run.yaml:1: dim: got 0, expected at least 1");
  EXPECT_EQ(read_error("limit: 0"), "run.yaml:1: limit: got 0, expected above 0");
  EXPECT_EQ(read_error("mode: locl"), "run.yaml:1: mode: got 'locl', expected one of: full, local, none (did you mean 'local'?)");
  EXPECT_EQ(read_error("dim: 1.5"), "run.yaml:1: dim: got '1.5', expected an integer");
  EXPECT_EQ(read_error("dim: '8'"), "run.yaml:1: dim: got '8', expected an integer");
  EXPECT_EQ(read_error("dim: 8x"), "run.yaml:1: dim: got '8x', expected an integer");
  EXPECT_EQ(read_error("dim: +-8"), "run.yaml:1: dim: got '+-8', expected an integer");
  EXPECT_EQ(read_error("dim: 99999999999999999999"), "run.yaml:1: dim: got '99999999999999999999', expected an integer");
  EXPECT_EQ(read_error("heads: 3000000000"), "run.yaml:1: heads: got '3000000000', expected an integer");
  EXPECT_EQ(read_error("causal: 1"), "run.yaml:1: causal: got '1', expected true or false");
  EXPECT_EQ(read_error("inner: {rate: nan}"), "run.yaml:1: inner.rate: got 'nan', expected a finite number");
  EXPECT_EQ(read_error("dim: [1]"), "run.yaml:1: dim: got a list, expected an integer");
  EXPECT_EQ(read_error("title: {a: 1}"), "run.yaml:1: title: got a section, expected text");
  EXPECT_EQ(read_error("dim: ~"), "run.yaml:1: dim: got null, expected an integer");
  EXPECT_EQ(read_error("inner: {sizes: [2, 0]}"), "run.yaml:1: inner.sizes[1]: got 0, expected at least 1");
  EXPECT_EQ(read_error("inner: {sizes: 3}"), "run.yaml:1: inner.sizes: got '3', expected a list");
  EXPECT_EQ(read_error("inner: 3"), "run.yaml:1: inner: got '3', expected a section with keys");
}

TEST(Config, UnknownKeysAndAllErrorsAtOnce) {
  const std::string message = read_error("dmi: 8\nheads: x\ninner:\n  rat: 0.1\n");
  EXPECT_NE(message.find("run.yaml:1: dmi: unknown key, expected one of: dim, heads, causal, mode, title, limit, "
                         "inner, blocks (did you mean 'dim'?)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("run.yaml:2: heads: got 'x', expected an integer"), std::string::npos) << message;
  EXPECT_NE(message.find("run.yaml:4: inner.rat: unknown key, expected one of: rate, sizes (did you mean 'rate'?)"), std::string::npos)
      << message;
  EXPECT_EQ(read_error("zzzzzzzzz: 1").find("did you mean"), std::string::npos);
}

TEST(Config, DuplicatesAndBrokenYaml) {
  EXPECT_EQ(error_of([] { parse("a: 1\nb:\n  c: 1\n  c: 2\n"); }), "run.yaml:4: b.c: the key stands twice, first in line 3");
  EXPECT_EQ(error_of([] { parse("a: [1\nb: 2"); }).substr(0, 9), "run.yaml:");
  EXPECT_NE(error_of([] { parse("a: [1\nb: 2"); }).find("not valid YAML: "), std::string::npos);
  EXPECT_NE(error_of([] { parse("? [1]\n: 2"); }).find("a key must be plain text"), std::string::npos);
  EXPECT_NE(error_of([] { parse("&a [*a]"); }), "no error");
  EXPECT_NE(error_of([] { parse("a: *unknown"); }), "no error");
  EXPECT_NE(error_of([] { parse(std::string(100000, '[')); }), "no error");
  EXPECT_EQ(error_of([] { parse("a: 1\n---\nb: 2\n"); }), "run.yaml:2: a second document begins here, expected one");
  EXPECT_EQ(error_of([] { parse("a: 1\n...\nb: 2\n"); }), "run.yaml:3: a second document begins here, expected one");
  EXPECT_EQ(error_of([] { parse("a: 1\n...\n"); }), "no error");
  EXPECT_EQ(error_of([] { parse("# nothing\n"); }), "no error");
  EXPECT_EQ(error_of([] { parse(", a: 1\n"); }), "run.yaml:1: not valid YAML: a key cannot begin like this");
  EXPECT_NE(error_of([] { parse("a: 1\n, b: 1\n"); }), "no error");
  EXPECT_EQ(error_of<IoError>([] { ConfigNode::load("/nonexistent.yaml"); }), "/nonexistent.yaml: cannot open the configuration");
  EXPECT_EQ(error_of<IoError>([] { ConfigNode::load("/tmp"); }), "/tmp: is a folder, expected a configuration file");
}

TEST(Config, AliasesThatMultiplyAreRefused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) bomb += fmt::format("{}*a{}", k ? ", " : "", i - 1);
    bomb += "]\n";
  }
  EXPECT_NE(error_of([&] { parse(bomb); }).find("more than"), std::string::npos);
  EXPECT_EQ(parse("a: &x {k: 1}\nb: *x")["b"]["k"].text(), "1");
}

TEST(Config, ReaderNeverCrashesOnNoise) {
  const std::string letters = "ab01:-[]{},#&*!|>'\"%@`? \n\t~.\\";
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 4 + seed % 40; ++i) text += letters[RngKey(seed).below(i, letters.size())];
    try {
      const ConfigNode n = parse(text);
      (void)n.yaml();
      (void)n.json();
    } catch (const ConfigError&) {
    }
  }
}

TEST(Config, TextSurvivesWritingAndReading) {
  std::vector<std::string> texts{"",       " ",    "null", "~",  "true", "no",   "1",     "1e5",      "-",   "- a", "a: b",
                                 "a #b",   "#",    "'",    "\"", "\\",   "a\nb", "\ttab", "line\r\n", "[a",  "{",   "*x",
                                 "&x",     "!tag", "%",    "@",  "`",    "|",    ">",     "? a",      "été", "語",  " lead",
                                 "trail ", "0x10", ".5",   "1.", "\x01", "yes",  "=",     "<<",       "nan"};
  const std::string letters = "ab01:-[]{},#&*!|>'\"%@`? \n\t~.\\";
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 1 + seed % 9; ++i) text += letters[RngKey(seed).below(i, letters.size())];
    texts.push_back(text);
  }
  for (const std::string& text : texts) {
    Outer c;
    c.title = text;
    c.limit = 0.1;
    c.inner.sizes = {5, 6, 7};
    c.blocks.resize(2);
    const std::string yaml = write_config(c).yaml();
    const Outer back = read(yaml);
    ASSERT_EQ(back.title, text) << yaml;
    ASSERT_EQ(back.limit, 0.1);
    ASSERT_EQ(back.inner.sizes, c.inner.sizes);
    ASSERT_EQ(back.blocks.size(), 2u);
    ASSERT_EQ(write_config(back).yaml(), yaml);
    const Outer from_json = read(write_config(c).json());
    ASSERT_EQ(from_json.title, text) << write_config(c).json();
  }
}

TEST(Config, NumbersSurviveExactly) {
  for (double x : {0.1, 1e-12, 0.3333333333333333, 5e-324, 0.9}) {
    Outer c;
    c.inner.rate = x;
    EXPECT_EQ(read(write_config(c).yaml()).inner.rate, x);
  }
  Outer c;
  c.dim = std::numeric_limits<i64>::max();
  EXPECT_EQ(read(write_config(c).yaml()).dim, c.dim);
}

TEST(Config, ANodeKeepsItsQuotes) {
  const ConfigNode n = parse("a: '1'\nb: 1\nc: \"null\"\nd: null\n");
  const ConfigNode back = parse(n.yaml());
  EXPECT_TRUE(back == n);
  EXPECT_TRUE(back["a"].quoted());
  EXPECT_FALSE(back["b"].quoted());
  EXPECT_TRUE(back["c"].is_scalar());
  EXPECT_TRUE(back["d"].is_null());
  EXPECT_EQ(n.json(), R"({"a": "1", "b": 1, "c": "null", "d": null})");
}

TEST(Config, JsonHoldsOnlyValidNumbers) {
  EXPECT_EQ(parse("[1, -2.5, 1e5, 01, 1., .5, 1.e5, +1, 0x1, inf, nan, true, -, 1e999]").json(),
            R"([1, -2.5, 1e5, "01", "1.", ".5", "1.e5", "+1", "0x1", "inf", "nan", true, "-", "1e999"])");
  EXPECT_EQ(parse("{k: \"q\\\"\\\\\\n\\t\\u0001\"}").json(), "{\"k\": \"q\\\"\\\\\\n\\t\\u0001\"}");
}

TEST(Config, SetPath) {
  ConfigNode n = parse("a: {b: 1}\nlist: [1, {c: 2}]\n");
  n.set_path("a.b", "7");
  n.set_path("new.deep.key", "[1, 2]");
  n.set_path("list.1.c", "'x'");
  EXPECT_EQ(n.json(), R"({"a": {"b": 7}, "list": [1, {"c": "x"}], "new": {"deep": {"key": [1, 2]}}})");
  EXPECT_EQ(n["new"]["deep"]["key"].place(), "--set: new.deep.key");
  EXPECT_EQ(error_of([&] { n.set_path("a", "{b: 1, b: 2}"); }), "--set:1: a.b: the key stands twice, first in line 1");
  EXPECT_EQ(error_of([&] { n.set_path("a.b.c", "1"); }), "--set a.b.c: 'a.b' holds a value, not a section");
  EXPECT_EQ(error_of([&] { n.set_path("list.2", "1"); }), "--set list.2: got '2', expected an index below 2");
  EXPECT_EQ(error_of([&] { n.set_path("a..b", "1"); }), "--set a..b: a key is empty");
  EXPECT_EQ(error_of([&] { n.set_path("a", "null"); }), "--set a: got null, expected the keys of the section to change");
  EXPECT_EQ(error_of([&] { n.set_path("a.b", "3\n...\n4"); }), "--set a.b:3: a second document begins here, expected one");
  n.set_path("made.by", "1");
  EXPECT_EQ(n["made"].place(), "--set: made");
  EXPECT_EQ(n.located("made.by: got 1"), "--set: made.by: got 1");
  const std::string before = n.json();
  EXPECT_NE(error_of([&] { n.set_path("other.key", "[1"); }), "no error");
  EXPECT_EQ(n.json(), before) << "a refused value left something behind";
}

TEST(Config, Overlay) {
  ConfigNode n = ConfigNode::parse("a: 1\nm: {type: x, k: 1, l: [1, 2], sub: {p: 1}}\n", "base.yaml");
  n.overlay(ConfigNode::parse("\nm: {l: [3], sub: {q: 2}}\nb: 5\n", "over.yaml"));
  EXPECT_EQ(n.json(), R"({"a": 1, "m": {"type": "x", "k": 1, "l": [3], "sub": {"p": 1, "q": 2}}, "b": 5})");
  EXPECT_EQ(n["m"]["sub"]["q"].place(), "over.yaml:2: m.sub.q");
  EXPECT_EQ(n["m"]["k"].place(), "base.yaml:2: m.k");
  n.overlay(ConfigNode::parse("m: {type: y, z: 1}\na: {c: 1}", "last.yaml"));  // another type: its keys belong to the old one
  EXPECT_EQ(n.json(), R"({"a": {"c": 1}, "m": {"type": "y", "z": 1}, "b": 5})");
  EXPECT_EQ(error_of([&] { n.overlay(ConfigNode::parse("m: null", "last.yaml")); }),
            "last.yaml:1: m: got null, expected the keys of the section to change");
}

TEST(Config, WhatIsMadeFromATreeKeepsItsPlaces) {
  const ConfigNode file = ConfigNode::parse("model:\n  dim: 3\n  sub: {a: 1}\n  list:\n    - {b: 1}\n", "run.yaml");
  ConfigNode made = ConfigNode::parse("dim: 3\nextra: 1\nsub: {a: 1, c: 2}\nlist: [{b: 1}]", "");
  made.place_as(file["model"]);
  EXPECT_EQ(made["dim"].place(), "run.yaml:2: model.dim");
  EXPECT_EQ(made["extra"].place(), "run.yaml:2: model.extra");
  EXPECT_EQ(made["sub"]["c"].place(), "run.yaml:3: model.sub.c");
  EXPECT_EQ(made["list"].items()[0]["b"].place(), "run.yaml:5: model.list[0].b");
  EXPECT_EQ(file.located("model.dim: got 3"), "run.yaml:2: model.dim: got 3");
  EXPECT_EQ(file.located("model.sub.unknown: got 3"), "run.yaml:3: model.sub.unknown: got 3");
  EXPECT_EQ(file.located("model.list[0].b: got 3"), "run.yaml:5: model.list[0].b: got 3");
  EXPECT_EQ(file.located("model.list[7].b: got 3"), "run.yaml:5: model.list[7].b: got 3");
  EXPECT_EQ(file.located("other: got 3"), "other: got 3");
  EXPECT_EQ(file.located(""), "");
}

TEST(Config, Explain) {
  const auto lines = explain_config<Outer>("model.");
  ASSERT_GE(lines.size(), 10u);
  EXPECT_EQ(lines[0].key, "model.dim");
  EXPECT_EQ(lines[0].type, "an integer, at least 1");
  EXPECT_EQ(lines[0].default_value, "64");
  EXPECT_EQ(lines[3].type, "one of: full, local, none");
  EXPECT_EQ(lines[7].key, "model.inner.rate");
  EXPECT_NE(format_help(lines).find("(default 64)"), std::string::npos);
}

}  // namespace
}  // namespace tapeformer
