// audio_data.cpp: sound files named by manifests, as sequences of features, with one label a clip or one label a frame.
#include <algorithm>
#include <filesystem>
#include <set>

#include "core/log.h"
#include "data/audio_settings.h"
#include "data/clips.h"
#include "data/data_type.h"
#include "data/hdf5_text.h"
#include "data/standardiser.h"

namespace tapeformer {
namespace {

struct Entry {  // a row of a manifest with its features
  std::string place, path, label;
  std::vector<PhoneSegment> phones;
  Clip clip;
};

std::string beside(const std::string& manifest, const std::string& path) {
  return (std::filesystem::path(manifest).parent_path() / path).string();
}

void add_entry(const Table& table, const TableRow& row, const AudioSettings& s, std::vector<Entry>& entries, Problems& problems) {
  Entry e;
  e.place = table.place(row);
  try {
    if (!row.problem.empty()) throw DataError(row.problem);
    const std::string& path = row.fields[table.column(s.columns.path)];
    if (path.empty()) throw DataError(fmt::format("the path (column '{}') is empty", s.columns.path));
    e.path = beside(table.file, path);
    if (s.labels_frames())
      e.phones = read_phones(beside(table.file, row.fields[table.column(s.columns.frames)]));
    else
      e.label = row.fields[table.column(s.columns.label)];
    if (!s.labels_frames() && e.label.empty()) throw DataError(fmt::format("the label (column '{}') is empty", s.columns.label));
    entries.push_back(std::move(e));
  } catch (const Error& error) {
    problems.add(Fault::Bad, fmt::format("{}: {}", e.place, error.what()));
  }
}

// The usable rows of a part with their features; the others go to `problems`.
std::vector<Entry> read_entries(const PartSource& source, const AudioSettings& s, const ClipReader& reader, Problems& problems,
                                std::size_t& total) {
  std::vector<Entry> entries;
  for (const Table& table : read_tables(source, "auto", {s.columns.path, s.labels_frames() ? s.columns.frames : s.columns.label})) {
    total += table.rows.size();
    for (const TableRow& row : table.rows) add_entry(table, row, s, entries, problems);
  }
  std::vector<std::string> paths;
  for (const Entry& e : entries) paths.push_back(e.path);
  std::vector<Clip> clips = reader.read_all(paths, s.cache_dir);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].clip = std::move(clips[i]);
    if (!entries[i].clip.problem.empty()) problems.add(entries[i].clip.fault, entries[i].place + ": " + entries[i].clip.problem);
  }
  std::erase_if(entries, [](const Entry& e) { return !e.clip.problem.empty(); });
  return entries;
}

struct Normaliser {  // by the clip itself, or by the training part
  bool utterance;
  Standardiser global;
  i64 dim;
  void apply(std::span<float> values) const {
    if (utterance)
      Standardiser::fit({std::span<const float>(values)}, dim).apply(values);
    else
      global.apply(values);
  }
};

class AudioDataset final : public Dataset {
 public:
  struct Row {
    std::vector<float> values;  // [frames, bands * blocks]
    i64 frames, label;
    std::vector<i64> frame_labels;
    std::string place;
  };
  AudioDataset(std::vector<Row> rows, FeatureExtractor extractor, Normaliser normaliser, int stack, AugmentSettings a)
      : rows_(std::move(rows)), extractor_(std::move(extractor)), normaliser_(std::move(normaliser)), stack_(stack), augment_(a) {}
  i64 size() const override { return static_cast<i64>(rows_.size()); }
  i64 length(i64 i) const override { return (row(i).frames + stack_ - 1) / stack_; }
  std::string describe(i64 i) const override { return row(i).place; }

  Sample get(i64 i, std::optional<RngKey> key) const override {
    const Row& r = row(i);
    Sample s;
    s.label = r.label;
    s.frame_labels = r.frame_labels;
    std::vector<float> values = r.values;
    if (key && augment_.freq_warp > 0) extractor_.stretch_bands(values, r.frames, band_stretch(augment_, *key));
    normaliser_.apply(values);
    if (key) augment(augment_, *key, values, r.frames, extractor_.base_dim(), extractor_.dim() / extractor_.base_dim(), s.frame_labels);
    s.features = stacked(std::move(values), r.frames, extractor_.dim(), stack_);
    return s;
  }

  // [N, F] -> [ceil(N / stack), stack * F]; the last frame is repeated where some are missing.
  static Tensor stacked(std::vector<float> values, i64 frames, i64 dim, i64 stack) {
    const i64 n = (frames + stack - 1) / stack;
    for (i64 t = frames; t < n * stack; ++t)
      for (i64 f = 0; f < dim; ++f) values.push_back(values[static_cast<std::size_t>((frames - 1) * dim + f)]);
    return Tensor::from(values, {n, stack * dim});
  }

