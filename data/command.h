// command.h: the output of a program.
#pragma once
#include <functional>
#include <string>

namespace tapeformer {

// Calls `line` for each line that the shell command prints. IoError when it cannot be run or fails.
void each_output_line(const std::string& command, const std::function<void(const std::string&)>& line);
std::string shell_quoted(const std::string&);

}  // namespace tapeformer
