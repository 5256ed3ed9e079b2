// image_data.cpp: labelled images as sequences of pixels: ids of grey intensities, or feature vectors of the colour values.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "core/log.h"
#include "data/data_type.h"
#include "data/hdf5_text.h"
#include "data/image_file.h"
#include "data/standardiser.h"
#include "data/table.h"

namespace tapeformer {
namespace {

constexpr i64 kIntensities = 256;

struct ImageAugment {
  i64 shift = 0;
  bool flip = false;
};
template <class V>
void visit_fields(V& v, ImageAugment& a) {
  v("shift", a.shift, Range{0, 256}, "move by up to so many pixels in each direction; what comes in is black");
  v("flip", a.flip, "mirror half of the visits left to right");
}

struct ImageSettings {
  ConfigNode train, valid, test;
  std::string format = "auto", input = "features", names, normalise = "global";
  std::optional<bool> grey;
  bool add_cls = false;
  ImageAugment augment;
  Policies policies;
  bool tokens() const { return input == "tokens"; }
  bool to_grey() const { return grey.value_or(tokens()); }
};
template <class V>
void visit_fields(V& v, ImageSettings& s) {
  v("train", s.train, "training images; statistics are fitted on them");
  v("valid", s.valid, "images to choose by while training");
  v("test", s.test, "images to report on");
  v("format", s.format, OneOf{"auto", "cifar", "idx"}, "auto: idx where the name holds 'idx' or the file starts like one");
  v("input", s.input, OneOf{"features", "tokens"},
    "features: a vector of colour values a pixel; tokens: its grey intensity as one of 256 ids");
  v("grey", s.grey, "true: 0.2989 R + 0.587 G + 0.114 B, rounded; null: as the input needs it");
  v("add_cls", s.add_cls, "tokens: put one more token in front of every image");
  v("names", s.names, "file of label names, one a line; empty: labels.txt beside the training images if there is one, else numbers");
  v("normalise", s.normalise, OneOf{"none", "global"},
    "features: mean 0 and deviation 1 of each colour over the training part; none: 0 to 1");
  v("augment", s.augment, "random changes while training");
  visit_fields(v, s.policies);
}

ImageSettings read_settings(const ConfigNode& data) {
  ImageSettings s = read_config<ImageSettings>(data, {}, {"type"});
  if (s.tokens() && !s.to_grey()) throw ConfigError(data["grey"].place() + ": got false, but tokens are grey intensities");
  if (s.add_cls && !s.tokens()) throw ConfigError(data["add_cls"].place() + ": got true, which only input: tokens has");
  return s;
}

ConfigNode write_settings(const ImageSettings& s) {
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("image"));
  const ConfigNode fields = write_config(s);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  return out;
}

// intensity -> feature, for each channel [256, C]
std::vector<float> intensity_table(const Standardiser& standardiser, i64 channels) {
  std::vector<float> table;
  for (i64 x = 0; x < kIntensities; ++x) table.insert(table.end(), static_cast<std::size_t>(channels), static_cast<float>(x) / 255.0f);
  standardiser.apply(table);
  return table;
}

class ImageDataset final : public Dataset {
 public:
  ImageDataset(ImageSet set, const ImageSettings& s, std::vector<float> table)
      : set_(std::move(set)), settings_(s), table_(std::move(table)) {}
  i64 size() const override { return set_.size(); }
  i64 length(i64) const override { return set_.height * set_.width + settings_.add_cls; }
  std::string describe(i64 i) const override { return set_.place(i); }

  Sample get(i64 i, std::optional<RngKey> augment) const override {
    const ImageAugment& a = settings_.augment;
    std::vector<std::uint8_t> moved;
    std::span<const std::uint8_t> pixels = set_.image(i);
    if (augment && (a.shift > 0 || a.flip)) pixels = moved = changed(pixels, *augment);
    Sample s;
    if (!set_.labels.empty()) s.label = set_.labels[static_cast<std::size_t>(i)];
    if (settings_.tokens()) {
      if (settings_.add_cls) s.tokens.push_back(kIntensities);
      s.tokens.insert(s.tokens.end(), pixels.begin(), pixels.end());
      return s;
    }
    s.features = Tensor::empty({set_.height * set_.width, set_.channels});
    float* out = s.features.mut_ptr<float>();
    const auto C = static_cast<std::size_t>(set_.channels);
    for (std::size_t p = 0; p < pixels.size(); ++p) out[p] = table_[pixels[p] * C + p % C];
    return s;
  }

