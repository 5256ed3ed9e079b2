#include "core/config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tapeformer {

struct ConfigParser {
  static constexpr int kMaxNodes = 1000000;  // aliases are copied: a few lines could ask for billions
  static ConfigNode convert(const YAML::Node& y, const std::string& path, const std::shared_ptr<const std::string>& file, int& count,
                            int depth = 0) {
    ConfigNode n;
    n.path_ = path;
    n.file_ = file;
    n.line_ = y.Mark().line + 1;
    if (++count > kMaxNodes) throw ConfigError(fmt::format("{}: holds more than {} values", n.place(), kMaxNodes));
    if (depth > 64) throw ConfigError(n.place() + ": nested deeper than 64 levels");
    switch (y.Type()) {
      case YAML::NodeType::Undefined:
        break;
      case YAML::NodeType::Null:
        n.kind_ = ConfigNode::Kind::Null;
        break;
      case YAML::NodeType::Scalar:
        n.kind_ = ConfigNode::Kind::Scalar;
        n.text_ = y.Scalar();
        n.quoted_ = y.Tag() == "!";
        break;
      case YAML::NodeType::Sequence:
        n.kind_ = ConfigNode::Kind::Sequence;
        for (std::size_t i = 0; i < y.size(); ++i)
          n.items_.push_back(convert(y[i], fmt::format("{}[{}]", path, i), file, count, depth + 1));
        break;
      case YAML::NodeType::Map:
        n.kind_ = ConfigNode::Kind::Map;
        for (const auto& entry : y) {
          if (!entry.first.IsScalar()) throw ConfigError(n.place() + ": a key must be plain text");
          const std::string key = entry.first.Scalar();
          ConfigNode value = convert(entry.second, path.empty() ? key : path + "." + key, file, count, depth + 1);
          if (n[key]) throw ConfigError(value.place() + ": the key stands twice, first in line " + std::to_string(n[key].line_));
          n.entries_.emplace_back(key, std::move(value));
        }
        break;
    }
    return n;
  }

  static void emit(YAML::Emitter& out, const ConfigNode& n) {
    if (n.is_scalar()) {
      if (n.quoted()) out << YAML::DoubleQuoted;
      out << n.text();
    } else if (n.is_sequence()) {
      bool flat = true;
      for (const ConfigNode& item : n.items()) flat = flat && !item.is_map() && !item.is_sequence();
      if (flat) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const ConfigNode& item : n.items()) emit(out, item);
      out << YAML::EndSeq;
    } else if (n.is_map()) {
      out << YAML::BeginMap;
      for (const auto& [key, value] : n.entries()) {
        out << YAML::Key << key << YAML::Value;
        emit(out, value);
      }
      out << YAML::EndMap;
    } else {
      out << YAML::Null;
    }
  }
};

// YAML::Load reads the first document of a text and drops the rest.
struct DocumentStarts final : YAML::EventHandler {
  std::vector<YAML::Mark> starts;
  void OnDocumentStart(const YAML::Mark& m) override { starts.push_back(m); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

static void check_one_document(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStarts seen;
  if (!parser.HandleNextDocument(seen) || !parser.HandleNextDocument(seen)) return;
  const YAML::Mark &first = seen.starts[0], &second = seen.starts[1];
  throw ConfigError(fmt::format(
      "{}:{}: {}", name, second.line + 1,
      first.pos == second.pos ? "not valid YAML: a key cannot begin like this" : "a second document begins here, expected one"));
}

ConfigNode ConfigNode::parse(const std::string& text, const std::string& name) {
  try {
    int count = 0;
    check_one_document(text, name);
    ConfigNode n = ConfigParser::convert(YAML::Load(text), "", std::make_shared<const std::string>(name), count);
    if (!n || n.is_null()) return map();
    return n;
  } catch (const YAML::Exception& e) {
    throw ConfigError(fmt::format("{}:{}: not valid YAML: {}", name, e.mark.line + 1, e.msg));
  }
}

ConfigNode ConfigNode::load(const std::string& file) {
  if (std::filesystem::is_directory(file)) throw IoError(file + ": is a folder, expected a configuration file");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw IoError(file + ": cannot open the configuration");
  std::stringstream text;
  text << in.rdbuf();
  if (in.bad()) throw IoError(file + ": cannot read the configuration");
  ConfigNode n = parse(text.str(), file);
  if (!n.is_map()) throw ConfigError(file + ":1: expected 'key: value' lines");
  return n;
}

ConfigNode ConfigNode::scalar(std::string text) {
  ConfigNode n(Kind::Scalar);
  n.text_ = std::move(text);
  return n;
}

const ConfigNode& ConfigNode::operator[](std::string_view key) const {
  static const ConfigNode undefined;
  for (const auto& [name, value] : entries_)
    if (name == key) return value;
  return undefined;
}

std::vector<std::string> ConfigNode::keys() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : entries_) out.push_back(name);
  return out;
}

