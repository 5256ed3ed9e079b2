#include "attention/attention.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "autograd/ops.h"
#include "core/log.h"

namespace tapeformer {

Registry<AttentionEntry>& attention_registry() {
  static Registry<AttentionEntry> registry("attention type");
  return registry;
}

Weight& SharedWeights::get(const std::string& name, const Shape& shape, Init init, RngKey key) {
  auto& weight = weights_[name];
  if (!weight) weight = std::make_unique<Weight>(this, name, shape, init, key);
  if (weight->shape() != shape)
    throw ShapeError(fmt::format("shared weight '{}' is {}, a layer asks for {}", name, weight->shape().str(), shape.str()));
  return *weight;
}

std::string attention_type(const ConfigNode& node) {
  if (!node || node.is_null()) return "full";
  if (node.is_scalar()) return attention_type(ConfigNode::parse("type: " + node.text(), node.place()));
  if (!node.is_map()) throw ConfigError(node.place() + ": expected {type: ...}");
  const ConfigNode& type = node["type"];
  if (!type) throw ConfigError(fmt::format("{}.type: missing, expected one of: {}", node.place(), join(attention_registry().names())));
  if (!attention_registry().contains(type.text()))
    detail::fail(type, detail::shown(type),
                 "one of: " + join(attention_registry().names()) + did_you_mean(type.text(), attention_registry().names()));
  return type.text();
}

std::unique_ptr<AttentionCore> build_attention(const ConfigNode& node, const AttentionSpec& spec, RngKey init) {
  const std::string type = attention_type(node);
  const auto too_large = [&](const char* why) {
    return MemoryError(fmt::format("{}: '{}' does not fit for D = {}, {} heads and inputs of up to {} positions: {}", node.place(), type,
                                   spec.dim, spec.heads, spec.max_len, why));
  };
  try {
    return attention_registry().get(type).build(node.is_map() ? node : ConfigNode::map(), spec, init);
  } catch (const MemoryError& e) {
    throw too_large(e.what());
  } catch (const std::bad_alloc&) {
    throw too_large("out of memory");
  }
}

ConfigNode resolve_attention_config(const ConfigNode& node) {
  const std::string type = attention_type(node);
  return attention_registry().get(type).resolve(node.is_map() ? node : ConfigNode::map());
}

void refuse_causal(const AttentionInfo& info, const AttentionSpec& spec, const ConfigNode& node) {
  if (spec.causal && !info.causal)
    throw ConfigError(fmt::format("{}: '{}' has no causal form: it cannot be used with causal: true", node.place(), info.name));
}

Tensor PatternCore::attend(const AttentionInput& in, const Ctx& ctx) const {
  ops::AttentionOptions o;
  o.scale = scale_;
  o.causal = spec_.causal;
  o.query_mask = in.mask;
  o.key_mask = in.key_mask.defined() ? in.key_mask : in.k.dim(2) == in.q.dim(2) ? in.mask : Tensor();
  if (ctx.training) o.dropout = spec_.dropout;
  o.key = ctx.at("weights").key;
  o.rows = ctx.rows;
  return ops::attention_parts(in.q, in.k, in.v, parts(in), o);
}

std::vector<ops::AttentionPart> PatternCore::parts(const AttentionInput& in) const {
  return {{.queries = {}, .keys = {}, .pattern = pattern(in)}};
}

Tensor real_rows(const Tensor& x, const Tensor& mask) {
  if (!mask.defined() || mask.dtype() != DType::U8 || mask.shape() != Shape{x.dim(0), x.dim(-2)})
    return x;  // what comes next says what is wrong
  const Tensor m = mask.to_contiguous();
  const auto values = m.data<std::uint8_t>();
  if (std::all_of(values.begin(), values.end(), [](std::uint8_t real) { return real != 0; })) return x;
  if (x.rank() == 3) return ops::mask_rows(x, m);
  return ops::mask_rows(x, m.view({m.dim(0), 1, m.dim(1)}).expand({m.dim(0), x.dim(1), m.dim(1)}));
}

i64 table_length(const std::optional<i64>& max_len, const AttentionSpec& spec) {
  const i64 length = max_len.value_or(spec.max_len);
  if (length < 1) throw ConfigError("max_len: missing; the longest input must be known");
  if (spec.max_len > length)
    throw ConfigError(fmt::format("max_len: got {}, expected at least {}, the longest input of the model", length, spec.max_len));
  return length;
}

void check_length(const char* variant, i64 length, i64 max_len) {
  if (length > max_len) throw ShapeError(fmt::format("[{}] the input has {} positions, max_len is {}", variant, length, max_len));
}

void require_side(const AttentionCore& core, const AttentionInput& in) {
  for (const std::string& name : core.info().side)
    if (!in.find(name)) throw ConfigError(fmt::format("attention '{}' needs '{}', which this data does not have", core.info().name, name));
}

void warn_unused(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(message).second) log::warn(message);
}

}  // namespace tapeformer
