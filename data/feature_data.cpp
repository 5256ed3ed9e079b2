// feature_data.cpp: ready-made features in HDF5 files: `features` [total, F], `lengths` [n], `labels` [n] or one a
// frame [total], and optionally `label_names` (attribute of the file, or u8 dataset, names separated by line breaks).
#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/log.h"
#include "data/data_type.h"
#include "data/hdf5_text.h"
#include "data/standardiser.h"

namespace tapeformer {
namespace {

struct FeatureFileSettings {
  ConfigNode train, valid, test;
  std::string target = "auto", normalise = "global";
  i64 max_length = 0;
};
template <class V>
void visit_fields(V& v, FeatureFileSettings& s) {
  v("train", s.train, "training features (HDF5); statistics are fitted on them");
  v("valid", s.valid, "features to choose by while training");
  v("test", s.test, "features to report on");
  v("target", s.target, OneOf{"auto", "sequence", "frame"}, "one label a sequence or one a frame; auto: by the number of labels");
  v("normalise", s.normalise, OneOf{"none", "global"}, "mean 0 and deviation 1 of each feature over the training part");
  v("max_length", s.max_length, at_least(0),
    "most frames of a sequence; longer ones keep their beginning; 0 = as many as the longest training sequence");
}

ConfigNode write_settings(const FeatureFileSettings& s) {
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("features"));
  const ConfigNode fields = write_config(s);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  return out;
}

struct FeatureRow {
  std::vector<float> values;  // [frames, F]
  i64 frames = 0, label = kIgnoreLabel;
  std::vector<i64> frame_labels;
  std::string place;
};

struct FeatureFile {
  std::vector<FeatureRow> rows;
  std::vector<std::string> names;  // empty when the file has none
  i64 dim = 0, most_label = -1;
  bool frame = false;
};

std::vector<i64> integers(const Hdf5File& file, const std::string& path, const std::string& name) {
  const Tensor t = file.read(path);
  if (is_float(t.dtype()) || t.rank() != 1)
    throw DataError(fmt::format("{}: {}: got {} {}, expected whole numbers [n]", name, path, name_of(t.dtype()), t.shape().str()));
  std::vector<i64> out;
  for (double x : t.to_vector()) out.push_back(static_cast<i64>(x));
  return out;
}

std::vector<std::string> label_names(const Hdf5File& file) {
  std::string text;
  if (file.exists("/label_names"))
    text = read_text(file, "/label_names");
  else if (file.has_attribute("/", "label_names"))
    text = file.read_text("/", "label_names");
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

bool labels_frames(const FeatureFileSettings& s, const std::string& name, i64 labels, i64 sequences, i64 total) {
  const bool frame = s.target == "frame" || (s.target == "auto" && labels == total && labels != sequences);
  if (labels != (frame ? total : sequences))
    throw DataError(fmt::format("{}: /labels: got {}, expected {} (one a sequence) or {} (one a frame){}", name, labels, sequences, total,
                                s.target == "auto" ? "" : "; data.target is " + s.target));
  return frame;
}

void check_lengths(const std::vector<i64>& lengths, const std::string& name, i64 total) {
  i64 sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1) throw DataError(fmt::format("{}: /lengths: sequence {} has {} frames, expected at least 1", name, i, lengths[i]));
    sum += lengths[i];
  }
  if (lengths.empty()) throw DataError(name + ": /lengths: holds no sequence");
  if (sum != total) throw DataError(fmt::format("{}: /lengths: add up to {}, but /features has {} rows", name, sum, total));
}

