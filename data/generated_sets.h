// generated_sets.h: two small sets that need no download, for trying things out: sentences whose label can only be
// found by looking a word up elsewhere in the sentence, and short sounds labelled by how their pitch moves. The same
// seed gives the same files.
#pragma once
#include <cstdint>
#include <string>

#include "core/shape.h"

namespace tapeformer {

// <out_dir>/{train,valid,test}.csv: "a red cat, a blue dog and a green owl. the dog is" -> blue. 80 % train, 10 %
// valid, 10 % test. ConfigError when samples < 10.
void generated_text(const std::string& out_dir, std::uint64_t seed, i64 samples);

// <out_dir>/{train,valid,test}.tsv (path, label) and <out_dir>/clips/*.wav: 8 kHz, 0.3 to 0.8 s, with noise; the pitch
// is rising, falling, steady or warbling.
void generated_sound(const std::string& out_dir, std::uint64_t seed, i64 samples);

}  // namespace tapeformer
