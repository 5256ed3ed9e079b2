// hash_split.h: which part a named thing belongs to, by a hash of its name: the same on every machine, 80 % train, 10 %
// valid, 10 % test.
#pragma once
#include "data/dataset.h"

namespace tapeformer {

Part part_of(std::string_view name);

}  // namespace tapeformer
