#include "data/data_type.h"

#include <algorithm>
#include <charconv>

namespace tapeformer {
namespace {

bool parse_integer(const std::string& s, i64& x) {
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
  return error == std::errc{} && end == s.data() + s.size();
}

}  // namespace

Registry<DataType>& data_type_registry() {
  static Registry<DataType> registry("data.type");
  return registry;
}

std::vector<std::string> ordered_labels(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  i64 x = 0;
  if (!std::all_of(names.begin(), names.end(), [&](const std::string& s) { return parse_integer(s, x); })) return names;
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    i64 x = 0, y = 0;
    parse_integer(a, x);
    parse_integer(b, y);
    return x < y;
  });
  return names;
}

void check_class_count(const std::vector<std::string>& labels, const std::string& source) {
  if (labels.size() < 2)
    throw DataError(fmt::format("{}: got {} different label{}, expected two or more to tell apart", source, labels.size(),
                                labels.size() == 1 ? fmt::format(" ('{}')", labels[0]) : "s"));
}

i64 label_index(const std::vector<std::string>& labels, const std::string& name) {
  const auto it = std::find(labels.begin(), labels.end(), name);
  return it == labels.end() ? -1 : it - labels.begin();
}

std::string unknown_label(const std::vector<std::string>& labels, const std::string& name) {
  std::vector<std::string> shown(labels.begin(), labels.begin() + std::min<std::ptrdiff_t>(20, static_cast<std::ptrdiff_t>(labels.size())));
  if (shown.size() < labels.size()) shown.push_back("...");
  return fmt::format("label '{}' does not occur in the training part, which has: {}{}", name, join(shown), did_you_mean(name, labels));
}

}  // namespace tapeformer
