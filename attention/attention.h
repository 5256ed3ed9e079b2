// attention.h: what an attention variant is. A variant is one .cpp file: a config struct, an AttentionCore and one registration. The core
// works between the projections; AttentionLayer (projected.h) adds W_q, W_k, W_v, W_o around it, `hybrid` gives cores some heads each, and
// `apps/verify` runs them on tensors from a file. The common rules: padded keys are never seen, padded rows give exactly 0 and no gradient.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/config.h"
#include "core/kernels/attention.h"
#include "core/registry.h"
#include "layers/module.h"

namespace tapeformer {

// Weights that several layers of a model share: made by the first layer that asks, in the checkpoint once.
class SharedWeights : public Module {
 public:
  Weight& get(const std::string& name, const Shape&, Init, RngKey);  // ShapeError when a layer asks for another shape

 private:
  std::map<std::string, std::unique_ptr<Weight>> weights_;
};

struct AttentionSpec {  // what the model tells every variant
  i64 dim = 0;          // D, width of x
  i64 heads = 1;        // H
  i64 head_dim = 0;     // d; the heads' outputs are H d wide
  i64 value_dim = 0;    // dv, width of a head of v; 0 = d
  i64 max_len = 0;      // longest input the model accepts
  bool causal = false;
  double dropout = 0;               // on the attention weights, training only
  bool bias = false;                // the layer's projections have biases
  bool gmask = false;               // the caller passes the side input gmask
  bool hybrid = false;              // the core serves some heads of a hybrid
  RngKey place{0};                  // stands for the layer, and the head in a hybrid: folded into a seed that the configuration gives
  SharedWeights* shared = nullptr;  // null: nothing is shared
  i64 dv() const { return value_dim > 0 ? value_dim : head_dim; }
};

struct AttentionInput {
  Tensor x;                            // [B, N, D]: what enters the layer, before any projection
  Tensor q, k, v;                      // [B, H, N, d], [B, H, N, d], [B, H, N, dv]; undefined where the core does not use them
  Tensor mask;                         // u8 [B, N], 1 = real token; undefined = all real
  Tensor key_mask;                     // u8 [B, M] for cross-attention; undefined = mask
  Tensor pair_mask;                    // u8 [N, M] or [B, N, M], 1 = may look; undefined = everything
  std::map<std::string, Tensor> side;  // optional side inputs by name: token_ids, gmask, edges, ...; and fixed random draws in tests
  std::map<std::string, Tensor>* extra = nullptr;  // where a core may leave further results (states, matrices) when asked
  i64 external = 0;     // so many first rows of everything are learned tokens of the model that stand before the sequence
  bool rotary = false;  // q and k carry rotary positions; what a core projects for itself gets them too
  const Tensor& any() const { return q.defined() ? q : v.defined() ? v : x; }
  const Tensor* find(const std::string& name) const {
    const auto it = side.find(name);
    return it == side.end() ? nullptr : &it->second;
  }
};

enum class Place {  // of a variant in a Transformer
  Core,             // on heads, between the projections
  Mix,              // on x [B, N, D] without projections: `attend` reads in.x and returns [B, N, width of its own]
  Block,            // like Mix, in place of the whole block: with norms, residuals and feed-forward of its own, padded rows 0
};

struct AttentionInfo {
  const char* name = "";
  const char* summary = "";  // one sentence
  const char* formula = "";
  const char* paper = "";
  const char* cost = "";       // time and memory in N, d, ...
  const char* example = "{}";  // a small config that the test suite runs (YAML flow)
  Place place = Place::Core;
  bool causal = true;  // false: causal: true is a config error
  bool cross = false;  // keys may come from another sequence
  bool pair_mask = false;
  bool permutation_equivariant = false;  // without causality: permuting positions permutes rows
  bool q = true, k = true, v = true;     // which projections it wants
  std::vector<std::string> side;         // side inputs it cannot do without
};

struct Projections {  // start values of the layer around a core: W [D, H d], b [H d]; undefined where there is none
  Tensor Wq, Wk, Wv, bq, bk, bv;
};

struct Rows {
  Tensor x;     // [B, N, D]
  Tensor mask;  // u8 [B, N]; undefined = all real
};

class AttentionCore : public Module {
 public:
  virtual const AttentionInfo& info() const = 0;
  virtual Tensor attend(const AttentionInput&, const Ctx&) const = 0;  // -> [B, H, N, dv], or [B, N, .] where info().place is no Core

