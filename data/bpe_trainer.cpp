#include "data/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "data/unicode.h"

namespace tapeformer {
namespace {

enum class PieceKind { Space, Letter, Digit, Other };

PieceKind piece_kind(std::int32_t c) {
  switch (kind_of(c)) {
    case CharKind::Space:
      return PieceKind::Space;
    case CharKind::Letter:
    case CharKind::Ideograph:
      return PieceKind::Letter;
    case CharKind::Digit:
      return PieceKind::Digit;
    case CharKind::Other:
      break;
  }
  return PieceKind::Other;
}

std::size_t run_end(std::string_view text, std::size_t at, PieceKind kind) {
  while (at < text.size()) {
    std::size_t next = at;
    if (piece_kind(next_codepoint(text, next)) != kind) break;
    at = next;
  }
  return at;
}

std::uint64_t key_of(BpeMerge p) { return (static_cast<std::uint64_t>(p.first) << 32) | static_cast<std::uint32_t>(p.second); }
BpeMerge pair_of(std::uint64_t key) { return {static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key & 0xffffffffu)}; }

struct Piece {
  std::vector<std::int32_t> symbols;
  i64 count;
};

class Trainer {
 public:
  Trainer(std::span<const std::string> texts, i64 min_count) : min_count_(std::max<i64>(min_count, 1)), queue_(Later{this}) {
    for (int b = 0; b < 256; ++b) bytes_.emplace_back(1, static_cast<char>(b));
    collect(texts);
    for (std::size_t w = 0; w < pieces_.size(); ++w) count_pairs(w, +1);
    for (const auto& [key, count] : counts_) queue_.push({count, key});
  }

  std::vector<BpeMerge> run(i64 merges) {
    std::vector<BpeMerge> out;
    while (static_cast<i64>(out.size()) < merges && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const i64 now = counts_[best.key];
      if (now != best.count) continue;  // stale: the pair was queued again with its new count
      if (now < min_count_) break;
      out.push_back(pair_of(best.key));
      merge(pair_of(best.key));
    }
    return out;
  }

 private:
  struct Candidate {
    i64 count;
    std::uint64_t key;
  };
  struct Later {
    const Trainer* trainer;
    bool operator()(const Candidate& a, const Candidate& b) const {
      if (a.count != b.count) return a.count < b.count;
      const BpeMerge p = pair_of(a.key), q = pair_of(b.key);
      const auto& text = trainer->bytes_;
      const auto &pl = text[static_cast<std::size_t>(p.first)], &ql = text[static_cast<std::size_t>(q.first)];
      if (pl != ql) return pl > ql;
      const auto &pr = text[static_cast<std::size_t>(p.second)], &qr = text[static_cast<std::size_t>(q.second)];
      return pr != qr ? pr > qr : a.key > b.key;
    }
  };

  void collect(std::span<const std::string> texts) {
    std::unordered_map<std::string_view, i64> counts;
    for (const std::string& text : texts)
      for (std::string_view piece : split_pieces(text)) ++counts[piece];
    std::vector<std::pair<std::string_view, i64>> order(counts.begin(), counts.end());
    std::sort(order.begin(), order.end());
    for (const auto& [piece, count] : order) {
      Piece p{{}, count};
      for (char c : piece) p.symbols.push_back(static_cast<unsigned char>(c));
      pieces_.push_back(std::move(p));
    }
  }

  void count_pairs(std::size_t w, int sign) {
    const Piece& p = pieces_[w];
    for (std::size_t i = 0; i + 1 < p.symbols.size(); ++i) {
      const std::uint64_t key = key_of({p.symbols[i], p.symbols[i + 1]});
      counts_[key] += sign * p.count;
      changed_.push_back(key);
      if (sign > 0) places_[key].insert(w);
    }
  }

  void merge(BpeMerge pair) {
    const auto id = static_cast<std::int32_t>(bytes_.size());
    bytes_.push_back(bytes_[static_cast<std::size_t>(pair.first)] + bytes_[static_cast<std::size_t>(pair.second)]);
    const auto places = std::move(places_[key_of(pair)]);
    places_.erase(key_of(pair));
    changed_.clear();
    for (std::size_t w : places) {
      count_pairs(w, -1);
      replace(pieces_[w].symbols, pair, id);
      count_pairs(w, +1);
    }
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (std::uint64_t key : changed_)
      if (counts_[key] >= min_count_) queue_.push({counts_[key], key});
  }

  static void replace(std::vector<std::int32_t>& symbols, BpeMerge pair, std::int32_t id) {
    std::size_t to = 0;
    for (std::size_t i = 0; i < symbols.size(); ++to) {
      const bool here = i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
      symbols[to] = here ? id : symbols[i];
      i += here ? 2 : 1;
    }
    symbols.resize(to);
  }

  i64 min_count_;
  std::vector<std::string> bytes_;  // the text of each symbol
  std::vector<Piece> pieces_;
  std::unordered_map<std::uint64_t, i64> counts_;
  std::unordered_map<std::uint64_t, std::unordered_set<std::size_t>> places_;
  std::vector<std::uint64_t> changed_;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue_;
};

}  // namespace

std::vector<std::string_view> split_pieces(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    std::size_t next = at;
    PieceKind kind = piece_kind(next_codepoint(text, next));
    if (kind == PieceKind::Space && text[at] == ' ' && next < text.size()) {  // a blank goes with what follows it
      std::size_t after = next;
      const PieceKind following = piece_kind(next_codepoint(text, after));
      if (following != PieceKind::Space) {
        kind = following;
        at = next;
      }
    }
    at = run_end(text, at, kind);
    if (kind == PieceKind::Space && at < text.size() && text[at - 1] == ' ' && at - start > 1) --at;
    pieces.push_back(text.substr(start, at - start));
  }
  return pieces;
}

std::vector<BpeMerge> train_bpe(std::span<const std::string> texts, i64 merges, i64 min_count) {
  return Trainer(texts, min_count).run(merges);
}

}  // namespace tapeformer
