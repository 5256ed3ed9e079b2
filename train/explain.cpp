// explain.cpp: --explain, from the registries: a newly registered type explains itself.
#include <functional>
#include <map>

#include "attention/attention.h"
#include "data/dataset.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/config.h"

namespace tapeformer {
namespace {

struct Group {  // "optim": its types and what each is
  std::string what;
  std::vector<std::string> types;
  std::function<std::string(const std::string&)> summary, help;
};

std::string no_summary(const std::string&) { return ""; }

std::string explain_attention(const std::string& type) {
  const AttentionEntry& e = attention_registry().get(type);
  const auto line = [](const char* what, const char* text) { return *text ? fmt::format("{:<8} {}\n", what, text) : std::string(); };
  return line("formula", e.info.formula) + line("paper", e.info.paper) + line("cost", e.info.cost) + line("example", e.info.example) +
         fmt::format("{:<8} {}\n", "causal", e.info.causal ? "yes" : "no") + format_help(e.explain());
}

std::map<std::string, Group> groups() {
  std::map<std::string, Group> g;
  g["data"] = {"kinds of data", data_types(), no_summary, [](const std::string& t) { return explain_data_config(t); }};
  g["model"] = {"models", model_registry().names(), [](const std::string& t) { return model_registry().get(t).summary; },
                [](const std::string& t) { return format_help(model_registry().get(t).explain()); }};
  g["optim"] = {"optimizers", optimizer_registry().names(), [](const std::string& t) { return optimizer_registry().get(t).summary; },
                [](const std::string& t) { return format_help(optimizer_registry().get(t).explain()); }};
  g["schedule"] = {"schedules", schedule_registry().names(), [](const std::string& t) { return schedule_registry().get(t).summary; },
                   [](const std::string& t) { return format_help(schedule_registry().get(t).explain()); }};
  g["attention"] = {"attention variants, for model.attention", attention_registry().names(),
                    [](const std::string& t) { return std::string(attention_registry().get(t).info.summary); }, explain_attention};
  return g;
}

std::string list(const std::string& name, const Group& g) {
  std::string out = fmt::format("{}: {} (type: NAME). More: --explain {}.NAME\n", name, g.what, name);
  for (const std::string& t : g.types) out += fmt::format("  {:<20} {}\n", t, g.summary(t));
  return out;
}

std::string overview() {
  std::string out = "A configuration has the keys seed, threads, data, model, optim, schedule, train.\n\n";
  for (const auto& [name, g] : groups()) out += list(name, g);
  return out + "\ntrain: the loop\n" + format_help(explain_config<TrainConfig>("train."));
}

// The lines of a help text about one key.
std::string only(const std::string& text, const std::string& key, const std::string& asked, std::vector<std::string>& known) {
  std::string out;
  std::size_t start = 0;
  const std::string parent = asked.substr(0, asked.size() - key.size());
  while (start < text.size()) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    const std::string name = line.substr(0, line.find(' '));
    if (!name.empty()) known.push_back(parent + name);
    if (name == key || name.rfind(key + ".", 0) == 0) out += line + "\n";
    start = end + 1;
  }
  return out;
}

}  // namespace

std::string explain_key(const std::string& key) {
  if (key.empty() || key == "all") return overview();
  if (key == "train") return format_help(explain_config<TrainConfig>("train."));
  if (key == "seed") return "seed     an integer, at least 0  everything random follows from it (default 1)\n";
  if (key == "threads") return "threads  an integer, at least 0  0: every usable core; changes speed only, no result (default 0)\n";
  std::vector<std::string> known = {"seed", "threads", "train"};
  const std::size_t dot = key.find('.');
  const std::string head = key.substr(0, dot), rest = dot == std::string::npos ? "" : key.substr(dot + 1);
  if (head == "train")
    if (const std::string found = only(format_help(explain_config<TrainConfig>()), rest, key, known); !found.empty()) return found;
  for (const auto& [name, g] : groups()) {
    if (key == name) return list(name, g);
    known.push_back(name);
    for (const std::string& type : g.types) {
      const std::string full = name + "." + type;
      known.push_back(full);
      if (key == full) return fmt::format("{}  {}\n{}", full, g.summary(type), g.help(type));
      if (key.rfind(full + ".", 0) != 0) continue;
      if (const std::string found = only(g.help(type), key.substr(full.size() + 1), key, known); !found.empty()) return found;
    }
  }
  throw ConfigError(fmt::format("--explain {}: no such key{}; try --explain all", key, did_you_mean(key, known)));
}

}  // namespace tapeformer
