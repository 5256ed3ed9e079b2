// prepare.cpp: makes data sets that a Debian machine already has, or that need nothing at all.
#include <filesystem>
#include <map>

#include "apps/program.h"
#include "data/dataset.h"
#include "data/debian_topics.h"
#include "data/generated_sets.h"
#include "data/table.h"
#include "data/voice_prompts.h"
#include "train/checkpoint.h"

using namespace tapeformer;

namespace {

struct Options {
  std::string out;
  std::uint64_t seed = 1;
  i64 samples = 10000, clips = 800;
};

// Rows by class and part, and the share of the most frequent class of the test part.
std::string counts(const std::string& dir, const std::string& ending) {
  const std::vector<Part> parts{Part::Train, Part::Valid, Part::Test};
  std::map<std::string, std::map<Part, i64>> by_class;
  std::map<Part, i64> total, most;
  for (Part part : parts) {
    const std::string file = fmt::format("{}/{}.{}", dir, name_of(part), ending);
    const Table table = read_table(file, table_format(file, "auto"), {"label"});
    const std::size_t label = table.column("label");
    for (const TableRow& row : table.rows) {
      ++total[part];
      most[part] = std::max(most[part], ++by_class[row.fields.at(label)][part]);
    }
  }
  std::string text = fmt::format("{}/{{train,valid,test}}.{}\n  {:<12}{:>8}{:>8}{:>8}\n", dir, ending, "class", "train", "valid", "test");
  const auto line = [&](const std::string& name, std::map<Part, i64>& n) {
    text += fmt::format("  {:<12}{:>8}{:>8}{:>8}\n", name, n[Part::Train], n[Part::Valid], n[Part::Test]);
  };
  for (auto& [name, n] : by_class) line(name, n);
  line("all", total);
  const auto share = [&](Part p) { return total[p] > 0 ? static_cast<double>(most[p]) / static_cast<double>(total[p]) : 0.0; };
  return text + fmt::format("  {:<12}{:>8.3f}{:>8.3f}{:>8.3f}   share of the largest class\n", "majority", share(Part::Train),
                            share(Part::Valid), share(Part::Test));
}

int debian(const Options& o) {
  const DebianTopics sets = debian_topics(o.out);
  apps::print(counts(o.out + "/short", "csv"));
  if (sets.long_texts.train > 0)
    apps::print(counts(o.out + "/long", "csv"));
  else
    apps::print("no long descriptions: `apt-get -o Acquire::Languages=en update` fetches them\n");
  return 0;
}

int voices(const Options& o) {
  const PromptCounts n = voice_prompts(o.out);
  apps::print(counts(o.out, "tsv"));
  if (n.empty > 0) apps::print(fmt::format("  {} file(s) without a sample were left out\n", n.empty));
  return 0;
}

int generated(const Options& o) {
  if (o.samples > 0) {
    generated_text(o.out + "/text", o.seed, o.samples);
    apps::print(counts(o.out + "/text", "csv"));
  }
  if (o.clips > 0) {
    generated_sound(o.out + "/sound", o.seed, o.clips);
    apps::print(counts(o.out + "/sound", "tsv"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Makes data sets for trying things out, split into training, validation and test parts.", "prepare");
  Options o;
  const auto command = [&](const char* name, const char* help) {
    CLI::App* c = app.add_subcommand(name, help);
    c->add_option("--out", o.out, "folder to write to; made when absent")->required()->type_name("DIR");
    return c;
  };
  CLI::App* topics =
      command("debian-topics", "text: the archive section of Debian packages (8 topics) from their short and long descriptions");
  CLI::App* prompts = command("voice-prompts", "sound: which of five languages a telephone voice prompt is in (one speaker a language)");
  CLI::App* made =
      command("generated", "sentences that ask back (4 classes) and tones whose pitch moves (4 classes); needs no other files");
  made->add_option("--seed", o.seed, "the same seed gives the same files")->type_name("N")->capture_default_str();
  made->add_option("--samples", o.samples, "sentences; 0 = no text")->type_name("N")->check(CLI::Range(0, 1 << 24))->capture_default_str();
  made->add_option("--clips", o.clips, "tones; 0 = no sound")->type_name("N")->check(CLI::Range(0, 1 << 24))->capture_default_str();
  app.require_subcommand(1);
  app.set_version_flag("--version", "prepare (tapeformer " + build_version() + ")");
  app.footer(R"(Examples:
  prepare debian-topics --out runs/data/topics
  prepare voice-prompts --out runs/data/voices
  prepare generated --out runs/data/generated --seed 7 --samples 2000 --clips 0
debian-topics reads the package lists of apt (apt-get -o Acquire::Languages=en update fetches the long descriptions).
voice-prompts reads the installed packages asterisk-core-sounds-{en,es,fr,it,ru}-wav.)");
  return apps::run_program(app, argc, argv, [&] {
    return topics->parsed() ? debian(o) : prompts->parsed() ? voices(o) : made->parsed() ? generated(o) : 2;
  });
}
