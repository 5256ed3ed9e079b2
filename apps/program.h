// program.h: what every program does alike: arguments, errors as one clear line each, exit codes. 0 only on success, 1 for what went wrong,
// 2 for a command line that makes no sense.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/plugin.h"

namespace tapeformer::apps {

inline void print_error(const std::string& message) {
  for (std::size_t start = 0; start <= message.size();) {
    const std::size_t end = std::min(message.find('\n', start), message.size());
    const std::string line = message.substr(start, end - start);
    if (!line.empty()) std::fprintf(stderr, "%s%s\n", line[0] == ' ' ? "  " : "error: ", line.c_str());
    start = end + 1;
  }
}

// Parses, loads what --load names, runs `body`, and turns every exception into a message and an exit code.
template <class Body>
int run_program(CLI::App& app, int argc, char** argv, Body&& body) {
  std::vector<std::string> plugins;
  app.add_option("--load", plugins, "shared library with attention variants, models or optimizers of your own; may be repeated")
      ->type_name("FILE.so")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    print_error(e.what());
    std::fprintf(stderr, "try %s --help\n", app.get_name().c_str());
    return 2;
  }
  try {
    check_registrations();
    for (const std::string& plugin : plugins) load_plugin(plugin);
    return body();
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  std::fflush(nullptr);
  std::_Exit(1);  // libraries' exit handlers can wait for ever once memory has run out
}

// Text to standard output; IoError when it cannot be written.
inline void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw IoError("standard output cannot be written");
}

}  // namespace tapeformer::apps