void ConfigNode::set_places(const std::string& path) {
  path_ = path;
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].set_places(fmt::format("{}[{}]", path, i));
  for (auto& [key, value] : entries_) value.set_places(path.empty() ? key : path + "." + key);
}

ConfigNode& ConfigNode::set(const std::string& key, ConfigNode value) {
  if (kind_ == Kind::Undefined || kind_ == Kind::Null) kind_ = Kind::Map;
  TAPEFORMER_ASSERT(kind_ == Kind::Map, "set on a node that is no map");
  value.set_places(path_.empty() ? key : path_ + "." + key);
  for (auto& [name, old] : entries_)
    if (name == key) return old = std::move(value);
  entries_.emplace_back(key, std::move(value));
  return entries_.back().second;
}

void ConfigNode::erase(std::string_view key) {
  std::erase_if(entries_, [&](const auto& e) { return e.first == key; });
}

ConfigNode& ConfigNode::push_back(ConfigNode value) {
  value.set_places(fmt::format("{}[{}]", path_, items_.size()));
  items_.push_back(std::move(value));
  return items_.back();
}

void ConfigNode::set_path(const std::string& dotted, const std::string& yaml_value) {
  ConfigNode value;
  try {
    int count = 0;
    check_one_document("v: " + yaml_value, "--set " + dotted);
    value = ConfigParser::convert(YAML::Load("v: " + yaml_value)["v"], dotted, std::make_shared<const std::string>("--set"), count);
  } catch (const YAML::Exception& e) {
    throw ConfigError(fmt::format("--set {}: not valid YAML: {}", dotted, e.msg));
  }
  ConfigNode* at = this;
  std::size_t start = 0;
  while (true) {
    const std::size_t dot = dotted.find('.', start);
    const std::string key = dotted.substr(start, dot == std::string::npos ? dot : dot - start);
    if (key.empty()) throw ConfigError(fmt::format("--set {}: a key is empty", dotted));
    ConfigNode* next = nullptr;
    if (at->is_sequence()) {  // data.files.0=...
      std::size_t index = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc{} || end != key.data() + key.size() || index >= at->items_.size())
        throw ConfigError(fmt::format("--set {}: got '{}', expected an index below {}", dotted, key, at->items_.size()));
      next = &at->items_[index];
    } else if (!at->is_map() && !at->is_null() && *at) {
      throw ConfigError(fmt::format("--set {}: '{}' holds a value, not a section", dotted, at->path_));
    } else {
      for (auto& [name, value] : at->entries_)
        if (name == key) next = &value;
      if (next == nullptr) {
        next = &at->set(key, map());
        next->file_ = std::make_shared<const std::string>("--set");
      }
    }
    if (dot == std::string::npos) {
      if (!next->entries_.empty() && value.is_null())
        throw ConfigError(fmt::format("--set {}: got null, expected the keys of the section to change", dotted));
      const std::string path = next->path_;
      *next = std::move(value);
      next->set_places(path);
      next->line_ = 0;
      return;
    }
    at = next;
    start = dot + 1;
  }
}

