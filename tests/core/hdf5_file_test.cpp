#include "core/hdf5_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

class Hdf5 : public ::testing::Test {
 protected:
  Hdf5() : folder_(std::filesystem::temp_directory_path() / ("tapeformer_hdf5_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Hdf5() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write_bytes(const std::string& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }
  std::filesystem::path folder_;
};

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const IoError& e) {
    return e.what();
  }
  return "no error";
}

Tensor counting(const Shape& s, DType t) {
  std::vector<double> v;
  for (i64 i = 0; i < s.numel(); ++i) v.push_back(static_cast<double>(i % 250));
  return Tensor::from(v, s).to(t);
}

TEST_F(Hdf5, RoundTripOfTypesAndShapes) {
  for (DType t : {DType::F32, DType::F64, DType::BF16, DType::I64, DType::I32, DType::U8})
    for (const Shape& s : {Shape{}, {1}, {5}, {2, 3}, {0}, {3, 0, 2}, {1, 2, 1, 2, 1, 2, 1, 2}}) {
      const Tensor x = counting(s, t);
      Hdf5File out = Hdf5File::create(path("a.h5"));
      out.write("/deep/er/x", x);
      out.close();
      const Tensor y = Hdf5File::open(path("a.h5")).read("/deep/er/x");
      EXPECT_EQ(y.shape(), s);
      EXPECT_EQ(y.dtype(), t == DType::BF16 ? DType::F32 : t);
      EXPECT_EQ(y.to_vector(), x.to_vector());
    }
}

TEST_F(Hdf5, ViewsAreWrittenAsTheyRead) {
  const Tensor x = counting({4, 5, 6}, DType::F32);
  const std::vector<Tensor> views{x.transpose(0, 2),
                                  x.slice(0, 1, 3),
                                  x.slice(0, 1, 2).view({30}),
                                  x.slice(2, 1, 4),
                                  x.slice(1, 2, 2),
                                  x.slice(0, 3, 4).slice(1, 0, 1).expand({3, 2, 6}),
                                  x.view({120}).slice(0, 7, 8).view({})};
  Hdf5File out = Hdf5File::create(path("a.h5"));
  for (std::size_t i = 0; i < views.size(); ++i) out.write("/v" + std::to_string(i), views[i]);
  out.close();
  const Hdf5File in = Hdf5File::open(path("a.h5"));
  for (std::size_t i = 0; i < views.size(); ++i) EXPECT_EQ(in.read("/v" + std::to_string(i)).to_vector(), views[i].to_vector()) << i;
}

TEST_F(Hdf5, SpecialValuesKeepTheirBits) {
  const std::vector<float> v{INFINITY, -INFINITY, -0.0f, 1e-45f, 3.4028235e38f, std::nanf("")};
  Hdf5File out = Hdf5File::create(path("a.h5"));
  out.write("/x", Tensor::from(v, {6}));
  out.write("/n", Tensor::from<i64>({INT64_MIN, INT64_MAX, -1}, {3}));
  out.close();
  const Hdf5File in = Hdf5File::open(path("a.h5"));
  const Tensor x = in.read("/x"), n = in.read("/n");
  EXPECT_EQ(std::memcmp(x.ptr<float>(), v.data(), 24), 0);
  EXPECT_EQ(n.data<i64>()[0], INT64_MIN);
  EXPECT_EQ(n.data<i64>()[1], INT64_MAX);
}

TEST_F(Hdf5, Attributes) {
  const std::string lengthy(200000, 'x'), other(40000, 'y'), edge(32000, 'e');
  Hdf5File out = Hdf5File::create(path("a.h5"));
  out.write("/m/x", counting({2}, DType::F32));
  out.write("/m/y", counting({2}, DType::F32));
  out.write_attribute("/", "text", std::string("é: 'quoted'\nline"));
  out.write_attribute("/", "empty", std::string());
  out.write_attribute("/", "edge", edge);
  out.write_attribute("/", "number", 0.1);
  out.write_attribute("/", "whole", i64{1} << 40);
  out.write_attribute("/", "long", lengthy);
  out.write_attribute("/m/x", "long", other);
  out.write_attribute("/m/x", "short", std::string("s"));
  out.close();
  const Hdf5File in = Hdf5File::open(path("a.h5"));
  EXPECT_EQ(in.read_text("/", "text"), "é: 'quoted'\nline");
  EXPECT_EQ(in.read_text("/", "empty"), "");
  EXPECT_EQ(in.read_text("/", "edge"), edge);
  EXPECT_EQ(in.read_number("/", "number"), 0.1);
  EXPECT_EQ(in.read_number("/", "whole"), static_cast<double>(i64{1} << 40));
  EXPECT_EQ(in.read_text("/", "long"), lengthy);
  EXPECT_EQ(in.read_text("/m/x", "long"), other);
  EXPECT_TRUE(in.has_attribute("/m/x", "short"));
  EXPECT_FALSE(in.has_attribute("/m/y", "short"));
  EXPECT_FALSE(in.has_attribute("/m/y", "long"));
  EXPECT_EQ(error_of([&] { in.read_text("/m/y", "long"); }), path("a.h5") + ": has no attribute 'long'");
  EXPECT_EQ(error_of([&] { in.read_text("/", "number"); }), path("a.h5") + ": attribute 'number' is not text");
  EXPECT_EQ(error_of([&] { in.read_number("/", "text"); }), path("a.h5") + ": has no number 'text'");
}

