// listops.h: nested list operations (Nangia and Bowman 2018) with the settings of Long Range Arena (Tay et al. 2021, section 2.2.1): prefix
// expressions such as `[MAX 2 9 [MIN 4 7 ] 0 ]` over digits, labelled with their value.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/rng.h"

namespace tapeformer {

struct ListopsSettings {
  std::uint64_t seed = 1;
  std::array<i64, 3> samples{96000, 2000, 2000};  // train, valid, test
  i64 min_length = 500, max_length = 2000;        // tokens, both ends excluded
  i64 max_depth = 10, max_args = 10;
  bool parentheses = false;  // as the files of Long Range Arena have them: a pair round every binary application
};

struct ListopsShortcuts {  // accuracy on the test part of what needs no nesting
  double majority = 0;     // the most frequent value of the training part
  double first_token = 0;  // the most frequent value for each first token
};

// <out_dir>/{train,valid,test}.tsv, header Source, Target. No expression occurs twice over all parts. ConfigError for settings that no
// expression meets.
ListopsShortcuts generate_listops(const std::string& out_dir, const ListopsSettings&);

int listops_value(std::string_view expression);                                       // DataError when it is none
std::string listops_parentheses(std::string_view expression);                         // `[MAX 2 9 ]` -> `( ( ( [MAX 2 ) 9 ) ] )`
std::string listops_expression(RngKey, i64 max_depth, i64 max_args, i64 max_tokens);  // one random tree; "" where it is longer

}  // namespace tapeformer
