// predict.cpp: labels for lines of text, or for files of sound, images or graphs.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/program.h"
#include "train/trained_model.h"

using namespace tapeformer;

namespace {

struct Options {
  std::string checkpoint;
  std::vector<std::string> files;
  i64 top = 1, batch = 0;
  bool json = false;
  int threads = 0;
};

class LineReader {  // lines of a file descriptor; tells when the next line is not there yet
 public:
  explicit LineReader(const std::string& name) : name_(name), fd_(name == "-" ? STDIN_FILENO : ::open(name.c_str(), O_RDONLY)) {
    if (fd_ < 0) throw IoError(fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  }
  ~LineReader() {
    if (fd_ > STDIN_FILENO) ::close(fd_);
  }
  LineReader(const LineReader&) = delete;
  std::optional<std::string> next() {
    while (true) {
      if (const std::size_t end = buffer_.find('\n', at_); end != std::string::npos) {
        std::string line = buffer_.substr(at_, end - at_);
        at_ = end + 1;
        return tidy(std::move(line));
      }
      if (end_) {
        if (at_ >= buffer_.size()) return std::nullopt;
        std::string line = buffer_.substr(at_);
        at_ = buffer_.size();
        return tidy(std::move(line));
      }
      fill();
    }
  }
  bool must_wait() const {  // the next line would have to be waited for
    if (end_ || buffer_.find('\n', at_) != std::string::npos) return false;
    pollfd p{fd_, POLLIN, 0};
    return ::poll(&p, 1, 0) == 0;
  }

 private:
  static std::string tidy(std::string line) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }
  void fill() {
    buffer_.erase(0, at_);
    at_ = 0;
    char chunk[65536];
    const ssize_t n = ::read(fd_, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) return;
    if (n < 0) throw IoError(fmt::format("{}: cannot be read: {}", name_, std::strerror(errno)));
    if (n == 0)
      end_ = true;
    else
      buffer_.append(chunk, static_cast<std::size_t>(n));
  }
  std::string name_, buffer_;
  std::size_t at_ = 0;
  int fd_;
  bool end_ = false;
};

class Writer {  // collects inputs, predicts them as a batch, prints in order
 public:
  Writer(const TrainedModel& model, const Options& o)
      : model_(model), o_(o), batch_(static_cast<std::size_t>(o.batch > 0 ? o.batch : model.config().train.eval_batch_size)) {}

  // `make` gives the sample; an input that cannot be used gets a row with the label "-", so that rows stay in step with inputs.
  template <class Make>
  void add(const std::string& source, Make&& make) {
    Item item{source, -1};
    try {
      Sample s = make();
      if (s.length() < 1) throw DataError(source + ": is empty");
      item.sample = static_cast<i64>(samples_.size());
      samples_.push_back(std::move(s));
    } catch (const Error& e) {
      apps::print_error(e.what());
      failed_ = true;
    }
    items_.push_back(std::move(item));
    if (items_.size() >= batch_) flush();
  }

  void flush() {
    const std::vector<Prediction> predictions = model_.predict(samples_);
    std::string text;
    for (const Item& item : items_)
      text += item.sample < 0
                  ? row(item.source, nullptr, nullptr)
                  : row(item.source, &predictions[static_cast<std::size_t>(item.sample)], &samples_[static_cast<std::size_t>(item.sample)]);
    samples_.clear();
    items_.clear();
    apps::print(text);
  }
  bool failed() const { return failed_; }

 private:
  struct Item {
    std::string source;
    i64 sample;
  };
  bool frames() const { return model_.info().target == DataInfo::Target::Frame; }
  const std::string& label(i64 c) const { return model_.info().labels[static_cast<std::size_t>(c)]; }

  std::string row(const std::string& source, const Prediction* p, const Sample* sample) const {
    if (o_.json) return json_row(source, p, sample);
    const std::string start = model_.preprocessor().reads_lines() ? "" : source + "\t";
    if (p == nullptr) return start + (frames() ? "-\t" : "") + "-\t0\n";
    std::string text;
    for (i64 n = 0; n < p->positions(); ++n) {
      text += start + (frames() ? position_name(*sample, n) + "\t" : "");
      const std::vector<i64> top = p->top(n, o_.top);
      for (std::size_t k = 0; k < top.size(); ++k)
        text += fmt::format("{}{}\t{:.4f}", k ? "\t" : "", label(top[k]), p->at(n)[static_cast<std::size_t>(top[k])]);
      text += "\n";
    }
    return text;
  }

  static std::string position_name(const Sample& s, i64 n) {
    return s.positions.empty() ? std::to_string(n) : s.positions[static_cast<std::size_t>(n)];
  }

