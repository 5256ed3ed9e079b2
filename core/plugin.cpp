#include "core/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/registry.h"

namespace tapeformer {
namespace {

// The loader maps what the file's tables name without asking how long the file is; a copy that broke off would end the program.
void check_complete(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(path));
  Elf64_Ehdr head{};
  in.read(reinterpret_cast<char*>(&head), sizeof head);
  if (!in || std::string_view(reinterpret_cast<char*>(head.e_ident), SELFMAG) != ELFMAG || head.e_ident[EI_CLASS] != ELFCLASS64)
    throw IoError(fmt::format("{}: is no shared library", path));
  std::uint64_t end = head.e_shoff + static_cast<std::uint64_t>(head.e_shnum) * head.e_shentsize;
  in.seekg(static_cast<std::streamoff>(head.e_phoff));
  for (int i = 0; i < head.e_phnum && in; ++i) {
    Elf64_Phdr part{};
    in.read(reinterpret_cast<char*>(&part), sizeof part);
    if (part.p_type == PT_LOAD) end = std::max(end, part.p_offset + part.p_filesz);
  }
  if (!in || end > size) throw IoError(fmt::format("{}: breaks off after {} bytes", path, size));
}

}  // namespace

Registrations& registrations() {
  static Registrations all;
  return all;
}

void check_registrations() {
  if (!registrations().errors.empty()) throw ConfigError(join(registrations().errors, "\n"));
}

void load_plugin(const std::string& path) {
  if (!std::filesystem::is_regular_file(path))
    throw IoError(fmt::format("--load '{}': {}", path, std::filesystem::exists(path) ? "is no file" : "no such file"));
  check_complete(path);
  const i64 before = registrations().count;
  // An absolute path: otherwise the loader searches its own folders for a plain name.
  if (dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw IoError(fmt::format("{}: cannot be loaded: {}", path, dlerror()));
  check_registrations();
  if (registrations().count == before)
    throw ConfigError(fmt::format("{}: registers nothing (loaded twice, or without register_attention, register_model, ...)", path));
}

}  // namespace tapeformer
