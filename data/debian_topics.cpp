#include "data/debian_topics.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/hdf5_file.h"
#include "data/command.h"
#include "data/hash_split.h"

namespace tapeformer {
namespace {

constexpr const char* kHelper = "/usr/lib/apt/apt-helper";
const std::vector<std::string> kTopics{"admin", "fonts", "games", "graphics", "net", "science", "sound", "text"};

using Stanza = std::map<std::string, std::string>;  // field -> value; the lines of a long value are joined by line breaks

// Paragraphs of "Field: value" lines, continued by lines that begin with a blank.
void each_stanza(const std::string& command, const std::function<void(const Stanza&)>& f) {
  Stanza stanza;
  std::string field;
  each_output_line(command, [&](const std::string& line) {
    if (line.empty()) {
      if (!stanza.empty()) f(stanza);
      stanza.clear();
    } else if (line[0] == ' ') {
      stanza[field].append("\n").append(line, 1);
    } else if (const auto colon = line.find(':'); colon != std::string::npos) {
      field = line.substr(0, colon);
      stanza[field] = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    }
  });
  if (!stanza.empty()) f(stanza);
}

std::string value(const Stanza& s, const std::string& field) {
  const auto it = s.find(field);
  return it == s.end() ? "" : it->second;
}

struct Package {
  std::string name, topic, synopsis, description_md5, text;  // text: the whole description, or ""
};

// "contrib/games" -> "games"
std::string topic_of(const std::string& section) { return section.substr(section.rfind('/') + 1); }

// "gcc-12 (12.2.0-14)" -> "gcc-12"; a package without the field is its own source.
std::string source_of(const Stanza& s) {
  const std::string source = value(s, "Source");
  return source.empty() ? value(s, "Package") : source.substr(0, source.find(' '));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// source -> its first package by name among the topics
std::map<std::string, Package> read_packages() {
  std::map<std::string, Package> out;
  bool any = false;
  each_stanza("LC_ALL=C apt-cache dumpavail", [&](const Stanza& s) {
    any = true;
    Package p{value(s, "Package"), topic_of(value(s, "Section")), first_line(value(s, "Description")), value(s, "Description-md5"), ""};
    if (p.synopsis.empty()) p.synopsis = first_line(value(s, "Description-en"));
    if (p.synopsis.empty() || std::find(kTopics.begin(), kTopics.end(), p.topic) == kTopics.end()) return;
    const auto [it, fresh] = out.try_emplace(source_of(s), p);
    if (!fresh && p.name < it->second.name) it->second = std::move(p);
  });
  if (!any) throw IoError("apt-cache dumpavail prints nothing; `apt-get update` fetches the package lists");
  if (out.empty()) throw IoError("apt-cache dumpavail names no package of the sections " + join(kTopics));
  return out;
}

std::vector<std::string> translation_lists(const std::string& lists) {
  std::vector<std::string> out;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(lists, none))
    if (entry.path().filename().string().find("_i18n_Translation-en") != std::string::npos) out.push_back(entry.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

// Synopsis and body on one line; a line with a lone full stop stands for an empty one.
std::string flowing(const std::string& description) {
  std::string out, line;
  for (char c : description + "\n") {
    if (c != '\n') {
      line += c;
      continue;
    }
    const auto start = line.find_first_not_of(' ');
    if (start != std::string::npos && line != ".") out.append(out.empty() ? "" : " ").append(line, start);
    line.clear();
  }
  return out;
}

void add_long_texts(std::map<std::string, Package>& packages, const std::string& lists) {
  std::map<std::string, Package*> by_md5;
  for (auto& [source, p] : packages)
    if (!p.description_md5.empty()) by_md5[p.name + " " + p.description_md5] = &p;
  for (const std::string& list : translation_lists(lists))
    each_stanza(std::string(kHelper) + " cat-file " + shell_quoted(list), [&](const Stanza& s) {
      const auto it = by_md5.find(value(s, "Package") + " " + value(s, "Description-md5"));
      if (it == by_md5.end()) return;
      for (const char* field : {"Description-en", "Description-en_GB"})
        if (it->second->text.empty()) it->second->text = flowing(value(s, field));
    });
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (char c : text) out.append(c == '"' ? 2 : 1, c);
  out += '"';
  return out;
}

TopicCounts write_parts(const std::map<std::string, Package>& packages, const std::filesystem::path& dir, std::string Package::*text) {
  std::map<Part, std::string> csv;
  std::map<Part, i64> count;
  for (const auto& [source, p] : packages) {
    if ((p.*text).empty()) continue;
    const Part part = part_of(source);
    csv[part] += p.topic + "," + csv_field(p.*text) + "\n";
    ++count[part];
  }
  if (csv.empty()) return {};
  std::filesystem::create_directories(dir);
  for (Part part : {Part::Train, Part::Valid, Part::Test})
    write_file_atomically((dir / fmt::format("{}.csv", name_of(part))).string(), "label,text\n" + csv[part]);
  return {count[Part::Train], count[Part::Valid], count[Part::Test]};
}

}  // namespace

DebianTopics debian_topics(const std::string& out_dir, const std::string& lists) {
  std::map<std::string, Package> packages = read_packages();
  add_long_texts(packages, lists);
  const std::filesystem::path dir(out_dir);
  return {write_parts(packages, dir / "short", &Package::synopsis), write_parts(packages, dir / "long", &Package::text)};
}

}  // namespace tapeformer