  nlohmann::ordered_json position(const Prediction& p, i64 n) const {
    nlohmann::ordered_json j;
    const std::vector<i64> top = p.top(n, std::max<i64>(o_.top, 1));
    j["label"] = label(top[0]);
    j["probability"] = p.at(n)[static_cast<std::size_t>(top[0])];
    if (o_.top > 1)
      for (i64 c : top) j["top"].push_back({{"label", label(c)}, {"probability", p.at(n)[static_cast<std::size_t>(c)]}});
    return j;
  }

  std::string json_row(const std::string& source, const Prediction* p, const Sample* sample) const {
    nlohmann::ordered_json j;
    if (!model_.preprocessor().reads_lines()) j["file"] = source;
    if (p == nullptr) {
      j["label"] = nullptr;
    } else if (frames()) {
      const std::string what = model_.info().position;
      for (i64 n = 0; n < p->positions(); ++n) {
        nlohmann::ordered_json one;
        if (!sample->positions.empty()) one[what] = position_name(*sample, n);
        one.update(position(*p, n));
        j[what + "s"].push_back(std::move(one));
      }
    } else {
      j.update(position(*p, 0));
    }
    return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  const TrainedModel& model_;
  const Options& o_;
  const std::size_t batch_;
  std::vector<Sample> samples_;
  std::vector<Item> items_;
  bool failed_ = false;
};

void predict_lines(const TrainedModel& model, const Options& o, Writer& writer) {
  for (const std::string& file : o.files) {
    LineReader lines(file);
    for (i64 number = 1;; ++number) {
      if (lines.must_wait()) writer.flush();  // whoever feeds the pipe sees the answers so far
      const std::optional<std::string> line = lines.next();
      if (!line) break;
      const std::string source = fmt::format("{}:{}", file == "-" ? "standard input" : file, number);
      writer.add(source, [&] {
        try {
          return model.preprocessor().sample_of_line(*line);
        } catch (const Error& e) {
          throw DataError(source + ": " + e.what());
        }
      });
    }
  }
}

void predict_files(const TrainedModel& model, const Options& o, Writer& writer) {
  const auto add = [&](const std::string& path) {
    std::vector<Sample> samples;
    std::string problem = path + ": holds nothing to label";
    try {
      samples = model.preprocessor().samples_of_file(path);
    } catch (const Error& e) {
      problem = e.what();
    }
    if (samples.empty()) writer.add(path, [&]() -> Sample { throw DataError(problem); });
    for (std::size_t i = 0; i < samples.size(); ++i)
      writer.add(samples.size() == 1 ? path : fmt::format("{}:{}", path, i), [&] { return std::move(samples[i]); });
  };
  for (const std::string& file : o.files) {
    if (file != "-") {
      add(file);
      continue;
    }
    LineReader names(file);
    while (true) {
      if (names.must_wait()) writer.flush();
      const std::optional<std::string> name = names.next();
      if (!name) break;
      if (!name->empty()) add(*name);
    }
  }
}

int run(Options o) {
  if (o.files.empty()) o.files = {"-"};
  const TrainedModel model(o.checkpoint, o.threads);
  Writer writer(model, o);
  if (model.preprocessor().reads_lines())
    predict_lines(model, o, writer);
  else
    predict_files(model, o, writer);
  writer.flush();
  return writer.failed() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // a reader that has gone ends the program quietly
  CLI::App app("Labels for lines of text, or for files of sound, images or graphs.", "predict");
  Options o;
  app.add_option("checkpoint", o.checkpoint, "checkpoint file, or run directory (its best checkpoint)")
      ->required()
      ->type_name("CHECKPOINT");
  app.add_option(
         "files", o.files,
         "text files (a prediction a line; pairs: two texts with a tab between them), sound or image files, or tables of nodes; - or none: "
         "lines of text, or names of files, from standard input")
      ->type_name("FILE");
  app.add_option("--top", o.top, "the K likeliest labels")->type_name("K")->check(CLI::Range(1, 1000000))->capture_default_str();
  app.add_flag("--json", o.json, "JSON lines instead of TSV");
  app.add_option("--batch", o.batch, "inputs at a time (default: as in the configuration)")->type_name("N")->check(CLI::Range(1, 1000000));
  app.add_option("--threads", o.threads, "threads to compute with; changes no result")->type_name("N")->check(CLI::Range(1, 4096));
  app.set_version_flag("--version", "predict (tapeformer " + build_version() + ")");
  app.footer(R"(Examples:
  echo "what a lovely film" | predict runs/sst2
  predict runs/sst2 reviews.txt --top 2 --json > labels.jsonl
  predict runs/digits *.wav
  predict runs/mnist picture.pgm test-images-idx3-ubyte
Columns: [file,] [frame,] label, probability, and so on for --top. An input that cannot be used gets the label -, a message on standard
error, and exit code 1 in the end.)");
  return apps::run_program(app, argc, argv, [&] { return run(o); });
}
