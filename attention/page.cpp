// page.cpp: docs/attention.md, written from the registry.
#include "attention/attention.h"

namespace tapeformer {
namespace {

std::string cell(std::string text) {  // a bar would end the cell
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.replace(at, 1, "\\|");
  return text;
}

const char* place_of(const AttentionInfo& info) {
  switch (info.place) {
    case Place::Core:
      return "heads, between the projections";
    case Place::Mix:
      return "the block's mixer, no projections";
    case Place::Block:
      break;
  }
  return "the whole block, with norms and residuals of its own";
}

std::string section(const AttentionEntry& e) {
  const AttentionInfo& i = e.info;
  std::string out = fmt::format("## {}\n\n{}.\n\n", i.name, i.summary);
  if (*i.formula) out += fmt::format("    {}\n\n", i.formula);
  const auto line = [&](const char* what, const std::string& text) {
    if (!text.empty()) out += fmt::format("- {}: {}\n", what, text);
  };
  line("cost", i.cost);
  line("causal", i.causal ? "yes" : "no; refused");
  line("works on", place_of(i));
  if (i.cross) line("keys from another sequence", "yes");
  line("needs beside the text or features", join(i.side));
  line("paper", i.paper);
  line("example",
       fmt::format("`{{type: {}{}", i.name, std::string(i.example) == "{}" ? "}`" : ", " + std::string(i.example).substr(1) + "`"));
  const std::vector<FieldHelp> keys = e.explain();
  if (keys.empty()) return out + "\nNo keys.\n\n";
  out += "\n| key | default | range | meaning |\n|---|---|---|---|\n";
  for (const FieldHelp& k : keys)
    out +=
        fmt::format("| `{}` | {} | {} | {} |\n", k.key, cell(k.default_value.empty() ? "-" : k.default_value), cell(k.type), cell(k.help));
  return out + "\n";
}

}  // namespace

std::string attention_page() {
  std::string out =
      "# Attention\n\n"
      "Every variant that `model.attention.type` takes, written by `./run docs` from the registry. Formulas use q, k, v for the rows of a "
      "head, d for its width, "
      "N for the length; padded positions are never seen and give exactly 0.\n\n"
      "| type | in one sentence | cost | causal |\n|---|---|---|---|\n";
  const std::vector<std::string> names = attention_registry().names();
  for (const std::string& name : names) {
    const AttentionInfo& i = attention_registry().get(name).info;
    out += fmt::format("| [`{0}`](#{0}) | {1} | {2} | {3} |\n", name, cell(i.summary), cell(i.cost), i.causal ? "yes" : "no");
  }
  out += "\nOf your own: [add-attention.md](add-attention.md).\n\n";
  for (const std::string& name : names) out += section(attention_registry().get(name));
  out.pop_back();
  return out;
}

}  // namespace tapeformer
