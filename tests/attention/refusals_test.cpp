// What the variants refuse, word by word, and that the registry is the folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

std::string refusal(const std::string& yaml, AttentionSpec spec = {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 16}) {
  return message_of([&] { build_attention(ConfigNode::parse(yaml, "run.yaml"), spec, RngKey(1)); });
}
AttentionSpec causal_spec() { return {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 16, .causal = true}; }

#define EXPECT_SAYS(message, part)                                                          \
  do {                                                                                      \
    const std::string said = message;                                                       \
    EXPECT_NE(said.find(part), std::string::npos) << "said '" << said << "', not " << part; \
  } while (false)

TEST(AttentionRefusals, NamesAndKeys) {
  EXPECT_SAYS(refusal("{type: locall}"), "got 'locall', expected one of: " + join(attention_registry().names()));
  EXPECT_SAYS(refusal("{type: locall}"), "(did you mean 'local'?)");
  EXPECT_SAYS(refusal("\n\ntype: locall"), "run.yaml:3: type");
  EXPECT_SAYS(refusal("{window: 3}"), "type: missing, expected one of: " + join(attention_registry().names()));
  EXPECT_SAYS(refusal("{type: local, windw: 3}"), "windw");
  EXPECT_SAYS(refusal("{type: local, windw: 3}"), "(did you mean 'window'?)");
  EXPECT_SAYS(refusal("{type: local, window: -1}"), "window: got -1, expected");
  EXPECT_SAYS(refusal("{type: local, mode: blok}"), "got 'blok', expected one of: sliding, block");
  EXPECT_SAYS(refusal("{type: full, scale: 0}"), "scale: got 0, expected");
  EXPECT_SAYS(refusal("{type: reformer, n_rounds: 1000}"), "n_rounds: got 1000, expected");
  EXPECT_SAYS(refusal("{type: reformer, n_buckets: 1000000}"), "n_buckets: got 1000000, expected");
  EXPECT_SAYS(refusal("{type: full, impl: fast}"), "expected one of: tiled, naive");
  EXPECT_SAYS(refusal("[1, 2]"), "expected {type: ...}");
}

TEST(AttentionRefusals, Causality) {
  for (const std::string& name : attention_registry().names()) {
    const AttentionEntry& entry = attention_registry().get(name);
    const std::string yaml = "{type: " + name + ", " + std::string(entry.info.example).substr(1);
    if (entry.info.causal)
      EXPECT_EQ(refusal(yaml, causal_spec()), "") << name;
    else
      EXPECT_SAYS(refusal(yaml, causal_spec()), "'" + name + "' has no causal form: it cannot be used with causal: true");
  }
  AttentionInfo forward_only;
  forward_only.name = "both_ways";
  forward_only.causal = false;
  const ConfigNode at = ConfigNode::parse("attention: {type: both_ways}", "run.yaml")["attention"];
  EXPECT_EQ(message_of([&] { refuse_causal(forward_only, causal_spec(), at); }),
            "run.yaml:1: attention: 'both_ways' has no causal form: it cannot be used with causal: true");
  EXPECT_SAYS(refusal("{type: sinkhorn, sortcut: 1}", causal_spec()), "sortcut has no causal form");
}

TEST(AttentionRefusals, Hybrids) {
  EXPECT_SAYS(refusal("{type: hybrid}"), "heads: missing");
  EXPECT_SAYS(refusal("{type: hybrid, heads: []}"), "heads: missing");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full, repeat: 3}]}"), "the list gives 3 heads after repeat, the model has 2");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full}]}"), "the list gives 1 heads after repeat, the model has 2");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full, repeat: 0}]}"), "repeat: got 0, expected");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full}, {type: hybrid, heads: [{type: full}]}]}"), "a hybrid cannot hold a hybrid");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full}, {type: local, causal: true}]}"),
              "causality belongs to the model, not to a head");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full}, {type: lokal}]}"), "(did you mean 'local'?)");
  EXPECT_SAYS(refusal("type: hybrid\nheads:\n  - {type: full}\n  - {type: local, windw: 2}"), "run.yaml:4: heads[1].windw");
  EXPECT_SAYS(refusal("{type: hybrid, scale: 0.5, heads: [{type: full, repeat: 2}]}"), "each head has its own scale");
  EXPECT_SAYS(refusal("{type: hybrid, combine: union, heads: [{type: local}, {type: linear_transformer}]}"),
              "'linear_transformer' is no pattern of keys and cannot be part of a union");
  EXPECT_SAYS(refusal("{type: hybrid, combine: union, heads: [{type: local, scale: 0.1}]}"), "in a union the scale belongs to the hybrid");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full}, {type: lstm}]}"),
              "'lstm' does not work on heads and cannot be one of a hybrid");
  EXPECT_SAYS(refusal("{type: hybrid, combine: union, heads: [{type: global, mode: external}]}"), "cannot be part of a union");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: full}, {type: global}]}"), "global_positions, global_token_ids: got neither");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [full, local]}"), "expected {type: ...}");
  EXPECT_EQ(refusal("{type: hybrid, heads: [{type: sinkhorn, sortcut: 0}, {type: full}]}", causal_spec()), "");
  EXPECT_SAYS(refusal("{type: hybrid, heads: [{type: sinkhorn, sortcut: 2}, {type: full}]}", causal_spec()), "sortcut has no causal form");
}