FeatureFile read_feature_file(const std::string& name, const FeatureFileSettings& s) {
  const Hdf5File file = Hdf5File::open(name);
  for (const char* path : {"/features", "/lengths", "/labels"})
    if (!file.exists(path)) throw DataError(fmt::format("{}: no dataset '{}', the file has: {}", name, path, join(file.datasets())));
  const Tensor features = file.read("/features").to(DType::F32).to_contiguous();
  if (features.rank() != 2 || features.dim(1) < 1)
    throw DataError(fmt::format("{}: /features: got {}, expected [total, F]", name, features.shape().str()));
  const std::vector<i64> lengths = integers(file, "/lengths", name), labels = integers(file, "/labels", name);
  check_lengths(lengths, name, features.dim(0));
  FeatureFile out;
  out.dim = features.dim(1);
  out.names = label_names(file);
  out.frame = labels_frames(s, name, static_cast<i64>(labels.size()), static_cast<i64>(lengths.size()), features.dim(0));
  const float* values = features.ptr<float>();
  i64 at = 0;
  for (std::size_t i = 0; i < lengths.size(); at += lengths[i++]) {
    FeatureRow row;
    row.place = fmt::format("{}: sequence {}", name, i);
    row.frames = lengths[i];
    row.values.assign(values + at * out.dim, values + (at + row.frames) * out.dim);
    if (!std::all_of(row.values.begin(), row.values.end(), [](float x) { return std::isfinite(x); }))
      throw DataError(row.place + ": holds a feature that is not a finite number");
    if (out.frame)
      row.frame_labels.assign(labels.begin() + at, labels.begin() + at + row.frames);
    else
      row.label = labels[i];
    out.rows.push_back(std::move(row));
  }
  for (i64 label : labels) {
    if (label < 0 && label != kIgnoreLabel)
      throw DataError(fmt::format("{}: /labels: got {}, expected 0 or more, or {} for none", name, label, kIgnoreLabel));
    out.most_label = std::max(out.most_label, label);
  }
  return out;
}

FeatureFile read_source_files(const PartSource& source, const FeatureFileSettings& s) {
  if (!source.filter.empty()) throw ConfigError(source.name() + ": `where` and `exclude` need a table, and HDF5 features have no columns");
  FeatureFile all = read_feature_file(source.files[0], s);
  for (std::size_t i = 1; i < source.files.size(); ++i) {
    FeatureFile next = read_feature_file(source.files[i], s);
    if (next.dim != all.dim || next.frame != all.frame || next.names != all.names)
      throw DataError(fmt::format("{}: feature size, kind of label or label names differ from {}", source.files[i], source.files[0]));
    all.most_label = std::max(all.most_label, next.most_label);
    std::move(next.rows.begin(), next.rows.end(), std::back_inserter(all.rows));
  }
  return all;
}

class FeatureDataset final : public Dataset {
 public:
  FeatureDataset(std::vector<FeatureRow> rows, i64 dim) : rows_(std::move(rows)), dim_(dim) {}
  i64 size() const override { return static_cast<i64>(rows_.size()); }
  i64 length(i64 i) const override { return row(i).frames; }
  std::string describe(i64 i) const override { return row(i).place; }
  Sample get(i64 i, std::optional<RngKey>) const override {
    Sample s;
    s.features = Tensor::from(row(i).values, {row(i).frames, dim_});
    s.label = row(i).label;
    s.frame_labels = row(i).frame_labels;
    return s;
  }

 private:
  const FeatureRow& row(i64 i) const { return rows_.at(static_cast<std::size_t>(i)); }
  std::vector<FeatureRow> rows_;
  i64 dim_;
};

class FeaturePreprocessor final : public Preprocessor {
 public:
  FeaturePreprocessor(FeatureFileSettings s, DataInfo info, Standardiser global)
      : settings_(std::move(s)), info_(std::move(info)), global_(std::move(global)) {}
  const DataInfo& info() const override { return info_; }
  ConfigNode settings() const override { return write_settings(settings_); }
  const Policies& policies() const override { return policies_; }
  bool reads_lines() const override { return false; }

  void save(Hdf5File& file, const std::string& group) const override {
    write_text(file, group + "/settings", settings().json());
    write_texts(file, group + "/labels", info_.labels);
    const std::vector<i64> sizes{info_.feature_dim, info_.max_length, info_.target == DataInfo::Target::Frame};
    file.write(group + "/sizes", Tensor::from(sizes, {3}));
    global_.save(file, group + "/standardise");
  }

  using Preprocessor::dataset;
  std::unique_ptr<Dataset> dataset(const PartSource& source, const Policies&, Part) const override {
    return dataset_of(read_source_files(source, settings_), source.name());
  }