  // The layer around a core of place Core.
  virtual bool wants_q() const { return info().q; }
  virtual bool wants_k() const { return info().k; }
  virtual i64 value_dim() const { return 0; }              // dv of a head; 0 = head_dim
  virtual bool output_projection() const { return true; }  // false: heads are joined and nothing follows
  virtual bool averages_heads() const { return false; }    // heads are averaged, not joined
  virtual void start_from(const Projections&) {}           // for projections of x that the core owns and that start as copies

  // Learned rows [g, D] that the model puts before the sequence, once for all layers (AttentionInput::external).
  virtual i64 external_tokens() const { return 0; }

  // Fewer rows out than in (reduced queries): the residual's rows x [B, M, D], undefined = no residual, and the mask of all M rows.
  virtual bool shortens() const { return false; }
  virtual Rows shorten(const Tensor& x, const Tensor& mask) const { return {x, mask}; }
};

// A variant that is a set of allowed keys: a Pattern and no kernel. `hybrid` can unite several.
class PatternCore : public AttentionCore {
 public:
  PatternCore(const AttentionSpec& spec, std::optional<double> scale) : spec_(spec), scale_(scale) {}
  Tensor attend(const AttentionInput&, const Ctx&) const final;
  // null = every key. May depend on side inputs, never on values.
  virtual std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput&) const = 0;
  // The same pairs, each in exactly one part, where other orders of queries and keys run faster. Default: pattern() as it is.
  virtual std::vector<ops::AttentionPart> parts(const AttentionInput&) const;
  std::optional<double> scale() const { return scale_; }

 private:
  AttentionSpec spec_;
  std::optional<double> scale_;
};

struct AttentionEntry {
  AttentionInfo info;
  std::function<std::unique_ptr<AttentionCore>(const ConfigNode&, const AttentionSpec&, RngKey init)> build;
  std::function<ConfigNode(const ConfigNode&)> resolve;  // with every default
  std::function<std::vector<FieldHelp>()> explain;
};
Registry<AttentionEntry>& attention_registry();

// From a section with `type`. Refuses what the variant cannot do.
std::unique_ptr<AttentionCore> build_attention(const ConfigNode&, const AttentionSpec&, RngKey init);
ConfigNode resolve_attention_config(const ConfigNode&);  // {type: full} when the section is empty
std::string attention_type(const ConfigNode&);           // its `type`, checked
void refuse_causal(const AttentionInfo&, const AttentionSpec&, const ConfigNode&);

// L: `Config` with visit_fields, `static AttentionInfo describe()`, a constructor (Config, AttentionSpec, RngKey).
template <class L>
bool register_attention(const char* file = __builtin_FILE()) {
  AttentionEntry e;
  e.info = L::describe();
  e.build = [](const ConfigNode& node, const AttentionSpec& spec, RngKey init) -> std::unique_ptr<AttentionCore> {
    auto config = read_config<typename L::Config>(node, {}, {"type", "repeat"});
    refuse_causal(L::describe(), spec, node);
    try {
      return std::make_unique<L>(std::move(config), spec, init);
    } catch (const ConfigError& error) {
      throw ConfigError(node.path().empty() || std::string(error.what()).find(node.path()) != std::string::npos
                            ? std::string(error.what())
                            : node.place() + ": " + error.what());
    }
  };
  e.resolve = [](const ConfigNode& node) {
    ConfigNode out = ConfigNode::map();
    out.set("type", ConfigNode::scalar(L::describe().name));
    const ConfigNode fields = write_config(read_config<typename L::Config>(node, {}, {"type", "repeat"}));
    for (const auto& [key, value] : fields.entries()) out.set(key, value);
    return out;
  };
  e.explain = [] { return explain_config<typename L::Config>(); };
  return attention_registry().add(e.info.name, std::move(e), file);
}

// x [B, N, D] or [B, H, N, d] with the rows of padding 0 and without a gradient; x itself where there is no padding. For what runs over
// rows before the engine skips them: a product or a function of padding that holds NaN is NaN.
Tensor real_rows(const Tensor& x, const Tensor& mask);

// Positions that a variant's tables are made for: its own max_len or the model's. ConfigError where neither is known or the model's inputs
// are longer.
i64 table_length(const std::optional<i64>& max_len, const AttentionSpec&);
void check_length(const char* variant, i64 length, i64 max_len);  // ShapeError naming both when length > max_len

std::string attention_page();  // docs/attention.md: every registered variant with its formula, cost and keys (Markdown)

// ConfigError that names a side input which the core cannot do without and the batch lacks.
void require_side(const AttentionCore&, const AttentionInput&);

// Warns once a process and message; for keys that the chosen mode does not use.
void warn_unused(const std::string& message);

}  // namespace tapeformer
