// config.h: YAML to structs. A struct C names its keys once, in a free function
//   template <class V> void visit_fields(V& v, C& c) { v("dropout", c.dropout, Range{0, 0.9}, "probability of zeroing"); }
// which drives reading, defaults, range checks, --explain and the resolved configuration stored in a checkpoint.
// Errors give file, line, path, what was found, what was expected; all errors of a file are reported at once.
#pragma once
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/shape.h"

namespace tapeformer {

// A YAML (or JSON) tree as a plain value.
class ConfigNode {
 public:
  enum class Kind { Undefined, Null, Scalar, Sequence, Map };
  static ConfigNode load(const std::string& file);                            // IoError, ConfigError
  static ConfigNode parse(const std::string& text, const std::string& name);  // name stands for the file in messages
  static ConfigNode scalar(std::string text);
  static ConfigNode sequence() { return ConfigNode(Kind::Sequence); }
  static ConfigNode map() { return ConfigNode(Kind::Map); }
  static ConfigNode null() { return ConfigNode(Kind::Null); }
  ConfigNode() = default;

  Kind kind() const { return kind_; }
  explicit operator bool() const { return kind_ != Kind::Undefined; }
  bool is_map() const { return kind_ == Kind::Map; }
  bool is_sequence() const { return kind_ == Kind::Sequence; }
  bool is_scalar() const { return kind_ == Kind::Scalar; }
  bool is_null() const { return kind_ == Kind::Null; }
  const std::string& text() const { return text_; }  // of a scalar
  bool quoted() const { return quoted_; }            // the scalar stood in quotes: never null, number or bool

  const ConfigNode& operator[](std::string_view key) const;        // Undefined when absent
  const std::vector<ConfigNode>& items() const { return items_; }  // of a sequence
  const std::vector<std::pair<std::string, ConfigNode>>& entries() const { return entries_; }
  std::vector<std::string> keys() const;

  ConfigNode& set(const std::string& key, ConfigNode value);  // on a map; replaces; returns the stored value
  void erase(std::string_view key);
  ConfigNode& push_back(ConfigNode value);
  void set_path(const std::string& dotted, const std::string& yaml_value);  // --set a.b=c; creates maps on the way
  // Lays `over` on top, keys of `over` winning. Sections are joined key by key, except where `type` changes: such a section is replaced
  // whole, since its old keys belong to the old type. Messages about a key name the file that it came from.
  void overlay(const ConfigNode& over);
  void place_as(const ConfigNode& source);  // takes the places of the keys that `source` has, its own place for the others
  // A message that begins with the path of a key, with the key's file and line in front where this tree knows them.
  std::string located(const std::string& message) const;
  std::string place() const;  // "run.yaml:14: model.dropout" for messages
  const std::string& path() const { return path_; }
  std::string yaml() const;                                      // as YAML text
  std::string json() const;                                      // as one line of JSON
  friend bool operator==(const ConfigNode&, const ConfigNode&);  // content only