  std::unique_ptr<Dataset> dataset_of(FeatureFile file, const std::string& name) const {
    if (file.dim != info_.feature_dim)
      throw DataError(fmt::format("{}: /features: got {} a frame, expected {} as in the training part", name, file.dim, info_.feature_dim));
    if (file.frame != (info_.target == DataInfo::Target::Frame))
      throw DataError(name + ": /labels: one a frame here and one a sequence there; the training part is the other kind");
    if (!file.names.empty() && file.names != info_.labels) throw DataError(name + ": label_names differ from the training part's");
    if (file.most_label >= info_.classes())
      throw DataError(
          fmt::format("{}: /labels: got {}, expected less than {} as in the training part", name, file.most_label, info_.classes()));
    i64 cut = 0;
    for (FeatureRow& row : file.rows) {
      if (row.frames > info_.max_length) {
        ++cut;
        row.frames = info_.max_length;
        row.values.resize(static_cast<std::size_t>(row.frames * file.dim));
        if (file.frame) row.frame_labels.resize(static_cast<std::size_t>(row.frames));
      }
      global_.apply(row.values);
    }
    if (cut > 0) log::info(fmt::format("{}: cut {} of {} sequences to {} frames", name, cut, file.rows.size(), info_.max_length));
    return std::make_unique<FeatureDataset>(std::move(file.rows), file.dim);
  }

  Sample sample_of_line(const std::string&) const override {
    throw DataError("ready-made features are read from HDF5 files, not from lines");
  }
  Sample sample_of_file(const std::string& path) const override {
    throw DataError(path + ": ready-made features are read as whole HDF5 data sets, not as single files");
  }

 private:
  FeatureFileSettings settings_;
  Policies policies_;
  DataInfo info_;
  Standardiser global_;
};

DataInfo info_of(const FeatureFile& file, const FeatureFileSettings& s) {
  DataInfo info;
  info.input = DataInfo::Input::Features;
  info.target = file.frame ? DataInfo::Target::Frame : DataInfo::Target::Sequence;
  info.feature_dim = file.dim;
  info.max_length = s.max_length;
  if (s.max_length == 0)
    for (const FeatureRow& row : file.rows) info.max_length = std::max(info.max_length, row.frames);
  info.labels = file.names;
  if (info.labels.empty())
    for (i64 c = 0; c <= file.most_label; ++c) info.labels.push_back(std::to_string(c));
  return info;
}

Fitted fit(const ConfigNode& data) {
  const auto s = read_config<FeatureFileSettings>(data, {}, {"type"});
  const PartSource source = read_source(s.train);
  FeatureFile file = read_source_files(source, s);
  DataInfo info = info_of(file, s);
  check_class_count(info.labels, source.name());
  std::vector<std::span<const float>> blocks;
  for (const FeatureRow& row : file.rows) blocks.emplace_back(row.values);
  Standardiser global = s.normalise == "global" ? Standardiser::fit(blocks, file.dim) : Standardiser();
  auto preprocessor = std::make_shared<FeaturePreprocessor>(s, std::move(info), std::move(global));
  auto train = preprocessor->dataset_of(std::move(file), source.name());
  return {std::move(preprocessor), std::move(train)};
}

std::shared_ptr<Preprocessor> load(const ConfigNode& saved, const Hdf5File& file, const std::string& group) {
  const std::vector<double> sizes = file.read(group + "/sizes").to_vector();
  if (sizes.size() != 3) throw IoError(group + "/sizes: expected three numbers");
  DataInfo info;
  info.input = DataInfo::Input::Features;
  info.feature_dim = static_cast<i64>(sizes[0]);
  info.max_length = static_cast<i64>(sizes[1]);
  info.target = sizes[2] != 0 ? DataInfo::Target::Frame : DataInfo::Target::Sequence;
  info.labels = read_texts(file, group + "/labels");
  return std::make_shared<FeaturePreprocessor>(read_config<FeatureFileSettings>(saved, {}, {"type"}), std::move(info),
                                               Standardiser::load(file, group + "/standardise"));
}

const bool kRegistered = data_type_registry().add(
    "features", {[](const ConfigNode& data) { return write_settings(read_config<FeatureFileSettings>(data, {}, {"type"})); },
                 [] { return explain_config<FeatureFileSettings>(); }, fit, load});

}  // namespace
}  // namespace tapeformer
