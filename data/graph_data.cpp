// graph_data.cpp: one graph from two tables, nodes and edges. A part is the whole graph; its `where` says which nodes carry their labels,
// the others have none (kIgnoreLabel). The only sample of a part has N nodes, in the order of the file, and its edges.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "core/log.h"
#include "data/data_type.h"
#include "data/hdf5_text.h"

namespace tapeformer {
namespace {

struct GraphColumns {
  std::string node = "node", label = "label", features = "features", source = "source", target = "target";
};
template <class V>
void visit_fields(V& v, GraphColumns& c) {
  v("node", c.node, "nodes: column of the name, by which edges refer to it");
  v("label", c.label, "nodes: column of the label; empty or '-': none");
  v("features", c.features, "nodes: column of the feature indices, separated by blanks");
  v("source", c.source, "edges: column of the node that is looked at");
  v("target", c.target, "edges: column of the node that looks");
}

struct GraphSettings {
  ConfigNode train, valid, test;
  std::string edges, format = "auto";
  bool directed = false;
  GraphColumns columns;
  i64 feature_dim = 0, max_length = 0;
  std::string normalise = "rows";
  Policies policies;
};
template <class V>
void visit_fields(V& v, GraphSettings& s) {
  v("train", s.train, "table of nodes, with `where` for those whose labels are trained on: {files: nodes.tsv, where: {split: train}}");
  v("valid", s.valid, "the same graph, or another, with the nodes to choose by while training");
  v("test", s.test, "the same graph, or another, with the nodes to report on");
  v("edges", s.edges, "table of edges; empty = the file 'edges' beside the nodes, with the same ending");
  v("format", s.format, OneOf{"auto", "csv", "tsv", "jsonl"}, "auto: by the file's ending");
  v("directed", s.directed, "false: every edge counts in both directions");
  v("columns", s.columns, "which column holds what");
  v("feature_dim", s.feature_dim, Range{0, 1 << 20}, "number of features; 0 = the largest index of the training graph + 1");
  v("max_length", s.max_length, at_least(0), "most nodes of a graph; 0 = as many as the training graph has");
  v("normalise", s.normalise, OneOf{"none", "rows"}, "rows: the features of a node add up to 1");
  visit_fields(v, s.policies);
}

GraphSettings read_settings(const ConfigNode& data) { return read_config<GraphSettings>(data, {}, {"type"}); }

ConfigNode write_settings(const GraphSettings& s) {
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("graph"));
  const ConfigNode fields = write_config(s);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  return out;
}

struct Node {
  std::string name, label, place;
  std::vector<i64> features;
  bool labelled = false;  // has a label, and the part asks for it
};

struct Graph {
  std::string name;
  std::size_t rows = 0;  // of the table, the unusable ones too
  std::vector<Node> nodes;
  std::vector<std::pair<i64, i64>> edges;  // source, target; no loops, none twice
  i64 most_feature() const {
    i64 most = -1;
    for (const Node& n : nodes)
      for (i64 f : n.features) most = std::max(most, f);
    return most;
  }
};

// Indices separated by blanks. "" or what is wrong with them.
std::string parse_features(const std::string& text, i64 limit, std::vector<i64>& out) {
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    while (at != end && *at == ' ') ++at;
    if (at == end) return "";
    i64 x = 0;
    const auto [next, error] = std::from_chars(at, end, x);
    if (error != std::errc{} || (next != end && *next != ' '))
      return fmt::format("'{}' is no feature index", std::string(at, std::find(at, end, ' ')));
    if (x < 0 || x >= limit) return fmt::format("feature index {} is out of range, expected 0 to {}", x, limit - 1);
    if (std::find(out.begin(), out.end(), x) == out.end()) out.push_back(x);
    at = next;
  }
}

using NodeIndex = std::unordered_map<std::string, i64>;

NodeIndex read_nodes(const PartSource& source, const GraphSettings& s, i64 feature_limit, Problems& problems, Graph& graph) {
  const std::string& file = source.files[0];
  std::vector<std::string> wanted{s.columns.node, s.columns.label, s.columns.features};
  for (const auto* list : {&source.filter.where, &source.filter.exclude})
    for (const auto& [column, values] : *list) wanted.push_back(column);
  const Table table = read_table(file, table_format(file, s.format), wanted);
  const std::size_t name = table.column(s.columns.node), label = table.column(s.columns.label), features = table.column(s.columns.features);
  NodeIndex index;
  graph.rows = table.rows.size();
  for (const TableRow& row : table.rows) {
    Node node{.name = row.problem.empty() ? row.fields[name] : "", .place = table.place(row)};
    std::string problem = row.problem;
    if (problem.empty()) problem = parse_features(row.fields[features], feature_limit, node.features);
    if (problem.empty() && !index.emplace(row.fields[name], static_cast<i64>(graph.nodes.size())).second)
      problem = fmt::format("node '{}' stands twice", row.fields[name]);
    if (!problem.empty()) {
      problems.add(Fault::Bad, node.place + ": " + problem);
      continue;
    }
    node.label = row.fields[label];
    node.labelled = !node.label.empty() && node.label != "-" && keeps(source.filter, table, row);
    graph.nodes.push_back(std::move(node));
  }
  return index;
}

