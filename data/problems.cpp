#include "data/problems.h"

#include <algorithm>

#include "core/log.h"

namespace tapeformer {
namespace {

constexpr std::size_t kListed = 5;

const char* key_of(Fault fault) {
  switch (fault) {
    case Fault::Bad:
      return "on_error";
    case Fault::UnknownLabel:
      return "on_unknown_label";
    case Fault::Empty:
      break;
  }
  return "on_empty";
}

std::string first_few(const std::vector<std::string>& messages) {
  std::string out;
  for (std::size_t i = 0; i < std::min(kListed, messages.size()); ++i) out += "\n  " + messages[i];
  if (messages.size() > kListed) out += fmt::format("\n  ... and {} more", messages.size() - kListed);
  return out;
}

}  // namespace

const std::string& Policies::of(Fault fault) const {
  return fault == Fault::Bad ? on_error : fault == Fault::UnknownLabel ? on_unknown_label : on_empty;
}

void Problems::add(Fault fault, const std::string& message) {
  if (policies_.of(fault) == "skip") {
    skipped_.push_back(message);
    return;
  }
  fatal_.push_back(message);
  if (std::find(keys_.begin(), keys_.end(), key_of(fault)) == keys_.end()) keys_.push_back(key_of(fault));
}

void Problems::report(std::size_t rows) const {
  if (!fatal_.empty())
    throw DataError(fmt::format("{}: {} of {} rows cannot be used (data.{}: skip leaves them out):{}", source_, fatal_.size(), rows,
                                join(keys_, ": skip and data."), first_few(fatal_)));
  if (!skipped_.empty()) log::warn(fmt::format("{}: left out {} of {} rows:{}", source_, skipped_.size(), rows, first_few(skipped_)));
}

}  // namespace tapeformer
