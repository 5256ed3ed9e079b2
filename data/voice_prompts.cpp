#include "data/voice_prompts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "core/hdf5_file.h"
#include "data/audio_file.h"
#include "data/command.h"
#include "data/hash_split.h"

namespace tapeformer {
namespace {

constexpr std::array kLanguages{"en", "es", "fr", "it", "ru"};
constexpr std::string_view kSounds = "/usr/share/asterisk/sounds/";

struct Prompt {
  std::string path, language, name;  // name: "digits/1.wav", without the language's folder
};

std::vector<Prompt> prompts_of(const std::string& language) {
  std::vector<Prompt> out;
  each_output_line(fmt::format("dpkg -L asterisk-core-sounds-{}-wav 2>/dev/null || true", language), [&](const std::string& path) {
    if (!path.starts_with(kSounds) || !path.ends_with(".wav")) return;
    const auto folder_end = path.find('/', kSounds.size());
    if (folder_end == std::string::npos || !std::filesystem::is_regular_file(path)) return;
    Prompt p{path, language, path.substr(folder_end + 1)};
    if (!p.name.starts_with("silence/")) out.push_back(std::move(p));
  });
  std::sort(out.begin(), out.end(), [](const Prompt& a, const Prompt& b) { return a.path < b.path; });
  return out;
}

}  // namespace

PromptCounts voice_prompts(const std::string& out_dir) {
  PromptCounts counts;
  std::map<Part, std::string> tsv;
  for (const char* language : kLanguages)
    for (const Prompt& p : prompts_of(language)) {
      if (audio_frames(p.path) == 0) {
        ++counts.empty;
        continue;
      }
      const Part part = part_of(p.name);
      tsv[part] += fmt::format("{}\t{}\t{}\n", p.path, p.language, p.name);
      ++(part == Part::Train ? counts.train : part == Part::Valid ? counts.valid : counts.test);
    }
  if (tsv.empty())
    throw IoError(
        "no voice prompts are installed; `apt-get install asterisk-core-sounds-en-wav asterisk-core-sounds-es-wav "
        "asterisk-core-sounds-fr-wav asterisk-core-sounds-it-wav asterisk-core-sounds-ru-wav` fetches them");
  std::filesystem::create_directories(out_dir);
  for (Part part : {Part::Train, Part::Valid, Part::Test})
    write_file_atomically((std::filesystem::path(out_dir) / fmt::format("{}.tsv", name_of(part))).string(),
                          "path\tlabel\tprompt\n" + tsv[part]);
  return counts;
}

}  // namespace tapeformer
