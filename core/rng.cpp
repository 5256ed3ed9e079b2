#include "core/rng.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/parallel.h"

namespace tapeformer {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0], p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

namespace {

std::array<std::uint32_t, 4> block(std::uint64_t key, std::uint64_t index, std::uint32_t stream) {
  return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), stream, 0},
                    {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
}

std::uint64_t join_words(std::uint32_t low, std::uint32_t high) { return low | (std::uint64_t{high} << 32); }

}  // namespace

RngKey RngKey::fold_in(std::uint64_t x) const {
  const auto b = block(key_, x, 1);
  return RngKey(join_words(b[0], b[1]));
}

RngKey RngKey::fold_in(std::string_view text) const {
  std::uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
  const auto b = block(key_, h, 2);
  return RngKey(join_words(b[0], b[1]));
}

std::uint64_t RngKey::bits(std::uint64_t i) const {
  const auto b = block(key_, i >> 1, 0);
  return i & 1 ? join_words(b[2], b[3]) : join_words(b[0], b[1]);
}

std::uint32_t RngKey::bits32(std::uint64_t i) const { return block(key_, i >> 2, 3)[i & 3]; }

double RngKey::uniform(std::uint64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1.0p-53; }

double RngKey::normal(std::uint64_t i) const {  // Box-Muller on one block
  const auto b = block(key_, i, 4);
  const double u = (static_cast<double>(join_words(b[0], b[1]) >> 11) + 0.5) * 0x1.0p-53;
  const double v = static_cast<double>(join_words(b[2], b[3]) >> 11) * 0x1.0p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

std::uint64_t RngKey::below(std::uint64_t i, std::uint64_t n) const {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits(i)) * n) >> 64);
}

namespace {

template <class F>
void fill(Tensor& t, F&& value) {
  TAPEFORMER_ASSERT(t.contiguous(), "random fill of a strided view");
  const auto run = [&](auto* p) {
    parallel_for(t.numel(), 4096, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) p[i] = static_cast<std::remove_reference_t<decltype(*p)>>(value(i));
    });
  };
  if (t.dtype() == DType::F64)
    run(t.mut_ptr<double>());
  else
    run(t.mut_ptr<float>());
}

}  // namespace

void fill_uniform(Tensor& t, RngKey key, double low, double high) {
  fill(t, [&](i64 i) { return low + (high - low) * key.uniform(static_cast<std::uint64_t>(i)); });
}

void fill_normal(Tensor& t, RngKey key, double mean, double stddev) {
  fill(t, [&](i64 i) { return mean + stddev * key.normal(static_cast<std::uint64_t>(i)); });
}

KeyedPermutation::KeyedPermutation(std::uint64_t n, RngKey key) : n_(n), half_bits_(1), key_(key) {
  while ((std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
}

std::uint64_t KeyedPermutation::round_trip(std::uint64_t i) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = i >> half_bits_, right = i & mask;
  for (std::uint64_t round = 0; round < 6; ++round) {
    const std::uint64_t next = left ^ (key_.bits32((round << 40) | right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t KeyedPermutation::operator()(std::uint64_t i) const {
  do i = round_trip(i);
  while (i >= n_);
  return i;
}

}  // namespace tapeformer