void ConfigNode::overlay(const ConfigNode& over) {
  const ConfigNode &type = (*this)["type"], &new_type = over["type"];
  if (!is_map() || !over.is_map() || (type && new_type && type != new_type)) {
    if (is_map() && over.is_null()) detail::fail(over, "null", "the keys of the section to change");
    *this = over;
    return;
  }
  for (const auto& [key, value] : over.entries_) {
    const auto old = std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.first == key; });
    if (old == entries_.end())
      entries_.emplace_back(key, value);
    else
      old->second.overlay(value);
  }
}

std::string ConfigNode::place() const {
  std::string at = file_ ? *file_ : "configuration";
  if (line_ > 0) at += ":" + std::to_string(line_);
  return path_.empty() ? at : at + ": " + path_;
}

void ConfigNode::place_as(const ConfigNode& source) {
  if (!source) return;
  path_ = source.path_;
  file_ = source.file_;
  line_ = source.line_;
  for (auto& [key, value] : entries_)
    if (const ConfigNode& from = source[key])
      value.place_as(from);
    else
      value.file_ = file_, value.line_ = line_, value.set_places(path_.empty() ? key : path_ + "." + key);
  for (std::size_t i = 0; i < std::min(items_.size(), source.items_.size()); ++i) items_[i].place_as(source.items_[i]);
}

std::string ConfigNode::located(const std::string& message) const {
  const ConfigNode* at = this;
  const std::string path = message.substr(0, message.find(':'));
  for (std::size_t start = 0; start <= path.size();) {
    const std::size_t dot = std::min(path.find('.', start), path.size());
    std::string key = path.substr(start, dot - start);
    const std::size_t bracket = std::min(key.find('['), key.size());
    const ConfigNode& next = (*at)[key.substr(0, bracket)];
    if (!next) break;
    at = &next;
    std::size_t index = 0;
    if (bracket < key.size() && std::from_chars(key.data() + bracket + 1, key.data() + key.size(), index).ec == std::errc{} &&
        index < next.items_.size())
      at = &next.items_[index];
    start = dot + 1;
  }
  if (at == this || !at->file_) return message;
  return at->line_ == 0 ? fmt::format("{}: {}", *at->file_, message) : fmt::format("{}:{}: {}", *at->file_, at->line_, message);
}

std::string ConfigNode::yaml() const {
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  ConfigParser::emit(out, *this);
  return std::string(out.c_str()) + "\n";
}

namespace {

std::string json_text(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          out += fmt::format("\\u{:04x}", c);
        else
          out += c;
    }
  }
  return out + "\"";
}

bool is_json_number_or_bool(const std::string& s) {
  if (s == "true" || s == "false") return true;
  double x;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
  if (error != std::errc{} || end != s.data() + s.size() || !std::isfinite(x)) return false;
  const std::string body = s[0] == '-' ? s.substr(1) : s;
  if (body.size() > 1 && body[0] == '0' && std::isdigit(static_cast<unsigned char>(body[1]))) return false;
  const std::size_t point = body.find('.');
  const bool digit_after =
      point == std::string::npos || (point + 1 < body.size() && std::isdigit(static_cast<unsigned char>(body[point + 1])));
  return std::isdigit(static_cast<unsigned char>(body[0])) && digit_after;
}

}  // namespace

std::string ConfigNode::json() const {
  switch (kind_) {
    case Kind::Undefined:
    case Kind::Null:
      return "null";
    case Kind::Scalar:
      return !quoted_ && is_json_number_or_bool(text_) ? text_ : json_text(text_);
    case Kind::Sequence: {
      std::string out = "[";
      for (const ConfigNode& item : items_) out += (out.size() > 1 ? ", " : "") + item.json();
      return out + "]";
    }
    case Kind::Map:
      break;
  }
  std::string out = "{";
  for (const auto& [key, value] : entries_) out += (out.size() > 1 ? ", " : "") + json_text(key) + ": " + value.json();
  return out + "}";
}

bool operator==(const ConfigNode& a, const ConfigNode& b) {
  return a.kind_ == b.kind_ && a.text_ == b.text_ && a.items_ == b.items_ && a.entries_ == b.entries_;
}

std::string Range::str() const {
  const bool upper = high<1e299, lower = low> - 1e299;
  if (lower && upper) return fmt::format("{}{} to {}", open_low ? "above " : "", low, high);
  if (lower) return open_low ? fmt::format("above {}", low) : fmt::format("at least {}", low);
  return upper ? fmt::format("at most {}", high) : "any number";
}

