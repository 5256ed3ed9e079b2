#include "core/storage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/rng.h"
#include "core/tensor.h"

namespace tapeformer {
namespace {

TEST(Storage, AlignedAndCounted) {
  const std::size_t before = memory::stats().live;
  {
    std::vector<std::unique_ptr<Storage>> all;
    for (std::size_t bytes : {0, 1, 63, 64, 65, 100000}) {
      all.push_back(std::make_unique<Storage>(bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.back()->data()) % 64, 0u);
      EXPECT_EQ(all.back()->bytes(), bytes);
    }
    EXPECT_EQ(memory::stats().live - before, 64u + 64 + 64 + 64 + 128 + 100032);
  }
  EXPECT_EQ(memory::stats().live, before);
}

TEST(Storage, PeakFollowsTheMost) {
  memory::reset_peak();
  const std::size_t live = memory::stats().live;
  { const Storage a(6400), b(12800); }
  const Storage c(64);
  EXPECT_EQ(memory::stats().peak, live + 19200);
  memory::reset_peak();
  EXPECT_EQ(memory::stats().peak, memory::stats().live);
}

#ifndef TAPEFORMER_SANITIZED
TEST(Storage, FreedNeighboursMergeInAnyOrder) {
  const std::size_t size = 1 << 20;
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {0, 2, 1, 3}}) {
    std::vector<std::unique_ptr<Storage>> parts;
    for (int i = 0; i < 4; ++i) parts.push_back(std::make_unique<Storage>(size));
    const std::byte* start = parts[0]->data();
    bool neighbours = true;
    for (int i = 1; i < 4; ++i)
      neighbours = neighbours && parts[static_cast<std::size_t>(i)]->data() == start + size * static_cast<std::size_t>(i);
    ASSERT_TRUE(neighbours);
    for (int i : order) parts[static_cast<std::size_t>(i)].reset();
    const std::size_t reserved = memory::stats().reserved;
    const Storage whole(4 * size);
    EXPECT_EQ(whole.data(), start);
    EXPECT_EQ(memory::stats().reserved, reserved);
  }
}

TEST(Storage, ARepeatedStepTakesNothingNew) {
  const auto step = [] {
    std::vector<Tensor> kept;
    for (i64 i = 1; i < 200; ++i) {
      const Tensor scratch = Tensor::empty({i * 37 % 1000, 50});
      kept.push_back(Tensor::empty({i * 91 % 700, 20}));
      if (i % 3 == 0) kept.erase(kept.begin());
    }
  };
  for (int i = 0; i < 3; ++i) step();  // the second may still find its blocks cut differently than the first left them
  const memory::Stats first = memory::stats();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(memory::stats().growths, first.growths);
  EXPECT_EQ(memory::stats().reserved, first.reserved);
}
#endif

TEST(Storage, BlocksNeverOverlap) {  // random life times; every block keeps its own pattern
  struct Block {
    std::unique_ptr<Storage> s;
    unsigned char fill;
  };
  std::vector<Block> blocks;
  const RngKey key(3);
  for (std::uint64_t i = 0; i < 4000; ++i) {
    if (blocks.size() < 60 || key.below(3 * i, 2)) {
      blocks.push_back({std::make_unique<Storage>(key.below(3 * i + 1, 5000)), static_cast<unsigned char>(i)});
      if (blocks.back().s->bytes()) std::memset(blocks.back().s->data(), blocks.back().fill, blocks.back().s->bytes());
    } else {
      const std::size_t at = key.below(3 * i + 2, blocks.size());
      const Block& b = blocks[at];
      for (std::size_t k = 0; k < b.s->bytes(); ++k) ASSERT_EQ(static_cast<unsigned char>(b.s->data()[k]), b.fill);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

TEST(Storage, ThreadsAllocateTogether) {
  const std::size_t before = memory::stats().live;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 2000; ++i) {
        Storage s(static_cast<std::size_t>(64 + (i * 131 + t) % 4096));
        std::memset(s.data(), t, s.bytes());
        ASSERT_EQ(static_cast<int>(s.data()[s.bytes() - 1]), t);
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(memory::stats().live, before);
}

TEST(Storage, HookSeesEverySize) {
  std::vector<std::size_t> sizes;
  memory::set_allocation_hook([&](std::size_t bytes) { sizes.push_back(bytes); });
  { const Tensor a = Tensor::empty({10}), b = Tensor::empty({3, 3}, DType::F64), c = a.clone().slice(0, 1, 2); }
  memory::set_allocation_hook(nullptr);
  { const Storage unseen(1000); }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{40, 72, 40}));
}

TEST(Storage, AHookMayRefuse) {
  memory::set_allocation_hook([](std::size_t bytes) {
    if (bytes > 1000) throw std::runtime_error("too large");
  });
  EXPECT_THROW(Tensor::empty({1000}), std::runtime_error);
  EXPECT_NO_THROW(Tensor::empty({100}));
  memory::set_allocation_hook(nullptr);
  EXPECT_NO_THROW(Tensor::empty({1000}));
}

TEST(Storage, PoisonIsNan) {
  for (DType t : {DType::F32, DType::F64, DType::BF16})
    for (double x : Tensor::empty({50}, t).to_vector()) ASSERT_TRUE(std::isnan(x));
  for (double x : Tensor::zeros({50}).to_vector()) ASSERT_EQ(x, 0);
}

}  // namespace
}  // namespace tapeformer