 private:
  std::vector<std::uint8_t> changed(std::span<const std::uint8_t> pixels, RngKey key) const {
    const i64 H = set_.height, W = set_.width, C = set_.channels, s = settings_.augment.shift;
    const auto offset = [&](std::uint64_t draw) { return static_cast<i64>(key.below(draw, static_cast<std::uint64_t>(2 * s + 1))) - s; };
    const i64 down = offset(0), right = offset(1);
    const bool flip = settings_.augment.flip && key.below(2, 2) == 1;
    std::vector<std::uint8_t> out(pixels.size(), 0);
    for (i64 y = std::max<i64>(0, down); y < std::min(H, H + down); ++y)
      for (i64 x = std::max<i64>(0, right); x < std::min(W, W + right); ++x) {
        const i64 from = flip ? W - 1 - (x - right) : x - right;
        std::copy_n(pixels.begin() + ((y - down) * W + from) * C, C, out.begin() + (y * W + x) * C);
      }
    return out;
  }

  ImageSet set_;
  ImageSettings settings_;
  std::vector<float> table_;
};

class ImagePreprocessor final : public Preprocessor {
 public:
  ImagePreprocessor(ImageSettings s, DataInfo::Image shape, std::vector<std::string> labels, Standardiser standardiser)
      : settings_(std::move(s)),
        shape_(shape),
        standardiser_(std::move(standardiser)),
        table_(intensity_table(standardiser_, shape.channels)) {
    info_.max_length = shape.height * shape.width + settings_.add_cls;
    info_.labels = std::move(labels);
    if (settings_.tokens()) {
      info_.vocab = kIntensities + settings_.add_cls;
      return;
    }
    info_.input = DataInfo::Input::Features;
    info_.feature_dim = shape.channels;
    info_.image = shape;
  }
  const DataInfo& info() const override { return info_; }
  ConfigNode settings() const override { return write_settings(settings_); }
  const Policies& policies() const override { return settings_.policies; }
  bool reads_lines() const override { return false; }

  void save(Hdf5File& file, const std::string& group) const override {
    write_text(file, group + "/settings", settings().json());
    write_texts(file, group + "/labels", info_.labels);
    file.write(group + "/sizes", Tensor::from<i64>({shape_.height, shape_.width, shape_.channels}, {3}));
    standardiser_.save(file, group + "/standardise");
  }

  using Preprocessor::dataset;
  std::unique_ptr<Dataset> dataset(const PartSource& source, const Policies& policies, Part) const override {
    return dataset_of(read_images(source.files, settings_.format, true), source.name(), policies);
  }

  std::unique_ptr<Dataset> dataset_of(ImageSet set, const std::string& name, const Policies& policies) const {
    Problems problems(name, policies);
    check_labels(set, problems);
    return std::make_unique<ImageDataset>(fitting(std::move(set)), settings_, table_);
  }

  Sample sample_of_line(const std::string&) const override { throw DataError("images are read from files, not from lines"); }
  Sample sample_of_file(const std::string& path) const override {
    std::vector<Sample> samples = samples_of_file(path);
    if (samples.size() != 1) throw DataError(fmt::format("{}: holds {} images, expected one", path, samples.size()));
    return std::move(samples[0]);
  }
  std::vector<Sample> samples_of_file(const std::string& path) const override {
    const ImageDataset set(fitting(read_images({path}, settings_.format, false)), settings_, table_);
    std::vector<Sample> samples;
    for (i64 i = 0; i < set.size(); ++i) samples.push_back(set.get(i, {}));
    return samples;
  }

 private:
  // Images of another size cannot be used; grey where the model was trained on grey.
  ImageSet fitting(ImageSet set) const {
    if (settings_.to_grey()) make_grey(set);
    if (set.height != shape_.height || set.width != shape_.width || set.channels != shape_.channels)
      throw DataError(fmt::format("{}: got images of {} x {} x {}, expected {} x {} x {} as in the training part", set.files[0].name,
                                  set.height, set.width, set.channels, shape_.height, shape_.width, shape_.channels));
    return set;
  }

