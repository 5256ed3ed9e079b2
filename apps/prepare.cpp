// prepare.cpp: makes data sets that a Debian machine already has, or that need nothing at all.
#include <array>
#include <filesystem>
#include <map>

#include "apps/program.h"
#include "data/dataset.h"
#include "data/debian_topics.h"
#include "data/generated_sets.h"
#include "data/listops.h"
#include "data/pathfinder.h"
#include "data/table.h"
#include "data/voice_prompts.h"
#include "train/checkpoint.h"

using namespace tapeformer;

namespace {

struct Options {
  std::string out;
  std::uint64_t seed = 1;
  i64 samples = 10000, clips = 800;
  ListopsSettings listops;
  PathfinderSettings pathfinder;
};

std::string join_numbers(const std::array<i64, 3>& numbers, std::string_view separator) {
  std::vector<std::string> texts;
  for (i64 n : numbers) texts.push_back(std::to_string(n));
  return join(texts, separator);
}

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

int listops(Options o) {
  o.listops.seed = o.seed;
  const ListopsShortcuts s = generate_listops(o.out, o.listops);
  apps::print(fmt::format(
      "{}/{{train,valid,test}}.tsv  {} expressions\nwithout any nesting, on the test part: majority {:.3f}, first token {:.3f}\n", o.out,
      join_numbers(o.listops.samples, " + "), s.majority, s.first_token));
  return 0;
}

int pathfinder(Options o) {
  o.pathfinder.seed = o.seed;
  const PathfinderShortcuts s = generate_pathfinder(o.out, o.pathfinder);
  apps::print(
      fmt::format("{}/{{train,valid,test}}-{{images-idx3,labels-idx1}}-ubyte  {} images\n"
                  "without following a curve, on the test part:      apart  connected\n"
                  "  share                                        {:>9.3f}  {:>9.3f}\n"
                  "  ink                                          {:>9.4f}  {:>9.4f}   accuracy {:.3f}\n"
                  "  distance of the circles                      {:>9.2f}  {:>9.2f}   accuracy {:.3f}\n",
                  o.out, join_numbers(o.pathfinder.samples, " + "), 1 - s.connected, s.connected, s.ink[0], s.ink[1], s.ink_accuracy,
                  s.distance[0], s.distance[1], s.distance_accuracy));
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
  const auto seeded = [&](CLI::App* c, std::array<i64, 3>& samples) {
    c->add_option("--seed", o.seed, "the same seed gives the same files")->type_name("N")->capture_default_str();
    c->add_option("--samples", samples, "for training, validation and test")->type_name("N,N,N")->delimiter(',')->capture_default_str();
  };
  CLI::App* lists = command("listops", "ListOps of Long Range Arena: the value of nested operations on lists of digits (10 classes)");
  ListopsSettings& l = o.listops;
  seeded(lists, l.samples);
  lists->add_option("--min-length", l.min_length, "expressions have more tokens")->type_name("N")->capture_default_str();
  lists->add_option("--max-length", l.max_length, "expressions have fewer tokens")->type_name("N")->capture_default_str();
  lists->add_option("--max-depth", l.max_depth, "nodes from the root to a digit, both counted")->type_name("N")->capture_default_str();
  lists->add_option("--max-args", l.max_args, "most arguments of an operation")->type_name("N")->capture_default_str();
  lists->add_flag("--parentheses", l.parentheses, "with the redundant parentheses of the original files");
  CLI::App* paths = command("pathfinder", "Pathfinder-style images: whether one dashed curve joins the two circles (2 classes)");
  PathfinderSettings& p = o.pathfinder;
  seeded(paths, p.samples);
  paths->add_option("--size", p.size, "height and width in pixels")->type_name("N")->capture_default_str();
  paths->add_option("--contour", p.contour, "dashes of a long curve: 6 easy, 9 intermediate, 14 hard")
      ->type_name("N")
      ->capture_default_str();
  paths->add_option("--distance", p.distance, "pixels between the starts of the two long curves")->type_name("N")->capture_default_str();
  paths->add_option("--distractors", p.distractors, "short curves of contour / 3 dashes; -1: 20 / (contour / 3)")
      ->type_name("N")
      ->capture_default_str();
  paths->add_option("--continuity", p.continuity, "larger: straighter curves")->type_name("X")->capture_default_str();
  app.require_subcommand(1);
  app.set_version_flag("--version", "prepare (tapeformer " + build_version() + ")");
  app.footer(R"(Examples:
  prepare debian-topics --out runs/data/topics
  prepare voice-prompts --out runs/data/voices
  prepare generated --out runs/data/generated --seed 7 --samples 2000 --clips 0
  prepare listops --out runs/data/listops --samples 96000,2000,2000
  prepare listops --out runs/data/listops-small --samples 20000,2000,2000 --min-length 20 --max-length 100 --max-depth 5 --max-args 5
  prepare pathfinder --out runs/data/pathfinder --samples 16000,2000,2000 --contour 6
debian-topics reads the package lists of apt (apt-get -o Acquire::Languages=en update fetches the long descriptions).
voice-prompts reads the installed packages asterisk-core-sounds-{en,es,fr,it,ru}-wav.)");
  return apps::run_program(app, argc, argv, [&] {
    if (topics->parsed()) return debian(o);
    if (prompts->parsed()) return voices(o);
    if (lists->parsed()) return listops(o);
    if (paths->parsed()) return pathfinder(o);
    return generated(o);
  });
}
