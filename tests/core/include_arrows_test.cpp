// Which folder may include which, and where each library may appear. An include against an arrow fails here and is
// named.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

const std::map<std::string, Names> kMayInclude{{"core", {}},
                                               {"autograd", {"core"}},
                                               {"layers", {"autograd", "core"}},
                                               {"attention", {"layers", "autograd", "core"}},
                                               {"data", {"core"}},
                                               {"models", {"attention", "layers", "autograd", "data", "core"}},
                                               {"optim", {"autograd", "core"}},
                                               {"train", {"models", "attention", "layers", "autograd", "optim", "data", "core"}},
                                               {"apps", {"train", "models", "attention", "layers", "autograd", "optim", "data", "core"}}};

struct Library {
  std::string pattern, where;  // of the include; of the files that may
};
const std::vector<Library> kLibraries{{"<dnnl.*", "core/kernels/.*"},
                                      {"<cblas\\.h>", "core/kernels/.*\\.cpp"},
                                      {"[<\"]hwy/.*", "core/kernels/.*\\.cpp"},
                                      {"<hdf5.*", "core/hdf5_file\\.cpp"},
                                      {"<yaml-cpp/.*", "core/config\\.cpp"},
                                      {"<spdlog/.*", "core/log\\.cpp"},
                                      {"<omp\\.h>", "core/(parallel|kernels/.*)\\.cpp"},
                                      {"<mpi\\.h>", "train/.*\\.cpp"}};

// What is wrong with `include` (with its quotes or brackets) in `file`, or "".
std::string complaint(const std::string& file, const std::string& include) {
  const std::string folder = file.substr(0, file.find('/'));
  for (const Library& l : kLibraries)
    if (std::regex_match(include, std::regex(l.pattern)) && !std::regex_match(file, std::regex(l.where)))
      return file + " includes " + include + ", which belongs into " + l.where;
  if (include[0] != '"' || include.rfind("\"hwy/", 0) == 0) return "";
  const std::size_t slash = include.find('/');
  if (slash == std::string::npos) return file + " includes " + include + " without its folder";
  const std::string target = include.substr(1, slash - 1);
  if (target == folder || kMayInclude.at(folder).count(target)) return "";
  return file + " includes " + include + ": " + folder + " may not know " + target;
}

TEST(IncludeArrows, NoIncludeAgainstAnArrow) {
  const std::regex line_of("^\\s*#\\s*include\\s+([\"<][^\">]+[\">])");
  int files = 0, includes = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    const fs::path root = fs::path(SOURCE_DIR) / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
      ++files;
      const std::string file = fs::relative(entry.path(), SOURCE_DIR).string();
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        std::smatch m;
        if (!std::regex_search(line, m, line_of)) continue;
        ++includes;
        EXPECT_EQ(complaint(file, m[1]), "");
      }
    }
  }
  EXPECT_GT(files, 40);
  EXPECT_GT(includes, 200);
}

TEST(IncludeArrows, EverySourceFolderHasARule) {
  for (const auto& entry : fs::directory_iterator(SOURCE_DIR)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    bool sources = false;
    for (const auto& file : fs::directory_iterator(entry.path()))
      sources = sources || file.path().extension() == ".cpp" || file.path().extension() == ".h";
    if (sources && name != "tests" && name != "bench" && name != "examples")
      EXPECT_TRUE(kMayInclude.count(name) || name.rfind("build", 0) == 0) << name;
  }
}

TEST(IncludeArrows, TheCheckItselfFindsViolations) {
  EXPECT_EQ(complaint("core/tensor.cpp", "\"core/shape.h\""), "");
  EXPECT_EQ(complaint("layers/linear.h", "\"autograd/ops.h\""), "");
  EXPECT_EQ(complaint("core/tensor.cpp", "\"autograd/tape.h\""),
            "core/tensor.cpp includes \"autograd/tape.h\": core may not know autograd");
  EXPECT_NE(complaint("data/loader.cpp", "\"autograd/tape.h\""), "");
  EXPECT_NE(complaint("optim/adam.cpp", "\"models/model.h\""), "");
  EXPECT_NE(complaint("apps/train.cpp", "\"tests/op_samples.h\""), "");
  EXPECT_NE(complaint("train/trainer.cpp", "<yaml-cpp/yaml.h>"), "");
  EXPECT_NE(complaint("core/tensor.h", "<dnnl.hpp>"), "");
  EXPECT_NE(complaint("core/tensor.cpp", "\"hwy/highway.h\""), "");
  EXPECT_EQ(complaint("core/kernels/gemm.cpp", "<cblas.h>"), "");
  EXPECT_NE(complaint("core/tensor.cpp", "\"shape.h\""), "");
}

}  // namespace
