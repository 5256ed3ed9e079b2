#include "core/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"

namespace tapeformer {

void load_plugin(const std::string& path) {
  if (!std::filesystem::exists(path)) throw IoError(fmt::format("{}: no such file", path));
  // An absolute path: otherwise the loader searches its own folders for a plain name.
  if (dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw IoError(fmt::format("{}: cannot be loaded: {}", path, dlerror()));
}

}  // namespace tapeformer
