// process.h: a program run as a process, with what it printed and how it ended.
#pragma once
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/data/temp_dir.h"

namespace tapeformer {

inline std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

class Process {  // build/apps/NAME ARGUMENTS, in a folder
 public:
  Process(const TempDir& dir, const std::string& name, const std::vector<std::string>& arguments, const std::string& input = "")
      : out_(dir / "stdout.txt"), err_(dir / "stderr.txt") {
    dir.write("stdin.txt", input);
    std::vector<std::string> words = {std::string(BINARY_DIR) + "/apps/" + name};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    const std::string in = dir / "stdin.txt", folder = dir.str();
    pid_ = ::fork();
    if (pid_ != 0) return;

    if (::chdir(folder.c_str()) != 0) ::_exit(99);
    ::dup2(::open(in.c_str(), O_RDONLY), 0);
    ::dup2(::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
    ::dup2(::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
    ::execv(argv[0], argv.data());
    ::_exit(98);
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  void signal(int number) { ::kill(pid_, number); }
  bool running() {
    if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ > 0;
  }
  int wait() {  // exit code, or -signal
    if (pid_ > 0) ::waitpid(pid_, &status_, 0);
    pid_ = 0;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  std::string out() const { return text_of(out_); }
  std::string err() const { return text_of(err_); }

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace tapeformer
