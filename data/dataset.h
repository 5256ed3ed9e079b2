// dataset.h: what a data set hands to training. `data` knows tensors and files, not models: a batch is a few named
// tensors.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "data/problems.h"
#include "data/sources.h"

namespace tapeformer {

class Hdf5File;

constexpr i64 kIgnoreLabel = -100;  // a frame, or a sample, without a label

enum class Part { Train, Valid, Test };
std::string_view name_of(Part);  // "train", "valid", "test"

// What a model must know about the data.
struct DataInfo {
  enum class Input { Tokens, Features };  // token ids [N], or feature vectors [N, F]
  enum class Target { Sequence, Frame };  // one label a sequence, or one label a frame
  Input input = Input::Tokens;
  Target target = Target::Sequence;
  i64 vocab = 0;                    // Tokens: ids are 0 <= id < vocab
  i64 feature_dim = 0;              // Features
  i64 max_length = 0;               // longest input that can occur (after truncation)
  std::vector<std::string> labels;  // class names in label order
  std::vector<std::string> side;    // names in Batch::side
  bool pair = false;                // every sample is two inputs, see Sample::second
  struct Image {                    // features are the pixels of an image, row by row: N = height width, F = channels
    i64 height = 0, width = 0, channels = 0;
  };
  std::optional<Image> image;
  const char* position = "frame";  // what a position is called where each has a label
  i64 classes() const { return static_cast<i64>(labels.size()); }
};

struct Sample {
  std::vector<i64> tokens;               // Tokens
  Tensor features;                       // Features: f32 [N, F]
  Tensor edges;                          // i64 [2, E], row 0 the source and row 1 the target of each edge, or undefined
  std::shared_ptr<const Sample> second;  // the other input of a pair; its label is not read
  i64 label = kIgnoreLabel;              // Sequence
  std::vector<i64> frame_labels;         // Frame: one each position, kIgnoreLabel where unknown
  std::vector<std::string> positions;    // names of the positions where they have any: the nodes of a graph
  i64 length() const { return features.defined() ? features.dim(0) : static_cast<i64>(tokens.size()); }
};

// Samples of one part. Thread-safe: get is called from prefetch threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual i64 size() const = 0;
  virtual i64 length(i64 i) const = 0;  // positions of sample i, without loading it where possible
  // augment: the key for random augmentation of this visit (training), nullopt for none.
  virtual Sample get(i64 i, std::optional<RngKey> augment) const = 0;
  virtual std::string describe(i64 i) const = 0;                                         // "train.csv:17" for messages
  virtual std::string describe_position(i64, i64 n) const { return std::to_string(n); }  // position n of a sample, in tables of results
};

// B samples padded at the end to the longest.
struct Batch {
  Tensor tokens;    // i64 [B, N] (0 at padding) or undefined
  Tensor features;  // f32 [B, N, F] (0 at padding) or undefined
  Tensor mask;      // u8 [B, N], 1 = real
  Tensor labels;    // i64 [B] or [B, N], kIgnoreLabel where there is none
  // What only some models look at, by name. Graphs: edges i64 [2, E] of all samples, edge_batch i64 [E] the row that each belongs to.
  std::map<std::string, Tensor> side;
  std::shared_ptr<const Batch> second;  // the other inputs of pairs, row by row, with their own N
  std::vector<i64> rows;                // global sample index of each row
  i64 size() const { return static_cast<i64>(rows.size()); }
  i64 length() const { return mask.dim(1); }
  i64 real_tokens() const;  // ones in mask
};
Batch collate(const std::vector<Sample>& samples, const std::vector<i64>& rows, const DataInfo& info);

// Everything that turns raw input into samples: tokenizer, label names, feature settings and statistics. Fitted on the
// training part, saved in the checkpoint, so that evaluate and predict need the checkpoint and raw input only.
class Preprocessor {
 public:
  virtual ~Preprocessor() = default;
  virtual const DataInfo& info() const = 0;
  virtual void save(Hdf5File&, const std::string& group) const = 0;  // reads back with load_preprocessor
  // The samples of a manifest, table or HDF5 file. Problems (missing file, empty text, unknown label, clip too short)
  // follow the policy `data.on_error` (stop: DataError naming file and row; skip: left out, counted and reported once).
  std::unique_ptr<Dataset> dataset(const std::string& file, Part part) const;
  // The same for several files and for some of their rows; policies: instead of those it was fitted with.
  virtual std::unique_ptr<Dataset> dataset(const PartSource&, const Policies&, Part) const = 0;
  virtual ConfigNode settings() const = 0;  // the resolved `data` section it was fitted with
  virtual const Policies& policies() const = 0;
  virtual Sample sample_of_line(const std::string& line) const = 0;  // text; DataError when the type reads files
  virtual Sample sample_of_file(const std::string& path) const = 0;  // audio, images, graphs; DataError when the type reads lines
  virtual std::vector<Sample> samples_of_file(const std::string& path) const { return {sample_of_file(path)}; }  // all that it holds
  virtual bool reads_lines() const = 0;
};

// The data of a run, from the `data` section of a configuration.
struct DataSet {
  std::shared_ptr<Preprocessor> preprocessor;
  std::unique_ptr<Dataset> train, valid, test;  // null when the section names no such file
};
// Builds by data.type (text, audio, image, graph, features); fits the preprocessor on the training part.
DataSet load_data(const ConfigNode& data);
// The same with a preprocessor that is already fitted (resume, evaluate): only the parts are read.
DataSet load_data(const ConfigNode& data, std::shared_ptr<Preprocessor> fitted);
std::shared_ptr<Preprocessor> load_preprocessor(const Hdf5File&, const std::string& group);
ConfigNode resolve_data_config(const ConfigNode& data);    // all defaults filled in; ConfigError on mistakes
std::string explain_data_config(const std::string& type);  // help text of every key of one type
std::vector<std::string> data_types();

}  // namespace tapeformer