 private:
  explicit ConfigNode(Kind kind) : kind_(kind) {}
  friend struct ConfigParser;
  void set_places(const std::string& path);
  Kind kind_ = Kind::Undefined;
  bool quoted_ = false;
  std::string text_, path_;
  std::shared_ptr<const std::string> file_;
  int line_ = 0;
  std::vector<ConfigNode> items_;
  std::vector<std::pair<std::string, ConfigNode>> entries_;
};

struct Range {  // inclusive; AtLeast/Above for half-open ranges
  double low = -1e300, high = 1e300;
  bool open_low = false;
  bool contains(double x) const { return (open_low ? x > low : x >= low) && x <= high; }
  std::string str() const;
};
inline Range at_least(double low) { return {low, 1e300, false}; }
inline Range above(double low) { return {low, 1e300, true}; }

struct OneOf {
  std::vector<std::string> choices;
  OneOf(std::initializer_list<const char*> c) : choices(c.begin(), c.end()) {}
  explicit OneOf(std::vector<std::string> c) : choices(std::move(c)) {}
};

template <class C, class V>
concept HasFields = requires(V& v, C& c) {
  visit_fields(v, c);
};

namespace detail {
// Scalars: bool, i64, int, double, std::string. Each throws ConfigError with the node's place.
void read_scalar(const ConfigNode&, bool&);
void read_scalar(const ConfigNode&, i64&);
void read_scalar(const ConfigNode&, int&);
void read_scalar(const ConfigNode&, double&);
void read_scalar(const ConfigNode&, std::string&);
inline void read_scalar(const ConfigNode& n, ConfigNode& out) { out = n; }
std::string write_scalar(bool);
std::string write_scalar(i64);
std::string write_scalar(int);
std::string write_scalar(double);
ConfigNode write_node(const std::string&);
template <class T>
std::string type_name();
template <>
inline std::string type_name<bool>() {
  return "true or false";
}
template <>
inline std::string type_name<i64>() {
  return "an integer";
}
template <>
inline std::string type_name<int>() {
  return "an integer";
}
template <>
inline std::string type_name<double>() {
  return "a number";
}
template <>
inline std::string type_name<std::string>() {
  return "text";
}
template <>
inline std::string type_name<ConfigNode>() {
  return "a section";
}
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
void check(const ConfigNode&, double value, const Range&);
void check(const ConfigNode&, const std::string& value, const OneOf&);
std::string shown(const ConfigNode&);  // 'text', null, a section, a list
[[noreturn]] void fail(const ConfigNode&, const std::string& got, const std::string& expected);
}  // namespace detail

// Reads a struct from a map. Unknown keys are errors with the nearest spelling.
class FieldReader {
 public:
  explicit FieldReader(const ConfigNode& node) : node_(node) {}
  template <class T>
  void operator()(const char* key, T& value, const char* help) {
    read(key, value, static_cast<const void*>(nullptr));
  }
  template <class T, class Check>
  void operator()(const char* key, T& value, const Check& check, const char* help) {
    read(key, value, &check);
  }
  void allow(const char* key) { known_.push_back(key); }  // read elsewhere (for example "type")
  void finish();                                          // unknown keys; throws ConfigError with every message

 private:
  template <class T, class Check>
  static void value(const ConfigNode& n, T& out, const Check* check);
  template <class T, class Check>
  void read(const char* key, T& out, const Check* check) {
    known_.push_back(key);
    const ConfigNode& n = node_[key];
    if (!n) return;
    try {
      value(n, out, check);
    } catch (const ConfigError& e) {
      errors_.push_back(e.what());
    }
  }
  const ConfigNode& node_;
  std::vector<std::string> known_, errors_;
};

// Writes a struct's current values as a map.
class FieldWriter {
 public:
  template <class T>
  void operator()(const char* key, T& value, const char*) {
    node_.set(key, write(value));
  }
  template <class T, class Check>
  void operator()(const char* key, T& value, const Check&, const char*) {
    node_.set(key, write(value));
  }
  void allow(const char*) {}
  ConfigNode result() { return std::move(node_); }
  template <class T>
  static ConfigNode write(T& value);

 private:
  ConfigNode node_ = ConfigNode::map();
};

// One line a key: name, type or choices, default, range, help. For --explain and the generated docs.
struct FieldHelp {
  std::string key, type, default_value, help;
};
class FieldExplainer {
 public:
  explicit FieldExplainer(std::string prefix = "") : prefix_(std::move(prefix)) {}
  template <class T>
  void operator()(const char* key, T& value, const char* help) {
    add(key, value, "", help);
  }
  template <class T>
  void operator()(const char* key, T& value, const Range& r, const char* help) {
    add(key, value, r.str(), help);
  }
  template <class T>
  void operator()(const char* key, T& value, const OneOf& o, const char* help) {
    add(key, value, "one of: " + join(o.choices), help);
  }
  void allow(const char*) {}
  std::vector<FieldHelp> result() { return std::move(lines_); }