TEST(AttentionRefusals, Globals) {
  EXPECT_SAYS(refusal("{type: global}"), "global_positions, global_token_ids: got neither");
  EXPECT_EQ(refusal("{type: global}", {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 16, .gmask = true}), "");
  EXPECT_EQ(refusal("{type: global, mode: external}"), "");
  EXPECT_SAYS(refusal("{type: global, mode: external, num_global: 0}"), "num_global: got 0, expected");
  EXPECT_SAYS(refusal("{type: longformer, dilation: 0}"), "dilation: got 0, expected");
  EXPECT_SAYS(refusal("{type: longformer, dilation: [1, 2, 3]}"), "the list has 3 entries, expected one for each of the 2 heads");
  EXPECT_SAYS(refusal("{type: longformer, dilation: wide}"), "dilation");
  EXPECT_SAYS(refusal("{type: bigbird, block_size: 0}"), "block_size: got 0, expected");
  const Sizes s{.B = 2, .N = 6};
  const Case ids{.type = "global", .config = "{global_token_ids: [1]}"}, blocks{.type = "bigbird", .config = "{block_size: 2}"};
  const auto global = build(ids, spec_of(ids, s)), bigbird = build(blocks, spec_of(blocks, s));
  AttentionInput in = random_input(*global, s, DType::F32);
  in.side["gmask"] = Tensor::full({2, 5}, 1, DType::U8);
  EXPECT_SAYS(message_of([&] { global->attend(in, {}); }), "[global] gmask is u8 [2, 5], expected u8 [2, 6]");
  in.side.clear();
  EXPECT_SAYS(message_of([&] { global->attend(in, {}); }), "[global] global_token_ids needs the side input token_ids");
  in.side["rand_blocks"] = Tensor::full({2, 3, 1}, 3, DType::I64);
  EXPECT_SAYS(message_of([&] { bigbird->attend(in, {}); }), "[bigbird] rand_blocks holds 3, expected -1 to 2");
  in.side["rand_blocks"] = Tensor::full({1, 3, 1}, 0, DType::I64);
  EXPECT_SAYS(message_of([&] { bigbird->attend(in, {}); }), "[bigbird] rand_blocks is i64 [1, 3, 1], expected i64 [2, 3, r]");
}

TEST(AttentionRefusals, MixersAndBlocks) {
  EXPECT_SAYS(refusal("{type: lstm, bidirectional: true}", causal_spec()), "bidirectional: true sees the future");
  EXPECT_SAYS(refusal("{type: gru, bidirectional: true}", {.dim = 7, .heads = 1, .head_dim = 7}), "hidden: missing");
  EXPECT_SAYS(refusal("{type: rnn, forget_bias: 1}"), "forget_bias");
  EXPECT_SAYS(refusal("{type: gmlp, ffn: 5}"), "ffn: got 5, expected an even number");
  EXPECT_SAYS(refusal("{type: gmlp, max_len: 8}"), "max_len: got 8, expected at least 16");
  EXPECT_SAYS(refusal("{type: mlp_mixer, max_len: 8}"), "max_len: got 8, expected at least 16");
  EXPECT_SAYS(refusal("{type: conv1d, kernel: 0}"), "kernel: got 0, expected");
  EXPECT_SAYS(refusal("{type: conformer, conv_kernel: 4}"), "conv_kernel: got 4, expected an odd number");
  EXPECT_EQ(refusal("{type: conformer, conv_kernel: 4}", causal_spec()), "");
  EXPECT_SAYS(refusal("{type: conformer, heads: 3}"), "heads: got 3, expected a divisor of the model's width 8");
  EXPECT_SAYS(refusal("{type: conformer, attention: {type: gmlp}}"), "'gmlp' cannot stand inside a conformer: it is a whole block itself");
  EXPECT_SAYS(refusal("{type: conformer, attention: {type: fnet}}", causal_spec()), "'fnet' has no causal form");
  EXPECT_SAYS(refusal("type: conformer\nattention: {type: local, windw: 1}"), "run.yaml:2: attention.windw");
}