  void check_labels(ImageSet& set, Problems& problems) const {
    std::vector<i64> usable;
    for (i64 i = 0; i < set.size(); ++i) {
      const i64 label = set.labels[static_cast<std::size_t>(i)];
      if (label < info_.classes())
        usable.push_back(i);
      else
        problems.add(Fault::UnknownLabel,
                     fmt::format("{}: label {} is out of range, expected 0 to {}", set.place(i), label, info_.classes() - 1));
    }
    problems.report(static_cast<std::size_t>(set.size()));
    if (static_cast<i64>(usable.size()) == set.size()) return;
    ImageSet kept{set.height, set.width, set.channels, {}, {}, {}};
    for (i64 i : usable) {
      const auto image = set.image(i);
      kept.pixels.insert(kept.pixels.end(), image.begin(), image.end());
      kept.labels.push_back(set.labels[static_cast<std::size_t>(i)]);
      kept.files.push_back(set.origin(i));
    }
    set = std::move(kept);
  }

  ImageSettings settings_;
  DataInfo::Image shape_;
  DataInfo info_;
  Standardiser standardiser_;
  std::vector<float> table_;
};

Standardiser fit_standardiser(const ImageSet& set) {
  const auto C = static_cast<std::size_t>(set.channels);
  std::vector<std::array<i64, kIntensities>> counts(C);
  for (auto& c : counts) c.fill(0);
  for (std::size_t p = 0; p < set.pixels.size(); ++p) ++counts[p % C][set.pixels[p]];
  std::vector<double> mean(C), deviation(C);
  const double n = static_cast<double>(set.pixels.size()) / static_cast<double>(C);
  for (std::size_t c = 0; c < C; ++c) {
    const auto sum = [&](auto&& f) {
      double total = 0;
      for (std::size_t x = 0; x < counts[c].size(); ++x) total += static_cast<double>(counts[c][x]) * f(static_cast<double>(x) / 255);
      return total / n;
    };
    mean[c] = sum([](double x) { return x; });
    deviation[c] = std::sqrt(sum([&](double x) { return (x - mean[c]) * (x - mean[c]); }));
  }
  return Standardiser(mean, deviation);
}

std::vector<std::string> label_names(const ImageSettings& s, const ImageSet& train) {
  std::string file = s.names;
  if (file.empty()) {
    file = (std::filesystem::path(train.files[0].name).parent_path() / "labels.txt").string();
    if (!std::filesystem::exists(file)) {
      const std::set<i64> seen(train.labels.begin(), train.labels.end());
      if (static_cast<i64>(seen.size()) <= *seen.rbegin())
        log::warn(
            fmt::format("{}: labels run from 0 to {}, but only {} of them occur; a file of class names (data.names) refuses what lies "
                        "behind its last line",
                        train.files[0].name, *seen.rbegin(), seen.size()));
      std::vector<std::string> numbers;
      for (i64 c = 0; c <= *std::max_element(train.labels.begin(), train.labels.end()); ++c) numbers.push_back(std::to_string(c));
      return numbers;
    }
  }
  std::vector<std::string> names;
  std::istringstream lines(read_text_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  return names;
}

Fitted fit(const ConfigNode& data) {
  const ImageSettings s = read_settings(data);
  const PartSource source = read_source(s.train);
  if (!source.filter.empty()) throw ConfigError(source.name() + ": `where` and `exclude` need a table, and images have no columns");
  ImageSet set = read_images(source.files, s.format, true);
  std::vector<std::string> labels = label_names(s, set);
  check_class_count(labels, source.name());
  if (s.to_grey()) make_grey(set);
  Standardiser standardiser = s.normalise == "global" && !s.tokens() ? fit_standardiser(set) : Standardiser();
  auto preprocessor = std::make_shared<ImagePreprocessor>(s, DataInfo::Image{set.height, set.width, set.channels}, std::move(labels),
                                                          std::move(standardiser));
  auto train = preprocessor->dataset_of(std::move(set), source.name(), s.policies);
  return {std::move(preprocessor), std::move(train)};
}

std::shared_ptr<Preprocessor> load(const ConfigNode& saved, const Hdf5File& file, const std::string& group) {
  const std::vector<double> sizes = file.read(group + "/sizes").to_vector();
  if (sizes.size() != 3) throw IoError(group + "/sizes: expected three numbers");
  const DataInfo::Image shape{static_cast<i64>(sizes[0]), static_cast<i64>(sizes[1]), static_cast<i64>(sizes[2])};
  return std::make_shared<ImagePreprocessor>(read_settings(saved), shape, read_texts(file, group + "/labels"),
                                             Standardiser::load(file, group + "/standardise"));
}

const bool kRegistered = data_type_registry().add("image", {[](const ConfigNode& data) { return write_settings(read_settings(data)); },
                                                            [] { return explain_config<ImageSettings>(); }, fit, load});

}  // namespace
}  // namespace tapeformer
