#include "attention/blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "attention/attention.h"

namespace tapeformer {

i64 BlockLinks::seen(i64 h, i64 r, i64 c0, i64 c1) const {
  if (global[static_cast<std::size_t>(r)]) return c1 - c0 + 1;
  const i64 near = window < 0 ? 0 : std::max<i64>(0, std::min(c1, r + window) - std::max(c0, r - window) + 1);
  const auto begin = columns.begin() + starts[static_cast<std::size_t>(h * count + r)],
             end = columns.begin() + starts[static_cast<std::size_t>(h * count + r + 1)];
  return near + (std::upper_bound(begin, end, c1) - std::lower_bound(begin, end, c0));
}

void BlockLinker::warn_without_effect(const char* who, i64 max_len, i64 block) const {
  if (max_len == 0) return;
  const i64 nb = (max_len + block - 1) / block;
  for (i64 c : o_.global_blocks)
    if (c >= nb || c < -nb)
      warn_unused(fmt::format("attention.{}: global_blocks: {} is none of the {} blocks of the longest input", who, c, nb));
  if (o_.num_random >= nb && nb > 1)
    warn_unused(
        fmt::format("attention.{}: num_random: {} is more than the {} other blocks of the longest input", who, o_.num_random, nb - 1));
}

std::vector<i64> BlockLinker::global_blocks(i64 nb) const {
  std::vector<i64> out;
  for (i64 c : o_.global_blocks) {
    if (c < 0) c += nb;
    if (c >= 0 && c < nb) out.push_back(c);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

template <class Random>
std::shared_ptr<const BlockLinks> BlockLinker::link(i64 heads, i64 nb, Random&& random) const {
  auto links = std::make_shared<BlockLinks>();
  links->count = nb;
  links->window = o_.window;
  links->global.assign(static_cast<std::size_t>(nb), false);
  const std::vector<i64> global = global_blocks(nb);
  for (i64 c : global) links->global[static_cast<std::size_t>(c)] = true;
  links->starts.push_back(0);
  for (i64 h = 0; h < heads; ++h)
    for (i64 r = 0; r < nb; ++r) {
      std::vector<i64> row;
      if (!links->global[static_cast<std::size_t>(r)]) {
        row = random(h, r, global);
        row.insert(row.end(), global.begin(), global.end());
        std::erase_if(row, [&](i64 c) { return c < 0 || (o_.window >= 0 && std::abs(r - c) <= o_.window); });
        std::sort(row.begin(), row.end());
        row.erase(std::unique(row.begin(), row.end()), row.end());
      }
      links->columns.insert(links->columns.end(), row.begin(), row.end());
      links->starts.push_back(static_cast<i64>(links->columns.size()));
    }
  return links;
}

// The shuffle runs over places in the list of free blocks; only what a step moved is written down.
std::vector<i64> BlockLinker::draw(i64 r, i64 nb, const std::vector<i64>& global, RngKey key) const {
  const i64 last = o_.causal ? r : nb;  // candidates are [0, last)
  std::vector<i64> covered = global;
  for (i64 c = std::max<i64>(0, r - o_.window); c <= std::min(nb - 1, r + o_.window); ++c) covered.push_back(c);
  if (o_.skip_own) covered.push_back(r);
  std::sort(covered.begin(), covered.end());
  covered.erase(std::unique(covered.begin(), covered.end()), covered.end());
  std::erase_if(covered, [&](i64 c) { return c >= last; });
  const i64 free = last - static_cast<i64>(covered.size());
  std::map<i64, i64> moved;
  const auto at = [&](i64 place) {
    const auto it = moved.find(place);
    return it == moved.end() ? place : it->second;
  };
  std::vector<i64> out;
  for (i64 t = 0; t < std::min(o_.num_random, free); ++t) {
    const i64 other = t + static_cast<i64>(key.below(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(free - t)));
    i64 block = at(other);
    moved[other] = at(t);
    for (i64 c : covered) block += c <= block;
    out.push_back(block);
  }
  return out;
}

std::shared_ptr<const BlockLinks> BlockLinker::drawn(i64 heads, i64 nb, RngKey key) const {
  constexpr std::size_t kMost = 64;
  const std::lock_guard lock(mutex_);
  auto& made = made_[{key.value(), nb}];
  if (made) return made;
  auto links = link(heads, nb, [&](i64 h, i64 r, const std::vector<i64>& global) {
    return draw(r, nb, global,
                key.fold_in(static_cast<std::uint64_t>(h)).fold_in(static_cast<std::uint64_t>(nb)).fold_in(static_cast<std::uint64_t>(r)));
  });
  if (made_.size() > kMost) made_.clear();
  return made_[{key.value(), nb}] = std::move(links);
}

std::shared_ptr<const BlockLinks> BlockLinker::given(const char* who, i64 heads, i64 nb, const Tensor& rand_blocks) const {
  if (rand_blocks.dtype() != DType::I64 || rand_blocks.rank() != 3 || rand_blocks.dim(0) != heads || rand_blocks.dim(1) != nb)
    throw ShapeError(fmt::format("[{}] rand_blocks is {} {}, expected i64 [{}, {}, r]", who, name_of(rand_blocks.dtype()),
                                 rand_blocks.shape().str(), heads, nb));
  const Tensor t = rand_blocks.to_contiguous();
  const i64 n = t.dim(2);
  return link(heads, nb, [&](i64 h, i64 r, const std::vector<i64>&) {
    const i64* from = t.ptr<i64>() + (h * nb + r) * n;
    for (i64 x = 0; x < n; ++x)
      if (from[x] < -1 || from[x] >= nb)
        throw ShapeError(fmt::format("[{}] rand_blocks holds {}, expected -1 to {}", who, from[x], nb - 1));
    return std::vector<i64>(from, from + n);
  });
}

kernels::Pattern::Cover BlockPattern::cover(i64, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const {
  if (q1 <= external_ || k1 <= external_) return Cover::Full;
  if (q0 < external_ || k0 < external_) return Cover::Partial;
  const i64 c0 = block_of(k0), c1 = block_of(k1 - 1);
  bool any = false, all = true;
  for (i64 r = block_of(q0); r <= block_of(q1 - 1); ++r) {
    const i64 seen = links_->seen(h, r, c0, c1);
    any = any || seen > 0;
    all = all && seen == c1 - c0 + 1;
  }
  return all ? Cover::Full : any ? Cover::Partial : Cover::None;
}

void BlockPattern::row(i64, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const {
  if (i < external_) return;
  const BlockLinks& l = *links_;
  const i64 r = block_of(i);
  if (l.global[static_cast<std::size_t>(r)]) return;
  std::fill_n(allowed, k1 - k0, std::uint8_t{0});
  const auto allow = [&](i64 from, i64 to) {  // keys [from, to)
    from = std::max(from, k0);
    if (from < std::min(to, k1)) std::fill(allowed + (from - k0), allowed + (std::min(to, k1) - k0), std::uint8_t{1});
  };
  allow(0, external_);
  if (l.window >= 0) allow(external_ + std::max<i64>(0, r - l.window) * block_, external_ + (r + l.window + 1) * block_);
  const auto end = l.columns.begin() + l.starts[static_cast<std::size_t>(h * l.count + r + 1)];
  auto c = l.columns.begin() + l.starts[static_cast<std::size_t>(h * l.count + r)];
  if (k0 > external_) c = std::lower_bound(c, end, block_of(k0));
  for (; c != end && external_ + *c * block_ < k1; ++c) allow(external_ + *c * block_, external_ + (*c + 1) * block_);
}

void BlockPattern::key_tiles(i64, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const {
  const BlockLinks& l = *links_;
  const std::size_t start = out.size();
  const auto add = [&](i64 from, i64 to) {  // tiles of keys [from, to)
    for (i64 t = from / tile; t * tile < std::min(to, keys); ++t) out.push_back(t);
  };
  const i64 r0 = q0 < external_ ? 0 : block_of(q0), r1 = q1 <= external_ ? -1 : block_of(q1 - 1);
  bool everything = q0 < external_;
  for (i64 r = r0; r <= r1; ++r) everything = everything || l.global[static_cast<std::size_t>(r)];
  if (everything) return add(0, keys);
  add(0, external_);
  if (l.window >= 0) add(external_ + std::max<i64>(0, r0 - l.window) * block_, external_ + (r1 + l.window + 1) * block_);
  for (i64 x = l.starts[static_cast<std::size_t>(h * l.count + r0)]; x < l.starts[static_cast<std::size_t>(h * l.count + r1 + 1)]; ++x) {
    const i64 c = l.columns[static_cast<std::size_t>(x)];
    add(external_ + c * block_, external_ + (c + 1) * block_);
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(start), out.end());
  out.erase(std::unique(out.begin() + static_cast<std::ptrdiff_t>(start), out.end()), out.end());
}

DrawKey::DrawKey(Module* owner, std::optional<i64> seed, const AttentionSpec& spec, RngKey init) {
  if (seed) {
    fixed_ = spec.place.fold_in(static_cast<std::uint64_t>(*seed));
    return;
  }
  const std::uint64_t bits = init.fold_in("draws").value();
  Tensor kept = Tensor::empty({}, DType::I64);
  std::memcpy(kept.mut_ptr<i64>(), &bits, sizeof bits);
  kept_.emplace(owner, "seed", std::move(kept));
}

RngKey DrawKey::get() const { return kept_ ? RngKey(static_cast<std::uint64_t>(*kept_->get().ptr<i64>())) : fixed_; }

}  // namespace tapeformer