TEST(AttentionRefusals, Lengths) {
  EXPECT_SAYS(refusal("{type: synthesizer, max_len: 8}"), "max_len: got 8, expected at least 16, the longest input of the model");
  EXPECT_SAYS(refusal("{type: synthesizer}", {.dim = 8, .heads = 2, .head_dim = 4}), "max_len: missing");
  EXPECT_SAYS(refusal("{type: sinkhorn, block_size: 4, max_blocks: 2}"),
              "max_blocks: got 2, expected at least 4 for inputs of 16 positions");
  EXPECT_SAYS(refusal("{type: linear_transformer, feature_map: identity}"), "set normalize: false");
  const Sizes most{.B = 1, .N = 16}, longer{.B = 1, .N = 17};
  for (const char* config : {"{}", "{kind: dense}", "{kind: fixed_random}"}) {
    const Case c{.type = "synthesizer", .config = config};
    const auto core = build(c, spec_of(c, most));
    EXPECT_EQ(message_of([&] { core->attend(random_input(*core, longer, DType::F32), {}); }),
              "[synthesizer] the input has 17 positions, max_len is 16");
  }
  const Case c{.type = "sinkhorn", .config = "{block_size: 4}"};
  const auto core = build(c, spec_of(c, most));
  EXPECT_EQ(message_of([&] { core->attend(random_input(*core, longer, DType::F32), {}); }),
            "[sinkhorn] the input has 5 blocks, max_blocks is 4");
}

TEST(AttentionRefusals, Shapes) {
  const Sizes s{.B = 2, .N = 6};
  for (const char* type : {"full", "local", "linear_transformer"}) {
    const Case c{.type = type, .config = "{}"};
    const auto core = build(c, spec_of(c, s));
    const AttentionInput good = random_input(*core, s, DType::F32);
    const auto says = [&](auto&& change) {
      AttentionInput in = good;
      change(in);
      return message_of([&] { core->attend(in, {}); });
    };
    EXPECT_SAYS(says([](AttentionInput& in) { in.k = in.k.slice(3, 0, 2); }), "[2, 2, 6, 2]");
    EXPECT_SAYS(says([](AttentionInput& in) { in.v = in.v.slice(2, 0, 5); }), "[2, 2, 5, 4]");
    EXPECT_SAYS(says([](AttentionInput& in) { in.mask = Tensor::full({2, 5}, 1, DType::U8); }), "expected u8 [2, 6] with 1 = real");
    EXPECT_SAYS(says([](AttentionInput& in) { in.mask = Tensor::full({2, 6}, 1, DType::F32); }), "expected u8 [2, 6] with 1 = real");
  }
}

// A file of attention/ that registers a variant is in the program, and nothing else is.
TEST(AttentionRegistry, IsTheFolder) {
  std::set<std::string> in_folder, in_registry;
  for (const auto& entry : std::filesystem::directory_iterator(SOURCE_DIR "/attention")) {
    if (entry.path().extension() != ".cpp") continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    if (text.str().find("register_attention<") != std::string::npos) in_folder.insert(entry.path().filename().string());
  }
  for (const std::string& name : attention_registry().names()) {
    const AttentionInfo& info = attention_registry().get(name).info;
    EXPECT_EQ(name, info.name);
    for (const char* text : {info.summary, info.formula, info.paper, info.cost}) EXPECT_NE(std::string(text), "") << name;
    in_registry.insert(std::filesystem::path(attention_registry().file(name)).filename().string());
  }
  EXPECT_EQ(in_folder, in_registry);
  EXPECT_GE(in_folder.size(), 6u);
}

TEST(AttentionPage, IsWrittenFromTheRegistry) {
  std::ifstream file(SOURCE_DIR "/docs/attention.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == attention_page()) << "docs/attention.md is old: ./run docs writes it";
}

}  // namespace
}  // namespace tapeformer::suite
