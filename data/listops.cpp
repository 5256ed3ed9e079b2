#include "data/listops.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_set>
#include <vector>

#include "core/hdf5_file.h"
#include "data/dataset.h"
#include "data/draws.h"
#include "data/word_splitter.h"

namespace tapeformer {
namespace {

constexpr std::array kOperators{"[MIN", "[MAX", "[MED", "[SM"};
constexpr double kOperatorShare = 0.25;
constexpr i64 kMostTries = 1000000;  // in a row without a usable expression

bool is_digit(std::string_view token) { return token.size() == 1 && token[0] >= '0' && token[0] <= '9'; }

// left: tokens that the tree may still have. False once it has more: with many arguments a node has more than one operator below it on
// average, and a tree without a limit grows for ever.
bool grow(Draws& draw, i64 depth, i64 max_depth, i64 max_args, i64& left, std::string& out) {
  if (!out.empty()) out += ' ';
  if (depth == max_depth || draw.uniform() > kOperatorShare) {
    out += static_cast<char>('0' + draw.below(10));
    return --left >= 0;
  }
  left -= 2;
  const i64 count = 2 + draw.below(max_args - 1);
  std::string arguments;
  for (i64 i = 0; i < count; ++i)
    if (left <= 0 || !grow(draw, depth + 1, max_depth, max_args, left, arguments)) return false;
  out += kOperators[static_cast<std::size_t>(draw.below(kOperators.size()))];
  out += ' ' + arguments + " ]";
  return true;
}

int apply(std::string_view name, std::vector<int> x) {
  std::sort(x.begin(), x.end());
  if (name == "[MIN") return x.front();
  if (name == "[MAX") return x.back();
  const std::size_t middle = x.size() / 2;
  if (name == "[MED") return x.size() % 2 == 1 ? x[middle] : (x[middle - 1] + x[middle]) / 2;
  int sum = 0;
  for (int v : x) sum += v;
  return sum % 10;
}

// Reads one node of an expression; Visit::digit(token), Visit::node(operator, arguments) make its result.
template <class Visit>
class Reader {
 public:
  using Result = typename Visit::Result;
  explicit Reader(std::string_view text) : tokens_(split_blanks(text)) {}
  Result all() {
    Result result = node();
    if (at_ != tokens_.size()) fail("the end");
    return result;
  }

