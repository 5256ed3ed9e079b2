#include "attention/globals.h"

#include <numeric>

namespace tapeformer {
namespace {

const Tensor& side_of(const char* who, const char* name, const Tensor& t, DType type, i64 B, i64 N) {
  if (t.dtype() != type || t.shape() != Shape{B, N})
    throw ShapeError(
        fmt::format("[{}] {} is {} {}, expected {} {}", who, name, name_of(t.dtype()), t.shape().str(), name_of(type), Shape{B, N}.str()));
  return t;
}

}  // namespace

Globals::Globals(const char* who, const std::vector<i64>& positions, const std::vector<i64>& ids, const AttentionInput& in) {
  const i64 B = in.any().dim(0), N = in.any().dim(-2);
  Tensor marks = Tensor::zeros({B, N}, DType::U8);
  std::uint8_t* mark = marks.mut_ptr<std::uint8_t>();
  for (i64 p : positions) {
    if (p < 0) p += N;
    for (i64 b = 0; b < B && p >= 0 && p < N; ++b) mark[b * N + p] = 1;
  }
  if (!ids.empty()) {
    const Tensor* tokens = in.find("token_ids");
    if (tokens == nullptr) throw ShapeError(fmt::format("[{}] global_token_ids needs the side input token_ids", who));
    const Tensor t = side_of(who, "token_ids", *tokens, DType::I64, B, N).to_contiguous();
    for (i64 x = 0; x < B * N; ++x) mark[x] |= std::find(ids.begin(), ids.end(), t.ptr<i64>()[x]) != ids.end();
  }
  if (const Tensor* gmask = in.find("gmask")) {
    const Tensor t = side_of(who, "gmask", *gmask, DType::U8, B, N).to_contiguous();
    for (i64 x = 0; x < B * N; ++x) mark[x] |= t.ptr<std::uint8_t>()[x] != 0;
  }
  const Tensor mask = in.mask.defined() ? side_of(who, "mask", in.mask, DType::U8, B, N).to_contiguous() : Tensor();
  at_.resize(static_cast<std::size_t>(B));
  for (i64 x = 0; x < B * N; ++x) {
    if (mark[x] && (!mask.defined() || mask.ptr<std::uint8_t>()[x])) at_[static_cast<std::size_t>(x / N)].push_back(x % N);
  }
}

i64 Globals::most() const {
  std::size_t n = 0;
  for (const auto& sample : at_) n = std::max(n, sample.size());
  return static_cast<i64>(n);
}

Tensor Globals::index() const {
  const i64 n = most();
  Tensor out = Tensor::full({samples(), n}, -1, DType::I64);
  for (i64 b = 0; b < samples(); ++b) std::copy(of(b).begin(), of(b).end(), out.mut_ptr<i64>() + b * n);
  return out;
}

kernels::Pattern::Cover GlobalPattern::cover(i64 b, i64, i64 q0, i64 q1, i64 k0, i64 k1) const {
  const i64 rows = globals_.count(b, q0, q1), keys = globals_.count(b, k0, k1);
  if (rows == q1 - q0 || keys == k1 - k0) return Cover::Full;
  const bool self = self_ && q0 < k1 && k0 < q1;
  return rows > 0 || keys > 0 || self ? Cover::Partial : Cover::None;
}

void GlobalPattern::row(i64 b, i64, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const {
  if (globals_.has(b, i)) return;
  std::fill_n(allowed, k1 - k0, std::uint8_t{0});
  const std::vector<i64>& all = globals_.of(b);
  for (auto j = std::lower_bound(all.begin(), all.end(), k0); j != all.end() && *j < k1; ++j) allowed[*j - k0] = 1;
  if (self_ && i >= k0 && i < k1) allowed[i - k0] = 1;
}

void GlobalPattern::key_tiles(i64 b, i64, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const {
  const std::size_t start = out.size();
  if (globals_.count(b, q0, q1) > 0) {
    out.resize(start + static_cast<std::size_t>((keys + tile - 1) / tile));
    std::iota(out.begin() + static_cast<std::ptrdiff_t>(start), out.end(), i64{0});
    return;
  }
  for (i64 j : globals_.of(b)) {
    if (out.size() == start || out.back() != j / tile) out.push_back(j / tile);
  }
  if (!self_) return;
  const auto middle = static_cast<std::ptrdiff_t>(out.size());
  for (i64 t = q0 / tile; t * tile < std::min(q1, keys); ++t) out.push_back(t);
  const auto first = out.begin() + static_cast<std::ptrdiff_t>(start);
  std::inplace_merge(first, out.begin() + middle, out.end());
  out.erase(std::unique(first, out.end()), out.end());
}

}  // namespace tapeformer