namespace detail {

std::string shown(const ConfigNode& n) {
  if (n.is_scalar()) return "'" + n.text() + "'";
  return n.is_null() ? "null" : n.is_map() ? "a section" : "a list";
}

void fail(const ConfigNode& n, const std::string& got, const std::string& expected) {
  throw ConfigError(fmt::format("{}: got {}, expected {}", n.place(), got, expected));
}

namespace {

template <class T>
T number(const ConfigNode& n, const char* expected) {
  T x{};
  const std::string& s = n.text();
  const char* first = s.data() + (s.size() > 1 && s[0] == '+' && s[1] != '-');
  const auto [end, error] = std::from_chars(first, s.data() + s.size(), x);
  if (!n.is_scalar() || n.quoted() || error != std::errc{} || end != s.data() + s.size()) fail(n, shown(n), expected);
  return x;
}

}  // namespace

void read_scalar(const ConfigNode& n, bool& out) {
  const std::string& s = n.text();
  if (n.is_scalar() && (s == "true" || s == "True" || s == "yes" || s == "on"))
    out = true;
  else if (n.is_scalar() && (s == "false" || s == "False" || s == "no" || s == "off"))
    out = false;
  else
    fail(n, shown(n), "true or false");
}
void read_scalar(const ConfigNode& n, i64& out) { out = number<i64>(n, "an integer"); }
void read_scalar(const ConfigNode& n, int& out) { out = number<int>(n, "an integer"); }
void read_scalar(const ConfigNode& n, double& out) {
  const double x = number<double>(n, "a number");
  if (!std::isfinite(x)) fail(n, shown(n), "a finite number");
  out = x;
}
void read_scalar(const ConfigNode& n, std::string& out) {
  if (!n.is_scalar()) fail(n, shown(n), "text");
  out = n.text();
}

std::string write_scalar(bool x) { return x ? "true" : "false"; }
std::string write_scalar(i64 x) { return std::to_string(x); }
std::string write_scalar(int x) { return std::to_string(x); }
std::string write_scalar(double x) { return fmt::format("{}", x); }

ConfigNode write_node(const std::string& text) {
  // Quoted where the plain form would be read as something else.
  ConfigNode n = ConfigNode::scalar(text);
  ConfigNode again;
  try {
    again = ConfigNode::parse("v: " + text, "")["v"];
  } catch (const ConfigError&) {
  }
  if (again.is_scalar() && again.text() == text && !again.quoted() && !is_json_number_or_bool(text)) return n;
  return ConfigNode::parse("v: " + json_text(text), "")["v"];
}

void check(const ConfigNode& n, double value, const Range& range) {
  if (!range.contains(value)) fail(n, n.text(), range.str());
}

void check(const ConfigNode& n, const std::string& value, const OneOf& one) {
  if (std::find(one.choices.begin(), one.choices.end(), value) == one.choices.end())
    fail(n, "'" + value + "'", "one of: " + join(one.choices) + did_you_mean(value, one.choices));
}

}  // namespace detail

void FieldReader::finish() {
  for (const auto& [key, value] : node_.entries())
    if (std::find(known_.begin(), known_.end(), key) == known_.end())
      errors_.push_back(fmt::format("{}: unknown key, expected one of: {}{}", value.place(), join(known_), did_you_mean(key, known_)));
  if (!errors_.empty()) throw ConfigError(join(errors_, "\n"));
}

std::string format_help(const std::vector<FieldHelp>& lines) {
  std::size_t width = 0, type_width = 0;
  for (const FieldHelp& line : lines) {
    width = std::max(width, line.key.size());
    type_width = std::max(type_width, std::min<std::size_t>(line.type.size(), 40));
  }
  std::string out;
  for (const FieldHelp& line : lines)
    out += fmt::format("{:<{}}  {:<{}}  {}{}\n", line.key, width, line.type, type_width, line.help,
                       line.default_value.empty() ? "" : fmt::format(" (default {})", line.default_value));
  return out;
}

}  // namespace tapeformer
