// Every test program fills new memory with NaN, so that a kernel that reads what it never wrote fails.
#include <gtest/gtest.h>

#include "core/storage.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tapeformer::memory::set_poison(true);
  return RUN_ALL_TESTS();
}
