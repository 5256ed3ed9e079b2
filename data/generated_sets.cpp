#include "data/generated_sets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <vector>

#include "core/hdf5_file.h"
#include "data/dataset.h"
#include "data/draws.h"

namespace tapeformer {
namespace {

constexpr std::array kAnimals{"cat", "dog", "owl", "fox", "hen", "cow", "bee", "elk"};
constexpr std::array kColours{"red", "blue", "green", "white"};
constexpr std::array kSizes{"", "big ", "small ", "old "};
constexpr std::array kPitches{"rising", "falling", "steady", "warbling"};
constexpr i64 kRate = 8000;

Part part_of_sample(i64 i, i64 samples) { return i * 10 < samples * 8 ? Part::Train : i * 10 < samples * 9 ? Part::Valid : Part::Test; }

void check_size(i64 samples) {
  if (samples < 10) throw ConfigError(fmt::format("samples: got {}, expected at least 10", samples));
}

void write_parts(const std::string& dir, const char* ending, const std::string& header, const std::map<Part, std::string>& rows) {
  for (const auto& [part, text] : rows)
    write_file_atomically((std::filesystem::path(dir) / fmt::format("{}.{}", name_of(part), ending)).string(), header + text);
}

std::string sentence(Draws draw, std::string& label) {
  std::array<std::size_t, kAnimals.size()> order{};
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[static_cast<std::size_t>(draw.below(static_cast<i64>(i) + 1))]);
  const i64 count = 2 + draw.below(4), asked = draw.below(count);
  std::string text;
  for (i64 i = 0; i < count; ++i) {
    const char* colour = kColours[static_cast<std::size_t>(draw.below(kColours.size()))];
    if (i > 0) text += i + 1 == count ? " and " : ", ";
    text += fmt::format("a {}{} {}", kSizes[static_cast<std::size_t>(draw.below(kSizes.size()))], colour,
                        kAnimals[order[static_cast<std::size_t>(i)]]);
    if (i == asked) label = colour;
  }
  return text + fmt::format(". the {} is", kAnimals[order[static_cast<std::size_t>(asked)]]);
}

// Mono, 16 bits.
std::string wave_file(const std::vector<float>& samples) {
  std::string out;
  const auto number = [&](std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
  };
  const auto bytes = static_cast<std::uint32_t>(2 * samples.size());
  out += "RIFF";
  number(36 + bytes, 4);
  out += "WAVEfmt ";
  number(16, 4);
  number(1, 2);  // PCM
  number(1, 2);  // channels
  number(kRate, 4);
  number(2 * kRate, 4);
  number(2, 2);
  number(16, 2);
  out += "data";
  number(bytes, 4);
  for (float s : samples) number(static_cast<std::uint16_t>(static_cast<std::int16_t>(std::lround(std::clamp(s, -1.0f, 1.0f) * 32000))), 2);
  return out;
}

std::vector<float> sound(Draws draw, std::size_t pitch) {
  const double seconds = draw.between(0.3, 0.8), loud = draw.between(0.1, 0.5), noise = draw.between(0.01, 0.1);
  const double middle = draw.between(400, 1200), ratio = draw.between(1.3, 2), rate = draw.between(4, 9);
  std::vector<float> out(static_cast<std::size_t>(seconds * kRate));
  double phase = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double t = static_cast<double>(i) / static_cast<double>(out.size());  // 0 to 1
    const double octave = pitch == 0   ? t - 0.5
                          : pitch == 1 ? 0.5 - t
                          : pitch == 2 ? 0
                                       : 0.3 * std::sin(2 * std::numbers::pi * rate * t * seconds);
    phase += 2 * std::numbers::pi * middle * std::pow(ratio, octave) / kRate;
    out[i] = static_cast<float>(loud * std::sin(phase) + noise * draw.normal());
  }
  return out;
}

}  // namespace

void generated_text(const std::string& out_dir, std::uint64_t seed, i64 samples) {
  check_size(samples);
  std::filesystem::create_directories(out_dir);
  const RngKey key = RngKey(seed).fold_in("generated_text");
  std::map<Part, std::string> rows;
  for (i64 i = 0; i < samples; ++i) {
    std::string label;
    const std::string text = sentence(Draws(key.fold_in(static_cast<std::uint64_t>(i))), label);
    rows[part_of_sample(i, samples)] += fmt::format("{},\"{}\"\n", label, text);
  }
  write_parts(out_dir, "csv", "label,text\n", rows);
}

void generated_sound(const std::string& out_dir, std::uint64_t seed, i64 samples) {
  check_size(samples);
  const std::filesystem::path clips = std::filesystem::path(out_dir) / "clips";
  std::filesystem::create_directories(clips);
  const RngKey key = RngKey(seed).fold_in("generated_sound");
  std::map<Part, std::string> rows;
  for (i64 i = 0; i < samples; ++i) {
    const RngKey own = key.fold_in(static_cast<std::uint64_t>(i));
    const auto pitch = static_cast<std::size_t>(own.fold_in("label").below(0, kPitches.size()));
    const std::string name = fmt::format("{:05}.wav", i);
    write_file_atomically((clips / name).string(), wave_file(sound(Draws(own), pitch)));
    rows[part_of_sample(i, samples)] += fmt::format("clips/{}\t{}\n", name, kPitches[pitch]);
  }
  write_parts(out_dir, "tsv", "path\tlabel\n", rows);
}

}  // namespace tapeformer
