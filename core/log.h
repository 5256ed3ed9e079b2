// log.h: one logger. train, apps and data (what was left out, cut or read otherwise) log; ops and layers stay silent.
#pragma once
#include <string>

namespace tapeformer::log {

void info(const std::string&);
void warn(const std::string&);
void error(const std::string&);
void to_file(const std::string& path);  // also append to a file from now on; "" stops that
void set_quiet(bool);                   // warnings and errors only on the terminal

}  // namespace tapeformer::log