 private:
  Result node() {
    const std::string_view token = next("a digit or an operator");
    if (is_digit(token)) return Visit::digit(token);
    if (std::find(kOperators.begin(), kOperators.end(), token) == kOperators.end()) {
      --at_;
      fail("a digit or an operator");
    }
    std::vector<Result> arguments;
    while (at_ < tokens_.size() && tokens_[at_] != "]") arguments.push_back(node());
    if (arguments.empty()) fail("an argument");
    next("]");
    return Visit::node(token, std::move(arguments));
  }
  std::string_view next(const char* expected) {
    if (at_ == tokens_.size()) fail(expected);
    return tokens_[at_++];
  }
  [[noreturn]] void fail(const char* expected) const {
    throw DataError(fmt::format("token {} of the expression: got {}, expected {}", at_ + 1,
                                at_ < tokens_.size() ? "'" + std::string(tokens_[at_]) + "'" : "its end", expected));
  }
  std::vector<std::string_view> tokens_;
  std::size_t at_ = 0;
};

struct Value {
  using Result = int;
  static int digit(std::string_view token) { return token[0] - '0'; }
  static int node(std::string_view name, std::vector<int> arguments) { return apply(name, std::move(arguments)); }
};

struct Parenthesised {
  using Result = std::string;
  static std::string digit(std::string_view token) { return std::string(token); }
  static std::string node(std::string_view name, std::vector<std::string> arguments) {
    std::string out(name);
    arguments.emplace_back("]");
    for (const std::string& a : arguments) out = "( " + out + " " + a + " )";
    return out;
  }
};

i64 token_count(std::string_view text) { return std::count(text.begin(), text.end(), ' ') + 1; }

void check(const ListopsSettings& s) {
  const auto require = [](bool ok, const std::string& message) {
    if (!ok) throw ConfigError(message);
  };
  require(s.max_depth >= 1, fmt::format("max-depth: got {}, expected at least 1", s.max_depth));
  require(s.max_args >= 2, fmt::format("max-args: got {}, expected at least 2", s.max_args));
  require(s.max_length <= 1000000000, fmt::format("max-length: got {}, expected at most 1000000000", s.max_length));
  require(s.max_length >= s.min_length + 2,
          fmt::format("max-length: got {}, expected at least {} (lengths lie between min-length and max-length, both excluded)",
                      s.max_length, s.min_length + 2));
  for (i64 n : s.samples) require(n >= 1, fmt::format("samples: got {}, expected at least 1 for each part", n));
}

template <class Map>
int most_frequent_value(const Map& counts) {
  return std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

class Counter {  // values by first token
 public:
  void add(std::string_view expression, int value) {
    ++all_[value];
    ++by_token_[first(expression)][value];
  }
  ListopsShortcuts score(const Counter& train) const {
    double right_majority = 0, right_first = 0, total = 0;
    const int majority = most_frequent_value(train.all_);
    for (const auto& [token, counts] : by_token_) {
      const auto known = train.by_token_.find(token);
      const int guess = known == train.by_token_.end() ? majority : most_frequent_value(known->second);
      for (const auto& [value, n] : counts) {
        right_first += value == guess ? n : 0;
        right_majority += value == majority ? n : 0;
        total += n;
      }
    }
    return {right_majority / total, right_first / total};
  }

 private:
  static std::string first(std::string_view expression) { return std::string(expression.substr(0, expression.find(' '))); }
  std::map<int, double> all_;
  std::map<std::string, std::map<int, double>> by_token_;
};

}  // namespace

int listops_value(std::string_view expression) { return Reader<Value>(expression).all(); }
std::string listops_parentheses(std::string_view expression) { return Reader<Parenthesised>(expression).all(); }

std::string listops_expression(RngKey key, i64 max_depth, i64 max_args, i64 max_tokens) {
  Draws draw(key);
  std::string out;
  return grow(draw, 1, max_depth, max_args, max_tokens, out) ? out : "";
}

ListopsShortcuts generate_listops(const std::string& out_dir, const ListopsSettings& s) {
  check(s);
  std::filesystem::create_directories(out_dir);
  const RngKey key = RngKey(s.seed).fold_in("listops");
  std::unordered_set<std::uint64_t> seen;  // hashes: a collision leaves out one good expression
  std::array<Counter, 3> counts;
  std::uint64_t tree = 0;
  for (std::size_t part = 0; part < 3; ++part) {
    std::string text = "Source\tTarget\n";
    for (i64 i = 0, tries = 0; i < s.samples[part]; ++tree) {
      const std::string expression = listops_expression(key.fold_in(tree), s.max_depth, s.max_args, s.max_length - 1);
      if (expression.empty() || token_count(expression) <= s.min_length ||
          !seen.insert(XXH3_64bits(expression.data(), expression.size())).second) {
        if (++tries == kMostTries)
          throw ConfigError(
              fmt::format("{} trees in a row gave no new expression of more than {} and fewer than {} tokens; change the "
                          "lengths, max-depth ({}), max-args ({}) or samples",
                          kMostTries, s.min_length, s.max_length, s.max_depth, s.max_args));
        continue;
      }
      tries = 0;
      ++i;
      const int value = listops_value(expression);
      counts[part].add(expression, value);
      text += fmt::format("{}\t{}\n", s.parentheses ? listops_parentheses(expression) : expression, value);
    }
    constexpr std::array kParts{Part::Train, Part::Valid, Part::Test};
    write_file_atomically((std::filesystem::path(out_dir) / fmt::format("{}.tsv", name_of(kParts[part]))).string(), text);
  }
  return counts[2].score(counts[0]);
}

}  // namespace tapeformer
