// load_data.cpp: the `data` section of a configuration to data sets, through the registry of data types.
#include <algorithm>
#include <array>

#include "data/data_type.h"
#include "data/hdf5_text.h"

namespace tapeformer {
namespace {

constexpr std::array kParts{Part::Train, Part::Valid, Part::Test};

std::string type_of(const ConfigNode& data) {
  const std::vector<std::string> types = data_types();
  const ConfigNode& type = data["type"];
  if (!type) throw ConfigError(fmt::format("{}: no key 'type', expected one of: {}", data.place(), join(types)));
  if (!type.is_scalar() || !data_type_registry().contains(type.text()))
    detail::fail(type, detail::shown(type), "one of: " + join(types) + did_you_mean(type.text(), types));
  return type.text();
}

bool named(const ConfigNode& data, Part part) {
  const ConfigNode& node = data[name_of(part)];
  return node && !node.is_null();
}

bool may_differ(const std::string& key) {
  static const std::vector<std::string> keys{"train", "valid", "test", "on_error", "on_unknown_label", "on_empty", "cache_dir"};
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// What `given` says otherwise than `fitted`, key by key; keys that it leaves out are as fitted. resolved: `given` as
// read.
void compare(const ConfigNode& given, const ConfigNode& resolved, const ConfigNode& fitted, std::vector<std::string>& errors) {
  for (const auto& [key, node] : given.entries()) {
    const ConfigNode &now = resolved[key], &was = fitted[key];
    if (may_differ(key)) continue;
    if (node.is_map() && now.is_map() && was.is_map())
      compare(node, now, was, errors);
    else if (now.json() != was.json())
      errors.push_back(fmt::format("{}: got {}, but the data was prepared with {}", node.place(), now.json(), was.json()));
  }
}

Policies policies_of(const ConfigNode& data, const Policies& fitted) {
  ConfigNode only = ConfigNode::map();
  for (const char* key : {"on_error", "on_unknown_label", "on_empty"})
    if (data[key]) only.set(key, data[key]);
  return read_config<Policies>(only, fitted);
}

void read_parts(const ConfigNode& data, const Policies& policies, DataSet& set) {
  std::array slots{&set.train, &set.valid, &set.test};
  for (std::size_t i = 0; i < kParts.size(); ++i)
    if (!*slots[i] && named(data, kParts[i]))
      *slots[i] = set.preprocessor->dataset(read_source(data[name_of(kParts[i])]), policies, kParts[i]);
}

}  // namespace

std::vector<std::string> data_types() { return data_type_registry().names(); }

ConfigNode resolve_data_config(const ConfigNode& data) {
  const std::string type = type_of(data);
  for (Part part : kParts)
    if (named(data, part)) read_source(data[name_of(part)]);
  return data_type_registry().get(type).resolve(data);
}

std::string explain_data_config(const std::string& type) {
  std::vector<FieldHelp> lines = data_type_registry().get(type).explain();
  for (FieldHelp& line : lines)
    if (line.key == "train" || line.key == "valid" || line.key == "test") line.type = "file, list of files, or {files, where, exclude}";
  return format_help(lines);
}

DataSet load_data(const ConfigNode& data) {
  const std::string type = type_of(data);
  resolve_data_config(data);
  if (!named(data, Part::Train)) throw ConfigError(data.place() + ": no key 'train', which the labels and settings are taken from");
  Fitted fitted = data_type_registry().get(type).fit(data);
  DataSet set;
  set.preprocessor = std::move(fitted.preprocessor);
  set.train = std::move(fitted.train);
  read_parts(data, set.preprocessor->policies(), set);
  return set;
}

DataSet load_data(const ConfigNode& data, std::shared_ptr<Preprocessor> fitted) {
  TAPEFORMER_ASSERT(fitted != nullptr, "load_data needs a fitted preprocessor");
  std::vector<std::string> errors;
  compare(data, resolve_data_config(data), fitted->settings(), errors);
  if (!errors.empty()) throw ConfigError(join(errors, "\n"));
  DataSet set;
  set.preprocessor = std::move(fitted);
  read_parts(data, policies_of(data, set.preprocessor->policies()), set);
  return set;
}

std::shared_ptr<Preprocessor> load_preprocessor(const Hdf5File& file, const std::string& group) {
  const ConfigNode saved = ConfigNode::parse(read_text(file, group + "/settings"), group + "/settings");
  return data_type_registry().get(type_of(saved)).load(saved, file, group);
}

}  // namespace tapeformer