 private:
  const Row& row(i64 i) const { return rows_.at(static_cast<std::size_t>(i)); }
  std::vector<Row> rows_;
  FeatureExtractor extractor_;
  Normaliser normaliser_;
  i64 stack_;
  AugmentSettings augment_;
};

class AudioPreprocessor final : public Preprocessor {
 public:
  AudioPreprocessor(AudioSettings s, std::map<std::string, std::string> folding, std::vector<std::string> labels, Standardiser global,
                    i64 most_frames)
      : settings_(std::move(s)),
        folding_(std::move(folding)),
        reader_(settings_.features, settings_.sample_rate),
        normaliser_{settings_.normalise == "utterance", std::move(global), reader_.extractor().dim()},
        most_frames_(most_frames) {
    info_.input = DataInfo::Input::Features;
    info_.target = settings_.labels_frames() ? DataInfo::Target::Frame : DataInfo::Target::Sequence;
    info_.feature_dim = reader_.extractor().dim() * settings_.stack;
    info_.max_length = (most_frames_ + settings_.stack - 1) / settings_.stack;
    info_.labels = std::move(labels);
  }

  const DataInfo& info() const override { return info_; }
  ConfigNode settings() const override { return write_audio_settings(settings_); }
  const Policies& policies() const override { return settings_.policies; }
  bool reads_lines() const override { return false; }

  void save(Hdf5File& file, const std::string& group) const override {
    write_text(file, group + "/settings", settings().json());
    write_texts(file, group + "/labels", info_.labels);
    std::vector<std::string> pairs;
    for (const auto& [phone, label] : folding_) pairs.insert(pairs.end(), {phone, label});
    write_texts(file, group + "/folding", pairs);
    file.write(group + "/most_frames", Tensor::scalar(static_cast<double>(most_frames_), DType::I64));
    normaliser_.global.save(file, group + "/standardise");
  }

  using Preprocessor::dataset;
  std::unique_ptr<Dataset> dataset(const PartSource& source, const Policies& policies, Part) const override {
    Problems problems(source.name(), policies);
    std::size_t total = 0;
    std::vector<Entry> entries = read_entries(source, settings_, reader_, problems, total);
    return dataset_of(std::move(entries), source.name(), problems, total);
  }

  std::unique_ptr<Dataset> dataset_of(std::vector<Entry> entries, const std::string& name, Problems& problems, std::size_t total) const {
    std::vector<AudioDataset::Row> rows;
    i64 cut = 0;
    for (Entry& e : entries) {
      AudioDataset::Row row;
      if (!label(e, row, problems)) continue;
      cut += e.clip.frames > most_frames_;
      cut_to_longest(e.clip);
      if (settings_.labels_frames()) row.frame_labels.resize(static_cast<std::size_t>(e.clip.frames));
      row.frames = e.clip.frames;
      row.values = std::move(e.clip.values);
      row.place = std::move(e.place);
      rows.push_back(std::move(row));
    }
    problems.report(total);
    if (rows.empty()) throw DataError(name + ": no row can be used");
    if (cut > 0)
      log::info(fmt::format("{}: cut {} of {} clips to {} frames ({})", name, cut, rows.size(), most_frames_,
                            settings_.max_seconds > 0 ? "data.max_seconds" : "the longest training clip"));
    return std::make_unique<AudioDataset>(std::move(rows), reader_.extractor(), normaliser_, settings_.stack, settings_.augment);
  }

  Sample sample_of_file(const std::string& path) const override {
    Clip clip = reader_.read(path);
    if (!clip.problem.empty()) throw DataError(clip.problem);
    cut_to_longest(clip);
    normaliser_.apply(clip.values);
    Sample s;
    s.features = AudioDataset::stacked(std::move(clip.values), clip.frames, reader_.extractor().dim(), settings_.stack);
    if (settings_.labels_frames()) s.frame_labels.assign(static_cast<std::size_t>(clip.frames), kIgnoreLabel);
    return s;
  }
  Sample sample_of_line(const std::string&) const override {
    throw DataError("audio is read from sound files, expected a file and not a line");
  }

 private:
  bool label(const Entry& e, AudioDataset::Row& row, Problems& problems) const {
    row.label = kIgnoreLabel;
    if (settings_.labels_frames()) return label_frames(e, row, problems);
    row.label = label_index(info_.labels, e.label);
    if (row.label < 0) problems.add(Fault::UnknownLabel, e.place + ": " + unknown_label(info_.labels, e.label));
    return row.label >= 0;
  }

