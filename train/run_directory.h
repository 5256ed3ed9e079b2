// run_directory.h: the files of a run. config.yaml (resolved), log.txt, steps.jsonl and validations.jsonl (nothing in them depends on time,
// so a continued run has the same bytes as an uninterrupted one), checkpoints/{last,previous,best}.h5.
#pragma once
#include <string>

#include "train/trainer.h"

namespace tapeformer {

class JsonLines {  // lines that each begin with {"step": N, appended whole
 public:
  JsonLines(const std::string& path, i64 keep_until);  // lines of later steps, and a cut-off last line, are removed
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  void write(const std::string& line);
  void sync();  // to disk
  i64 kept() const { return kept_; }

 private:
  std::string path_;
  int fd_ = -1;
  i64 kept_ = 0;
};

class RunDirectory {  // locked while alive: IoError when another process trains in it
 public:
  explicit RunDirectory(const std::string& path);  // made when absent
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  bool has_checkpoints() const;
  void remove_checkpoints();
  void open_metrics(const TrainState&);  // cut back to the state's step
  void write(const StepReport&);
  void write(const ValidationReport&, bool has_valid);
  void sync();
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

 private:
  std::string path_;
  int lock_ = -1;
  std::unique_ptr<JsonLines> steps_, validations_;
};

}  // namespace tapeformer
