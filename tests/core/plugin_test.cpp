// plugin_test.cpp: what --load refuses. Loading a real variant is tests/package.
#include "core/plugin.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/registry.h"

namespace tapeformer {
namespace {
namespace fs = std::filesystem;

template <class E>
std::string refusal(const std::string& path) {
  try {
    load_plugin(path);
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

TEST(Plugin, RefusesWhatIsNoWholeLibrary) {
  EXPECT_EQ(refusal<IoError>(""), "--load '': no such file");
  EXPECT_EQ(refusal<IoError>("/nowhere.so"), "--load '/nowhere.so': no such file");
  const fs::path folder = fs::path(testing::TempDir()) / "plugin_test";
  fs::create_directories(folder);
  const std::string text = folder / "text.so", cut = folder / "cut.so";
  std::ofstream(text) << "not a library, but long enough to hold a header of sixty-four bytes and more";
  EXPECT_EQ(refusal<IoError>(text), text + ": is no shared library");
  for (const double part : {0.0001, 0.5, 0.99}) {
    fs::copy_file(fs::path(BINARY_DIR) / "libtapeformer.so", cut, fs::copy_options::overwrite_existing);
    fs::resize_file(cut, static_cast<std::uintmax_t>(part * static_cast<double>(fs::file_size(cut))));
    EXPECT_EQ(refusal<IoError>(cut), cut + ": breaks off after " + std::to_string(fs::file_size(cut)) + " bytes");
  }
}

TEST(Plugin, RefusesALibraryThatRegistersNothing) {  // it is loaded already, so nothing of it runs again
  const std::string path = fs::path(BINARY_DIR) / "libtapeformer.so";
  EXPECT_EQ(refusal<ConfigError>(path), path + ": registers nothing (loaded twice, or without register_attention, register_model, ...)");
}

TEST(Registry, ANameTakenTwiceIsReportedAndTheFirstStays) {
  Registry<int> registry("number");
  const i64 before = registrations().count;
  EXPECT_TRUE(registry.add("one", 1, "first.cpp"));
  EXPECT_NO_THROW(check_registrations());
  EXPECT_FALSE(registry.add("one", 2, "second.cpp"));
  EXPECT_EQ(registry.get("one"), 1);
  EXPECT_EQ(registrations().count, before + 1);
  try {
    check_registrations();
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "number 'one' is registered by first.cpp and by second.cpp");
  }
  registrations().errors.clear();
}

}  // namespace
}  // namespace tapeformer