  // Frame i has the phone at the sample it is centred on, counted at the file's own rate.
  bool label_frames(const Entry& e, AudioDataset::Row& row, Problems& problems) const {
    for (i64 t = 0; t < e.clip.frames; ++t) {
      const i64 sample = reader_.extractor().centre_of(t) * e.clip.rate / settings_.sample_rate;
      const std::string& phone = phone_at(e.phones, sample, settings_.silence);
      const i64 index = class_of(phone);
      if (index < 0 && !phone.empty()) {
        problems.add(Fault::UnknownLabel,
                     fmt::format("{}: phone '{}' {}", e.place, phone,
                                 folding_.empty() ? "does not occur in the training part" : "is not in " + settings_.folding.file));
        return false;
      }
      row.frame_labels.push_back(phone.empty() ? kIgnoreLabel : index);
    }
    return true;
  }

  i64 class_of(const std::string& phone) const {
    if (folding_.empty()) return label_index(info_.labels, phone);
    const auto it = folding_.find(phone);
    return it == folding_.end() ? -1 : label_index(info_.labels, it->second);
  }

  void cut_to_longest(Clip& clip) const {
    clip.frames = std::min(clip.frames, most_frames_);
    clip.values.resize(static_cast<std::size_t>(clip.frames * normaliser_.dim));
  }

  AudioSettings settings_;
  std::map<std::string, std::string> folding_;
  ClipReader reader_;
  Normaliser normaliser_;
  i64 most_frames_;
  DataInfo info_;
};

std::vector<std::string> classes(const std::vector<Entry>& entries, const AudioSettings& s,
                                 const std::map<std::string, std::string>& folding) {
  std::set<std::string> names;
  for (const auto& [phone, label] : folding) names.insert(label);
  if (folding.empty() && !s.silence.empty()) names.insert(s.silence);
  for (const Entry& e : entries) {
    if (!s.labels_frames()) names.insert(e.label);
    for (const PhoneSegment& p : e.phones)
      if (folding.empty()) names.insert(p.phone);
  }
  return ordered_labels({names.begin(), names.end()});
}

i64 longest(const std::vector<Entry>& entries, const AudioSettings& s, const FeatureExtractor& extractor) {
  if (s.max_seconds > 0) return std::max<i64>(1, extractor.frames(static_cast<i64>(s.max_seconds * static_cast<double>(s.sample_rate))));
  i64 most = 1;
  for (const Entry& e : entries) most = std::max(most, e.clip.frames);
  return most;
}

Standardiser statistics(const std::vector<Entry>& entries, const AudioSettings& s, i64 dim) {
  if (s.normalise != "global") return {};
  std::vector<std::span<const float>> blocks;
  for (const Entry& e : entries) blocks.emplace_back(e.clip.values);
  return Standardiser::fit(blocks, dim);
}

Fitted fit(const ConfigNode& data) {
  const AudioSettings s = read_audio_settings(data);
  const ClipReader reader(s.features, s.sample_rate);
  std::map<std::string, std::string> folding;
  if (!s.folding.file.empty()) folding = read_folding(s.folding);
  if (!folding.empty() && !s.silence.empty() && !folding.contains(s.silence))
    throw ConfigError(fmt::format("data.silence: got '{}', which is not in {}", s.silence, s.folding.file));
  const PartSource source = read_source(s.train);
  Problems problems(source.name(), s.policies);
  std::size_t total = 0;
  std::vector<Entry> entries = read_entries(source, s, reader, problems, total);
  std::vector<std::string> labels = entries.empty() ? std::vector<std::string>() : classes(entries, s, folding);
  if (labels.size() < 2) problems.report(total);  // a bad row may be why
  check_class_count(labels, source.name());
  auto preprocessor = std::make_shared<AudioPreprocessor>(s, folding, std::move(labels), statistics(entries, s, reader.extractor().dim()),
                                                          longest(entries, s, reader.extractor()));
  auto train = preprocessor->dataset_of(std::move(entries), source.name(), problems, total);
  return {std::move(preprocessor), std::move(train)};
}

std::shared_ptr<Preprocessor> load(const ConfigNode& saved, const Hdf5File& file, const std::string& group) {
  std::map<std::string, std::string> folding;
  const std::vector<std::string> pairs = read_texts(file, group + "/folding");
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) folding.emplace(pairs[i], pairs[i + 1]);
  return std::make_shared<AudioPreprocessor>(read_audio_settings(saved), std::move(folding), read_texts(file, group + "/labels"),
                                             Standardiser::load(file, group + "/standardise"),
                                             static_cast<i64>(file.read(group + "/most_frames").item()));
}

const bool kRegistered =
    data_type_registry().add("audio", {[](const ConfigNode& data) { return write_audio_settings(read_audio_settings(data)); },
                                       [] { return explain_config<AudioSettings>("", AudioSettings()); }, fit, load});

}  // namespace
}  // namespace tapeformer
