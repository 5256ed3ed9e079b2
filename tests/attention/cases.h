// cases.h: the variants and settings that every property is checked on, and what it takes to run one.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"

namespace tapeformer::suite {

struct Case {
  std::string type, config;    // config: YAML flow, without `type`
  bool causal = false;         // in the table: only causal
  bool exact_gradient = true;  // false: a straight-through gradient, no derivative
  bool quadratic = false;      // keeps N x N by design
  bool both_ways = false;      // this setting has no causal form, though the variant has
  std::string name;            // for the test's name
};
std::ostream& operator<<(std::ostream&, const Case&);

// Every registered variant by its example, then the further settings; each also causal where the variant can.
std::vector<Case> all_cases();
bool add_cases(std::vector<Case>);  // further settings; called once by every cases_*.cpp

struct Sizes {
  i64 B = 3, N = 7, H = 2, d = 4;
  i64 dim() const { return H * d; }
};

AttentionSpec spec_of(const Case&, const Sizes&, double dropout = 0);
ConfigNode config_of(const Case&);
// With every parameter moved away from special start values.
std::unique_ptr<AttentionCore> build(const Case&, const AttentionSpec&, std::uint64_t seed = 1);
void copy_parameters(AttentionCore& from, AttentionCore& to);

// x, q, k, v (those the core wants), token_ids, edges and edge_type (0 or 1). No mask. External tokens are the first rows of the N.
AttentionInput random_input(const AttentionCore&, const Sizes&, DType, std::uint64_t seed = 3);
AttentionInput take_samples(const AttentionInput&, const std::vector<i64>& samples);
// Sample 0: padding on the left; 1: holes; 2: nothing but padding; then: padding at the end.
Tensor mixed_mask(i64 B, i64 N);
Tensor mask_of(const AttentionCore&, Tensor mask);                                        // the same with external tokens real
Tensor output_mask(const AttentionCore&, const AttentionInput&);                          // of the rows of its output
Tensor random_upstream(const AttentionCore&, const AttentionInput&, std::uint64_t seed);  // of its output's shape
Tensor random_tensor(Shape, DType, std::uint64_t seed);
Tensor random_edges(i64 N, std::uint64_t seed);                  // i64 [2, 3 N] (all N N when those are fewer), distinct
Tensor stack_rows(const Tensor&, const std::vector<i64>& rows);  // rows of axis 0, by number
// Values at positions where `where` (u8 [B, N]) is `when` become `value`; t is [B, N, D] or [B, H, N, d].
Tensor overwrite(const Tensor& t, const Tensor& where, bool when, double value);

using Named = std::map<std::string, Tensor>;
Named inputs_of(const AttentionInput&);  // the defined ones of x, q, k, v
void set_input(AttentionInput&, const std::string& name, const Tensor&);
struct Result {
  Tensor o;
  Named grads;  // of sum(o * upstream): inputs by name, parameters as "param/PATH"; zeros where none arrived
};
Result run(AttentionCore&, AttentionInput, const Ctx&, const Tensor& upstream);
Result run(AttentionCore&, const AttentionInput&, const Ctx& = {});  // random upstream

// softmax(scale q.k) v over the keys that `sees` allows, in double.
Tensor softmax_loop(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                    const std::function<bool(i64 b, i64 h, i64 i, i64 j)>& sees);

bool same_bits(const Tensor&, const Tensor&);
double difference(const Tensor&, const Tensor&);       // largest |a - b|; infinity for other shapes or NaN
std::string message_of(const std::function<void()>&);  // what() of the Error that it throws, or ""

}  // namespace tapeformer::suite
