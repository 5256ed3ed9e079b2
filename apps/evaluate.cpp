// evaluate.cpp: loss and metrics of a trained model on a data set.
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "core/hdf5_file.h"
#include "train/progress.h"
#include "train/trained_model.h"

using namespace tapeformer;

namespace {

struct Options {
  std::string checkpoint, data, split = "test", json, predictions;
  int threads = 0;
};

Part part_named(const std::string& name) { return name == "train" ? Part::Train : name == "valid" ? Part::Valid : Part::Test; }

std::string shortened(const std::string& s, std::size_t width) { return s.size() <= width ? s : s.substr(0, width - 1) + "~"; }

std::string class_table(const Metrics& m, const std::vector<std::string>& labels) {
  constexpr std::size_t kWidth = 24;
  std::string out = fmt::format("{:<{}}  precision  recall      f1   samples\n", "class", kWidth);
  for (i64 c = 0; c < m.classes(); ++c) {
    const Metrics::OfClass k = m.of_class(c);
    out += fmt::format("{:<{}}  {:>9.4f}  {:>6.4f}  {:>6.4f}  {:>8}\n", shortened(labels[static_cast<std::size_t>(c)], kWidth), kWidth,
                       k.precision, k.recall, k.f1, k.support);
  }
  return out;
}

std::string confusion_table(const Metrics& m, const std::vector<std::string>& labels) {
  std::string out = "confusion (rows: label, columns: prediction)\n";
  std::size_t width = 5;
  for (i64 c = 0; c < m.classes(); ++c)
    for (i64 k = 0; k < m.classes(); ++k) width = std::max(width, std::to_string(m.at(c, k)).size());
  for (const std::string& l : labels) width = std::max(width, std::min<std::size_t>(l.size(), 10));
  out += std::string(16, ' ');
  for (const std::string& l : labels) out += fmt::format(" {:>{}}", shortened(l, width), width);
  for (i64 c = 0; c < m.classes(); ++c) {
    out += fmt::format("\n{:<16}", shortened(labels[static_cast<std::size_t>(c)], 16));
    for (i64 k = 0; k < m.classes(); ++k) out += fmt::format(" {:>{}}", m.at(c, k), width);
  }
  return out + "\n";
}

nlohmann::ordered_json report(const TrainedModel& model, const Metrics& m, const std::string& source) {
  nlohmann::ordered_json j;
  j["checkpoint"] = model.file();
  j["data"] = source;
  j["samples"] = m.count();
  j["loss"] = m.loss();
  j["accuracy"] = m.accuracy();
  j["macro_f1"] = m.macro_f1();
  j["majority"] = m.majority();
  for (i64 c = 0; c < m.classes(); ++c) {
    const Metrics::OfClass k = m.of_class(c);
    j["classes"].push_back({{"label", model.info().labels[static_cast<std::size_t>(c)]},
                            {"precision", k.precision},
                            {"recall", k.recall},
                            {"f1", k.f1},
                            {"samples", k.support}});
    nlohmann::ordered_json row;
    for (i64 p = 0; p < m.classes(); ++p) row.push_back(m.at(c, p));
    j["confusion"].push_back(row);
  }
  return j;
}

// TSV rows: source, frame (frame labels only), label, prediction, probability.
std::string prediction_rows(const Batch& batch, const Output& out, const Dataset& data, const DataInfo& info) {
  std::string text;
  const bool frames = info.target == DataInfo::Target::Frame;
  const auto labels = batch.labels.data<i64>();
  const auto name = [&](i64 label) { return label == kIgnoreLabel ? std::string("-") : info.labels[static_cast<std::size_t>(label)]; };
  for (i64 row = 0; row < batch.size(); ++row) {
    const Prediction p = prediction_of(out, batch, row, info);
    const i64 sample = batch.rows[static_cast<std::size_t>(row)];
    const std::string source = data.describe(sample);
    for (i64 n = 0; n < p.positions(); ++n) {
      const i64 label = labels[static_cast<std::size_t>(frames ? row * batch.labels.dim(1) + n : row)];
      const i64 best = p.top(n, 1)[0];
      text += fmt::format("{}\t{}{}\t{}\t{:.6f}\n", source, frames ? data.describe_position(sample, n) + "\t" : "", name(label), name(best),
                          p.at(n)[static_cast<std::size_t>(best)]);
    }
  }
  return text;
}

int run(const Options& o) {
  const TrainedModel model(o.checkpoint, o.threads);
  const Part part = part_named(o.split);
  const std::unique_ptr<Dataset> data = o.data.empty() ? model.dataset(part) : model.preprocessor().dataset(o.data, part);
  const std::string source = o.data.empty() ? o.split : o.data;
  std::string rows;
  const auto start = std::chrono::steady_clock::now();
  const Metrics m = model.evaluate(*data, [&](const Batch& batch, const Output& out) {
    if (!o.predictions.empty()) rows += prediction_rows(batch, out, *data, model.info());
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const DataInfo& info = model.info();
  if (m.count() == 0) throw DataError(source + ": no sample has a label");
  const std::string unit = info.target == DataInfo::Target::Frame ? std::string(info.position) + "s" : "samples";
  apps::print(
      fmt::format("{} on {}\n{} {} of {} samples, {:.1f} examples a second\n\nloss      {:.4f}\naccuracy  {:.4f}  (majority class "
                  "{:.4f})\nmacro F1  {:.4f}\n\n{}\n{}",
                  model.file(), source, m.count(), unit, data->size(), static_cast<double>(data->size()) / std::max(seconds, 1e-9),
                  m.loss(), m.accuracy(), m.majority(), m.macro_f1(), class_table(m, info.labels), confusion_table(m, info.labels)));
  if (!o.json.empty()) {
    const std::string text = report(model, m, source).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (o.json == "-")
      apps::print(text);
    else
      write_file_atomically(o.json, text);
  }
  if (!o.predictions.empty())
    write_file_atomically(o.predictions, std::string("source\t") +
                                             (info.target == DataInfo::Target::Frame ? std::string(info.position) + "\t" : "") +
                                             "label\tprediction\tprobability\n" + rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Loss, accuracy, macro F1, scores per class and the confusion matrix of a trained model.", "evaluate");
  Options o;
  app.add_option("checkpoint", o.checkpoint, "checkpoint file, or run directory (its best checkpoint)")
      ->required()
      ->type_name("CHECKPOINT");
  app.add_option("--data", o.data, "evaluate on this file instead of one the configuration names")->type_name("FILE");
  app.add_option("--split", o.split, "train, valid or test, as the configuration names them")
      ->check(CLI::IsMember({"train", "valid", "test"}))
      ->capture_default_str();
  app.add_option("--json", o.json, "also write the numbers as JSON; - for standard output")->type_name("FILE");
  app.add_option("--predictions", o.predictions, "also write each prediction as TSV")->type_name("FILE");
  app.add_option("--threads", o.threads, "threads to compute with; changes no result")->type_name("N")->check(CLI::Range(1, 4096));
  app.set_version_flag("--version", "evaluate (tapeformer " + build_version() + ")");
  app.footer(R"(Examples:
  evaluate runs/sst2
  evaluate runs/sst2 --split valid --json valid.json
  evaluate runs/sst2/checkpoints/last.h5 --data more.csv --predictions out.tsv)");
  return apps::run_program(app, argc, argv, [&] { return run(o); });
}
