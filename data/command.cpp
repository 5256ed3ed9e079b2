#include "data/command.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/error.h"

namespace tapeformer {

void each_output_line(const std::string& command, const std::function<void(const std::string&)>& line) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw IoError(fmt::format("'{}' cannot be run", command));
  std::unique_ptr<FILE, int (*)(FILE*)> owner(pipe, &::pclose);
  char* buffer = nullptr;
  std::size_t capacity = 0;
  for (ssize_t size; (size = ::getline(&buffer, &capacity, pipe)) >= 0;) {
    if (size > 0 && buffer[size - 1] == '\n') --size;
    line(std::string(buffer, static_cast<std::size_t>(size)));
  }
  std::free(buffer);
  const int status = ::pclose(owner.release());
  if (status != 0) throw IoError(fmt::format("'{}' failed (is the program installed?)", command));
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  out += '\'';
  return out;
}

}  // namespace tapeformer
