// train.cpp: trains the model that a configuration describes.
#include <csignal>

#include "attention/attention.h"
#include "apps/program.h"
#include "train/run.h"

using namespace tapeformer;

int main(int argc, char** argv) {
  CLI::App app("Trains the model that a configuration describes.", "train");
  RunOptions options;
  std::string explain;
  bool dry = false, print_config = false, markdown = false;
  app.add_option("config", options.config_file, "configuration (YAML)")->type_name("CONFIG.yaml");
  app.add_option("overlay", options.overlays, "further configurations laid over it: the keys of later files win")
      ->type_name("OVERLAY.yaml");
  app.add_option("--set", options.set, "set a key of the configuration; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all()
      ->check([](const std::string& s) {
        const std::size_t equals = s.find('=');
        return equals == std::string::npos || equals == 0 ? "got '" + s + "', expected KEY=VALUE such as train.steps=100" : std::string();
      });
  app.add_option("--run-dir", options.run_dir, "folder of the run (default: runs/<name of the configuration>)")->type_name("DIR");
  app.add_flag("--resume", options.resume, "continue from the last checkpoint in the run folder, bit for bit");
  app.add_flag("--overwrite", options.overwrite, "start again although the run folder holds checkpoints")->excludes("--resume");
  app.add_flag("--dry-run", dry, "load the data, print sizes, arithmetic and predicted memory, train nothing");
  app.add_flag("--print-config", print_config, "print the configuration with every default filled in");
  app.add_option("--explain", explain, "explain a key: all, train, optim.adamw, model.encoder_classifier, data.text, train.clip, ...")
      ->type_name("KEY");
  app.add_flag("--markdown", markdown, "with --explain attention: docs/attention.md");
  app.add_option("--threads", options.threads, "threads to compute with; changes speed only, no result")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  app.set_version_flag("--version", "train (tapeformer " + build_version() + ")");
  app.footer(R"(Examples:
  train configs/results/sst2.yaml
  train configs/results/sst2.yaml --set train.steps=500 --set optim.lr=1e-3 --run-dir runs/short
  train configs/results/sst2.yaml --resume
  train configs/lra/listops.yaml configs/lra/listops-small.yaml
  train --explain optim.adamw
SIGTERM and SIGINT finish the current step, save a checkpoint and end with exit code 143 or 130.)");
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away must not end a training run
  return apps::run_program(app, argc, argv, [&] {
    if (app.count("--explain") > 0) {
      if (markdown && explain != "attention") throw ConfigError("--markdown goes with --explain attention");
      apps::print(markdown ? attention_page() : explain_key(explain));
      return 0;
    }
    if (options.config_file.empty()) {
      apps::print_error("CONFIG.yaml is missing");
      std::fprintf(stderr, "try train --help\n");
      return 2;
    }
    if (print_config) {
      apps::print(write_run_config(load_run_config(options)).yaml());
      return 0;
    }
    if (dry) {
      apps::print(dry_run(options));
      return 0;
    }
    return run_training(options);
  });
}