 private:
  template <class T>
  void add(const char* key, T& value, const std::string& limits, const char* help);
  std::string prefix_;
  std::vector<FieldHelp> lines_;
};

template <class C>
C read_config(const ConfigNode& node, C c = {}, std::initializer_list<const char*> other_keys = {}) {
  if (node && !node.is_map() && !node.is_null()) detail::fail(node, detail::shown(node), "a section with keys");
  FieldReader reader(node);
  for (const char* key : other_keys) reader.allow(key);
  visit_fields(reader, c);
  reader.finish();
  return c;
}
template <class C>
ConfigNode write_config(const C& c) {
  FieldWriter writer;
  visit_fields(writer, const_cast<C&>(c));
  return writer.result();
}
template <class C>
std::vector<FieldHelp> explain_config(const std::string& prefix = "", C c = {}) {
  FieldExplainer explainer(prefix);
  visit_fields(explainer, c);
  return explainer.result();
}
std::string format_help(const std::vector<FieldHelp>&);  // aligned text

template <class T, class Check>
void FieldReader::value(const ConfigNode& n, T& out, const Check* check) {
  if constexpr (detail::IsOptional<T>::value) {
    if (n.is_null()) {
      out.reset();
    } else {
      typename T::value_type v{};
      value(n, v, check);
      out = std::move(v);
    }
  } else if constexpr (detail::IsVector<T>::value) {
    if (!n.is_sequence()) detail::fail(n, detail::shown(n), "a list");
    out.clear();
    for (const ConfigNode& item : n.items()) {
      typename T::value_type v{};
      value(item, v, check);
      out.push_back(std::move(v));
    }
  } else if constexpr (HasFields<T, FieldReader>) {
    out = read_config<T>(n, out);
  } else {
    detail::read_scalar(n, out);
    if constexpr (std::is_same_v<Check, Range>) {
      if (check) detail::check(n, static_cast<double>(out), *check);
    } else if constexpr (std::is_same_v<Check, OneOf>) {
      if (check) detail::check(n, out, *check);
    }
  }
}

template <class T>
ConfigNode FieldWriter::write(T& value) {
  if constexpr (detail::IsOptional<T>::value) {
    return value ? write(*value) : ConfigNode::null();
  } else if constexpr (detail::IsVector<T>::value) {
    ConfigNode list = ConfigNode::sequence();
    for (auto& item : value) list.push_back(write(item));
    return list;
  } else if constexpr (HasFields<T, FieldWriter>) {
    return write_config(value);
  } else if constexpr (std::is_same_v<std::remove_const_t<T>, ConfigNode>) {
    return value ? value : ConfigNode::null();
  } else if constexpr (std::is_same_v<std::remove_const_t<T>, std::string>) {
    return detail::write_node(value);
  } else {
    return ConfigNode::scalar(detail::write_scalar(value));
  }
}

template <class T>
void FieldExplainer::add(const char* key, T& value, const std::string& limits, const char* help) {
  if constexpr (HasFields<T, FieldExplainer>) {
    lines_.push_back({prefix_ + key, "section", "", help});
    for (FieldHelp& line : explain_config<T>(prefix_ + key + ".", value)) lines_.push_back(std::move(line));
  } else {
    std::string type;
    if constexpr (detail::IsOptional<T>::value)
      type = "null or " + detail::type_name<typename T::value_type>();
    else if constexpr (detail::IsVector<T>::value) {
      if constexpr (HasFields<typename T::value_type, FieldExplainer>)
        type = "list of sections";
      else
        type = "list, each " + detail::type_name<typename T::value_type>();
    } else
      type = detail::type_name<T>();
    if (!limits.empty()) type = limits.rfind("one of", 0) == 0 ? limits : type + ", " + limits;
    lines_.push_back({prefix_ + key, type, FieldWriter::write(value).json(), help});
  }
}

}  // namespace tapeformer
