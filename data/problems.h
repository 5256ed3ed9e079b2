// problems.h: rows that cannot be used. They are collected over a whole part and reported together, before the first
// step.
#pragma once
#include <string>
#include <vector>

#include "core/config.h"

namespace tapeformer {

enum class Fault { Bad, UnknownLabel, Empty };

struct Policies {  // each "stop" or "skip"
  std::string on_error = "stop", on_unknown_label = "stop", on_empty = "stop";
  const std::string& of(Fault) const;
};
template <class V>
void visit_fields(V& v, Policies& p) {
  const OneOf choices{"stop", "skip"};
  v("on_error", p.on_error, choices, "a row or file that cannot be read: stop with a message, or leave it out");
  v("on_unknown_label", p.on_unknown_label, choices, "a label that the training part does not have");
  v("on_empty", p.on_empty, choices, "a text without content, a clip shorter than one frame");
}

class Problems {
 public:
  Problems(std::string source, Policies policies) : source_(std::move(source)), policies_(std::move(policies)) {}
  void add(Fault, const std::string& message);  // message starts with "file:row: "
  // DataError listing the first problems whose policy is stop; the rest is logged once as left out.
  void report(std::size_t rows) const;
  std::size_t skipped() const { return skipped_.size(); }

 private:
  std::string source_;
  Policies policies_;
  std::vector<std::string> fatal_, skipped_;
  std::vector<std::string> keys_;  // the policies that would leave the fatal ones out
};

}  // namespace tapeformer