// Self loops and repeated edges are left out, counted and reported once: a variant that wants loops adds them. Returns the rows.
std::size_t read_edges(const std::string& file, const GraphSettings& s, const NodeIndex& index, Problems& problems, Graph& graph) {
  const Table table = read_table(file, table_format(file, s.format), {s.columns.source, s.columns.target});
  const std::array columns{table.column(s.columns.source), table.column(s.columns.target)};
  std::set<std::pair<i64, i64>> seen;
  i64 loops = 0, repeated = 0;
  std::string first;  // place of the first one left out
  for (const TableRow& row : table.rows) {
    std::string problem = row.problem;
    std::array<i64, 2> ends{};
    for (std::size_t i = 0; i < 2 && problem.empty(); ++i) {
      const auto it = index.find(row.fields[columns[i]]);
      if (it == index.end())
        problem = fmt::format("node '{}' does not stand in {}", row.fields[columns[i]], graph.name);
      else
        ends[i] = it->second;
    }
    if (!problem.empty()) {
      problems.add(Fault::Bad, table.place(row) + ": " + problem);
      continue;
    }
    const bool loop = ends[0] == ends[1];
    if (!loop && seen.emplace(ends[0], ends[1]).second) {
      if (!s.directed) seen.emplace(ends[1], ends[0]);
      continue;
    }
    if (first.empty()) first = table.place(row);
    ++(loop ? loops : repeated);
  }
  if (loops + repeated > 0)
    log::warn(fmt::format("{}: left out {} self loops and {} repeated edges, the first at {}", file, loops, repeated, first));
  graph.edges.assign(seen.begin(), seen.end());
  return table.rows.size();
}

std::string edge_file(const std::string& nodes, const GraphSettings& s) {
  if (!s.edges.empty()) return s.edges;
  const std::filesystem::path path(nodes);
  return (path.parent_path() / ("edges" + path.extension().string())).string();
}

// feature_limit: indices must be below.
Graph read_graph(const PartSource& source, const GraphSettings& s, i64 feature_limit, Problems& problems) {
  if (source.files.size() != 1)
    throw ConfigError(source.name() + ": a graph has one table of nodes, got " + std::to_string(source.files.size()));
  Graph graph;
  graph.name = source.files[0];
  const NodeIndex index = read_nodes(source, s, feature_limit, problems, graph);
  problems.report(graph.rows);
  const std::string edges = edge_file(source.files[0], s);
  Problems of_edges(edges, s.policies);
  of_edges.report(read_edges(edges, s, index, of_edges, graph));
  if (graph.nodes.empty()) throw DataError(graph.name + ": no node can be used");
  return graph;
}

class GraphDataset final : public Dataset {
 public:
  GraphDataset(Sample sample, std::string name) : sample_(std::move(sample)), name_(std::move(name)) {}
  i64 size() const override { return 1; }
  i64 length(i64) const override { return sample_.length(); }
  Sample get(i64, std::optional<RngKey>) const override { return sample_; }
  std::string describe(i64) const override { return name_; }
  std::string describe_position(i64, i64 n) const override { return sample_.positions[static_cast<std::size_t>(n)]; }

 private:
  Sample sample_;
  std::string name_;
};

class GraphPreprocessor final : public Preprocessor {
 public:
  GraphPreprocessor(GraphSettings s, i64 feature_dim, i64 max_length, std::vector<std::string> labels) : settings_(std::move(s)) {
    info_.input = DataInfo::Input::Features;
    info_.target = DataInfo::Target::Frame;
    info_.feature_dim = feature_dim;
    info_.max_length = max_length;
    info_.labels = std::move(labels);
    info_.side = {"edges", "edge_batch"};
    info_.position = "node";
  }
  const DataInfo& info() const override { return info_; }
  ConfigNode settings() const override { return write_settings(settings_); }
  const Policies& policies() const override { return settings_.policies; }
  bool reads_lines() const override { return false; }

  void save(Hdf5File& file, const std::string& group) const override {
    write_text(file, group + "/settings", settings().json());
    write_texts(file, group + "/labels", info_.labels);
    file.write(group + "/sizes", Tensor::from<i64>({info_.feature_dim, info_.max_length}, {2}));
  }

