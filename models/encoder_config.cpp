#include "models/encoder_config.h"

namespace tapeformer {
namespace {

std::vector<ConfigNode> attention_list(const ConfigNode& node) {
  if (node.is_sequence()) return node.items();
  if (!node || node.is_null()) return {};
  return {node};
}

}  // namespace

std::vector<std::string> encoder_poolings() {
  std::vector<std::string> names = pooling_names();
  names.push_back("external");
  return names;
}

void finish(EncoderConfig& c, const ConfigNode& node) {
  c.t.rotary = c.positions == "rotary";
  c.t.attention = attention_list(node["attention"]);
  if (node["attention"].is_sequence() && static_cast<i64>(c.t.attention.size()) != c.t.layers)
    throw ConfigError(fmt::format("{}: the list has {} entries, expected one for each of the {} layers", node["attention"].place(),
                                  c.t.attention.size(), c.t.layers));
  for (const ConfigNode& a : c.t.attention) {
    if (node["attention"].is_sequence() && a.is_null()) detail::fail(a, "null", "{type: ...} for each layer");
    attention_type(a);
  }
  try {
    validate(c.t);
  } catch (const ConfigError& e) {
    throw ConfigError(fmt::format("{}: {}", node.place(), e.what()));
  }
}

void resolve_attention(const EncoderConfig& c, ConfigNode& out) {
  if (c.t.attention.size() <= 1) {
    out.set("attention", resolve_attention_config(c.t.attention.empty() ? ConfigNode() : c.t.attention[0]));
    return;
  }
  ConfigNode list = ConfigNode::sequence();
  for (const ConfigNode& a : c.t.attention) list.push_back(resolve_attention_config(a));
  out.set("attention", list);
}

}  // namespace tapeformer
