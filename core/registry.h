// registry.h: name -> entry, filled by files that register themselves at start-up or when their library is loaded (core/plugin.h).
#pragma once
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/shape.h"

namespace tapeformer {

// What all registries were told. Registering runs before main or inside the loader, where nothing can be thrown: a name taken twice is
// kept here, and the first entry stays.
struct Registrations {
  i64 count = 0;
  std::vector<std::string> errors;
};
Registrations& registrations();

template <class Entry>
class Registry {
 public:
  explicit Registry(std::string what) : what_(std::move(what)) {}

  // file: where it was registered (__FILE__ of the caller), for the message about a name taken twice.
  bool add(const std::string& name, Entry entry, const char* file = __builtin_FILE()) {
    const auto [it, fresh] = entries_.try_emplace(name, Item{std::move(entry), file});
    if (fresh)
      ++registrations().count;
    else
      registrations().errors.push_back(fmt::format("{} '{}' is registered by {} and by {}", what_, name, it->second.file, file));
    return fresh;
  }
  bool contains(const std::string& name) const { return entries_.count(name) > 0; }
  const Entry& get(const std::string& name) const {  // ConfigError lists the known names
    const auto it = entries_.find(name);
    if (it == entries_.end())
      throw ConfigError(
          fmt::format("unknown {}: got '{}', expected one of: {}{}", what_, name, join(names()), did_you_mean(name, names())));
    return it->second.entry;
  }
  std::vector<std::string> names() const {  // sorted
    std::vector<std::string> out;
    for (const auto& [name, item] : entries_) out.push_back(name);
    return out;
  }
  const std::string& file(const std::string& name) const { return entries_.at(name).file; }

 private:
  struct Item {
    Entry entry;
    std::string file;
  };
  std::string what_;
  std::map<std::string, Item> entries_;
};

}  // namespace tapeformer
