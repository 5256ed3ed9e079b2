// data_type.h: how a kind of data (text, audio, features) registers itself. load_data works through this registry.
#pragma once
#include <functional>

#include "core/registry.h"
#include "data/dataset.h"

namespace tapeformer {

struct Fitted {
  std::shared_ptr<Preprocessor> preprocessor;
  std::unique_ptr<Dataset> train;
};

struct DataType {
  std::function<ConfigNode(const ConfigNode& data)> resolve;  // all defaults filled in; ConfigError
  std::function<std::vector<FieldHelp>()> explain;
  std::function<Fitted(const ConfigNode& data)> fit;  // reads data.train
  std::function<std::shared_ptr<Preprocessor>(const ConfigNode& saved, const Hdf5File&, const std::string& group)> load;
};
Registry<DataType>& data_type_registry();

// Label names in order: by number when all are integers, by bytes otherwise.
std::vector<std::string> ordered_labels(std::vector<std::string> names);
// DataError unless there are two classes at least.
void check_class_count(const std::vector<std::string>& labels, const std::string& source);
i64 label_index(const std::vector<std::string>& labels, const std::string& name);            // -1 when absent
std::string unknown_label(const std::vector<std::string>& labels, const std::string& name);  // the message

}  // namespace tapeformer