  using Preprocessor::dataset;
  std::unique_ptr<Dataset> dataset(const PartSource& source, const Policies& policies, Part) const override {
    Problems problems(source.name(), policies);
    const Graph graph = read_graph(source, settings_, info_.feature_dim, problems);
    return dataset_of(graph, policies);
  }

  std::unique_ptr<Dataset> dataset_of(const Graph& graph, const Policies& policies) const {
    Problems problems(graph.name, policies);
    Sample sample = unlabelled(graph);
    i64 labelled = 0;
    for (const Node& node : graph.nodes) {
      const i64 label = node.labelled ? label_index(info_.labels, node.label) : kIgnoreLabel;
      if (label == -1) problems.add(Fault::UnknownLabel, node.place + ": " + unknown_label(info_.labels, node.label));
      labelled += label >= 0;
      sample.frame_labels.push_back(label >= 0 ? label : kIgnoreLabel);
    }
    problems.report(graph.nodes.size());
    if (labelled == 0) throw DataError(graph.name + ": no node of this part has a label");
    return std::make_unique<GraphDataset>(std::move(sample), graph.name);
  }

  Sample sample_of_line(const std::string&) const override {
    throw DataError("the nodes of a graph are labelled together: give the table of nodes as a file");
  }
  Sample sample_of_file(const std::string& path) const override {
    Problems problems(path, settings_.policies);
    Sample sample = unlabelled(read_graph({{path}, {}}, settings_, info_.feature_dim, problems));
    sample.frame_labels.assign(static_cast<std::size_t>(sample.length()), kIgnoreLabel);
    return sample;
  }

 private:
  Sample unlabelled(const Graph& graph) const {
    const auto N = static_cast<i64>(graph.nodes.size()), E = static_cast<i64>(graph.edges.size());
    if (N > info_.max_length)
      throw DataError(fmt::format("{}: has {} nodes, expected at most {} (data.max_length)", graph.name, N, info_.max_length));
    Sample sample;
    sample.features = Tensor::zeros({N, info_.feature_dim});
    float* row = sample.features.mut_ptr<float>();
    for (const Node& node : graph.nodes) {
      const float value = settings_.normalise == "rows" ? 1.0f / static_cast<float>(std::max<std::size_t>(node.features.size(), 1)) : 1.0f;
      for (i64 f : node.features) row[f] = value;
      row += info_.feature_dim;
      sample.positions.push_back(node.name);
    }
    sample.edges = Tensor::empty({2, E}, DType::I64);
    i64* const ends = sample.edges.mut_ptr<i64>();
    for (i64 e = 0; e < E; ++e) std::tie(ends[e], ends[E + e]) = graph.edges[static_cast<std::size_t>(e)];
    return sample;
  }

  GraphSettings settings_;
  DataInfo info_;
};

Fitted fit(const ConfigNode& data) {
  const GraphSettings s = read_settings(data);
  const PartSource source = read_source(s.train);
  Problems problems(source.name(), s.policies);
  const Graph graph = read_graph(source, s, s.feature_dim > 0 ? s.feature_dim : 1 << 20, problems);
  const i64 dim = s.feature_dim > 0 ? s.feature_dim : graph.most_feature() + 1;
  if (dim == 0) throw DataError(fmt::format("{}: no node has a feature (column '{}')", graph.name, s.columns.features));
  std::vector<std::string> labels;
  for (const Node& node : graph.nodes)
    if (node.labelled) labels.push_back(node.label);
  labels = ordered_labels(std::move(labels));
  check_class_count(labels, source.name());
  const i64 nodes = s.max_length > 0 ? s.max_length : static_cast<i64>(graph.nodes.size());
  auto preprocessor = std::make_shared<GraphPreprocessor>(s, dim, nodes, std::move(labels));
  auto train = preprocessor->dataset_of(graph, s.policies);
  return {std::move(preprocessor), std::move(train)};
}

std::shared_ptr<Preprocessor> load(const ConfigNode& saved, const Hdf5File& file, const std::string& group) {
  const std::vector<double> sizes = file.read(group + "/sizes").to_vector();
  if (sizes.size() != 2) throw IoError(group + "/sizes: expected two numbers");
  return std::make_shared<GraphPreprocessor>(read_settings(saved), static_cast<i64>(sizes[0]), static_cast<i64>(sizes[1]),
                                             read_texts(file, group + "/labels"));
}

const bool kRegistered = data_type_registry().add("graph", {[](const ConfigNode& data) { return write_settings(read_settings(data)); },
                                                            [] { return explain_config<GraphSettings>(); }, fit, load});

}  // namespace
}  // namespace tapeformer
