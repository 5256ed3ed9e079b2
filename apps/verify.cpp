// verify: checks attention variants against golden files.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>

#include "attention/verify.h"
#include "apps/program.h"

using namespace tapeformer;

namespace {

void print(const GoldenReport& r, bool verbose) {
  if (!r.skipped.empty()) {
    fmt::print("SKIP  {}: {}\n", r.file, r.skipped);
    return;
  }
  double worst[2] = {0, 0};
  for (const TensorCheck& c : r.checks) worst[c.dtype == DType::F32] = std::max(worst[c.dtype == DType::F32], c.error);
  fmt::print("{}  {}  ({} tensors, largest error f64 {:.1e}, f32 {:.1e})\n", r.pass() ? "pass" : "FAIL", r.file, r.checks.size() / 2,
             worst[0], worst[1]);
  for (const TensorCheck& c : r.checks)
    if (verbose || !c.pass)
      fmt::print("      {} {:<22} error {:.2e}  allowed {:.0e}{}{}\n", name_of(c.dtype), c.name, c.error, c.allowed,
                 c.padding_exact ? "" : "  padded rows are not exactly 0", c.pass ? "" : "  FAIL");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs the attention variant that each golden file names on the file's inputs and parameters, in f64 and f32,\n"
      "and compares outputs and gradients.\n\n"
      "Examples:\n"
      "  verify --allow-unknown tests/golden/*.h5\n"
      "  verify --verbose my_port.h5       the error of every tensor\n\n"
      "A golden file is HDF5: attributes `variant` and `config` (JSON), groups /inputs (q k v x mask cotangent ...),\n"
      "/params, /outputs (o ...), /grads of sum(o * cotangent). Exit code 0 only when every file passes.",
      "verify");
  std::vector<std::string> files;
  bool verbose = false, allow_skip = false;
  app.add_option("files", files, "golden files")->required();
  app.add_flag("-v,--verbose", verbose, "print every tensor");
  app.add_flag("--allow-unknown", allow_skip, "files of variants that are not known do not count as failures");
  return apps::run_program(app, argc, argv, [&] {
    int passed = 0, failed = 0, skipped = 0;
    for (const std::string& file : files) {
      try {
        const GoldenReport r = verify_golden(file);
        print(r, verbose);
        ++(!r.skipped.empty() ? skipped : r.pass() ? passed : failed);
      } catch (const std::exception& e) {
        fmt::print("FAIL  {}\n", e.what());
        ++failed;
      }
    }
    fmt::print("{} passed, {} failed, {} of unknown variants\n", passed, failed, skipped);
    return failed > 0 || (skipped > 0 && !allow_skip) ? 1 : 0;
  });
}
