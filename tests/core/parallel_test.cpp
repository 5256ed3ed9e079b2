#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "core/error.h"

namespace tapeformer {
namespace {

class Threads {  // restores the count
 public:
  explicit Threads(int n) : before_(thread_count()) { set_thread_count(n); }
  ~Threads() { set_thread_count(before_); }
  Threads(const Threads&) = delete;

 private:
  int before_;
};

TEST(ParallelFor, ChunksComeFromTheShapeAlone) {
  for (int threads : {1, 2, 3, 8}) {
    const Threads scope(threads);
    for (i64 n : {0, 1, 9, 10, 11, 100, 1003}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
      std::atomic<bool> aligned{true};
      parallel_for(n, 10, [&](i64 begin, i64 end) {
        if (begin % 10 != 0 || end != std::min(n, begin + 10)) aligned = false;
        for (i64 i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
      });
      EXPECT_TRUE(aligned);
      for (const auto& count : seen) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ParallelFor, AGrainBelowOneIsOne) {
  std::atomic<int> chunks{0};
  parallel_for(5, 0, [&](i64 begin, i64 end) { chunks += static_cast<int>(end - begin); });
  parallel_for(5, -3, [&](i64 begin, i64 end) { chunks += static_cast<int>(end - begin); });
  EXPECT_EQ(chunks, 10);
}

TEST(ParallelFor, AnExceptionReachesTheCaller) {
  for (int threads : {1, 4}) {
    const Threads scope(threads);
    std::atomic<int> ran{0};
    const auto work = [&](i64 begin, i64) {
      ++ran;
      if (begin == 30) throw ShapeError("chunk 3");
    };
    try {
      parallel_for(100, 10, work);
      FAIL() << "no exception";
    } catch (const ShapeError& e) {
      EXPECT_STREQ(e.what(), "chunk 3");
    }
    if (threads > 1) EXPECT_EQ(ran, 10);  // the others ended first
    ran = 0;
    parallel_for(100, 10, [&](i64, i64) { ++ran; });  // the next loop is not disturbed
    EXPECT_EQ(ran, 10);
  }
}

TEST(ParallelFor, NestedLoopsRunOnTheirOwnThread) {
  const Threads scope(4);
  std::atomic<bool> moved{false};
  std::atomic<i64> sum{0};
  parallel_for(8, 1, [&](i64 i, i64) {
    const auto self = std::this_thread::get_id();
    parallel_for(100, 7, [&](i64 begin, i64 end) {
      if (std::this_thread::get_id() != self) moved = true;
      for (i64 k = begin; k < end; ++k) sum += i * k;
    });
  });
  EXPECT_FALSE(moved);
  EXPECT_EQ(sum, 28 * 4950);
}

TEST(ParallelReduce, SameBitsForAnyThreadCount) {
  const auto sum = [] {
    return parallel_reduce(
        100000, 1000, 0.0f,
        [](i64 begin, i64 end) {
          float s = 0;
          for (i64 i = begin; i < end; ++i) s += 1.0f / static_cast<float>(i + 1);
          return s;
        },
        [](float a, float b) { return a + b; });
  };
  std::set<float> results;
  for (int threads : {1, 2, 3, 5, 8}) {
    const Threads scope(threads);
    results.insert(sum());
  }
  EXPECT_EQ(results.size(), 1u);
  EXPECT_NEAR(*results.begin(), 12.0901, 1e-3);
  EXPECT_EQ(parallel_reduce(
                0, 10, 7, [](i64, i64) { return 1; }, [](int a, int b) { return a + b; }),
            7);
}

TEST(ThreadCount, RefusesLessThanOne) {
  try {
    set_thread_count(0);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "threads: got 0, expected at least 1");
  }
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace tapeformer
