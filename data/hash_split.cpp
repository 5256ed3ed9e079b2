#include "data/hash_split.h"

#include <xxhash.h>

namespace tapeformer {

Part part_of(std::string_view name) {
  const auto tenth = XXH3_64bits(name.data(), name.size()) % 10;
  return tenth == 0 ? Part::Test : tenth == 1 ? Part::Valid : Part::Train;
}

}  // namespace tapeformer