TEST_F(Hdf5, ListsWhatIsThere) {
  Hdf5File out = Hdf5File::create(path("a.h5"));
  out.write("/b/two", counting({1}, DType::F32));
  out.write("/b/one", counting({1}, DType::F32));
  out.write("/a", counting({1}, DType::F32));
  EXPECT_EQ(out.datasets(), (std::vector<std::string>{"/a", "/b/one", "/b/two"}));
  EXPECT_EQ(out.list("/b"), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(out.list("/"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(out.list("/none/such").empty());
  EXPECT_TRUE(out.exists("/b/one"));
  EXPECT_FALSE(out.exists("/b/three"));
  EXPECT_FALSE(out.exists("/c/d/e"));
  EXPECT_EQ(error_of([&] { out.read("/b/three"); }), path("a.h5") + ": has no dataset '/b/three'");
  EXPECT_NE(error_of([&] { out.write("/a", counting({1}, DType::F32)); }), "no error");
}

TEST_F(Hdf5, FilesThatAreMissingOrSomethingElse) {
  write_bytes(path("text"), "not HDF5 at all");
  write_bytes(path("empty"), "");
  EXPECT_EQ(error_of([&] { Hdf5File::open(path("none.h5")); }), path("none.h5") + ": no such file");
  for (const std::string& bad : {path("text"), path("empty"), folder_.string()})
    EXPECT_EQ(error_of([&] { Hdf5File::open(bad); }), bad + ": is not an HDF5 file, or is damaged");
  EXPECT_EQ(error_of([&] { open_checked(path("none")); }), path("none") + ": no such file");
  for (const std::string& bad : {path("text"), path("empty"), folder_.string()})
    EXPECT_EQ(error_of([&] { open_checked(bad); }), bad + ": is not a file that this program saved, or its start is damaged");
  EXPECT_NE(error_of([&] { Hdf5File::create(path("no/such/folder.h5")); }).find("cannot be created"), std::string::npos);
}

TEST_F(Hdf5, CheckedFilesNoticeEveryFlippedByte) {
  const std::string file = path("model.h5");
  const auto fill = [](Hdf5File& f) {
    f.write("/model/w", counting({30, 40}, DType::F32));
    f.write_attribute("/", "config", std::string("dim: 8"));
  };
  save_checked(file, fill);
  EXPECT_EQ(open_checked(file).read("/model/w").to_vector(), counting({30, 40}, DType::F64).to_vector());
  const std::string good = bytes_of(file);
  ASSERT_GT(good.size(), 5000u);
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < 520; ++i) positions.push_back(i);
  for (std::size_t i = 520; i < good.size(); i += 13) positions.push_back(i);
  positions.push_back(good.size() - 1);
  for (std::size_t at : positions) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    write_bytes(file, bad);
    ASSERT_NE(error_of([&] { open_checked(file); }).find("damaged"), std::string::npos) << "byte " << at;
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{10}, std::size_t{49}, std::size_t{51}, std::size_t{511}, std::size_t{512},
                           good.size() / 2, good.size() - 1}) {
    write_bytes(file, good.substr(0, size));
    ASSERT_NE(error_of([&] { open_checked(file); }).find("damaged"), std::string::npos) << "truncated to " << size;
  }
  write_bytes(file, good + "x");
  EXPECT_NE(error_of([&] { open_checked(file); }).find("damaged"), std::string::npos);
  write_bytes(file, good);
  EXPECT_NO_THROW(open_checked(file));
}

TEST_F(Hdf5, DamageWithoutAChecksumIsAnErrorNotACrash) {
  Hdf5File out = Hdf5File::create(path("a.h5"));
  out.write("/g/w", counting({8, 8}, DType::F32));
  out.write("/g/n", counting({8}, DType::I32));
  out.write_attribute("/", "text", std::string("hello"));
  out.close();
  const std::string good = bytes_of(path("a.h5"));
  int survived = 0, refused = 0;
  for (std::size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0xff);
    write_bytes(path("b.h5"), bad);
    try {
      const Hdf5File in = Hdf5File::open(path("b.h5"));
      for (const std::string& name : in.datasets()) in.read(name);
      if (in.has_attribute("/", "text")) in.read_text("/", "text");
      ++survived;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(survived, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(Hdf5, AFailedSaveLeavesTheOldFileAndNoRubbish) {
  save_checked(path("m.h5"), [](Hdf5File& f) { f.write("/x", counting({3}, DType::F32)); });
  EXPECT_THROW(save_checked(path("m.h5"),
                            [](Hdf5File& f) {
                              f.write("/y", counting({3}, DType::F32));
                              throw std::runtime_error("stop");
                            }),
               std::runtime_error);
  EXPECT_TRUE(open_checked(path("m.h5")).exists("/x"));
  write_file_atomically(path("t.txt"), "first");
  write_file_atomically(path("t.txt"), "second\n");
  EXPECT_EQ(bytes_of(path("t.txt")), "second\n");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 2u);
  EXPECT_THROW(write_file_atomically(path("no/such/t.txt"), "x"), IoError);
}

}  // namespace
}  // namespace tapeformer
