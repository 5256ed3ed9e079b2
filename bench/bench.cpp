// bench: what a training step costs, by attention variant and length; and what each op costs.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

#include "apps/program.h"
#include "attention/attention.h"
#include "core/counters.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"
#include "core/storage.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "tests/op_samples.h"

using namespace tapeformer;

namespace {

struct Options {
  std::vector<std::string> variants{"full", "local", "linear_transformer"};
  std::vector<i64> lengths{1024, 2048};
  i64 batch = 4, steps = 5, warmup = 1, threads = 0, size = 1 << 20;
  std::string json, ops, attention, math = "f32";
  bool recompute = false;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// The rate of a large square product: what a step's products are measured against.
double ceiling_gflops() {
  const i64 n = 1024;
  const Tensor a = Tensor::full({n, n}, 0.5), b = Tensor::full({n, n}, 0.25);
  Tensor c = Tensor::empty({n, n});
  kernels::Gemm<float> g{.m = n, .n = n, .k = n, .a = {a.ptr<float>(), n, 1}, .b = {b.ptr<float>(), n, 1}, .c = {c.mut_ptr<float>(), n, 1}};
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const double start = seconds();
    kernels::gemm(g);
    times.push_back(seconds() - start);
  }
  return 2e-9 * static_cast<double>(n * n * n) / median(times);
}

// The encoder of the Long Range Arena's byte-level text task: pre-norm, 4 layers, D 256, 4 heads, feed-forward 1024, mean pooling, 2
// classes.
std::unique_ptr<Model> bench_model(const std::string& variant, i64 n, const Options& o) {
  const std::string attention =
      variant == "local" && o.attention.empty() ? "{type: local, window: 64}" : "{type: " + variant + o.attention + "}";
  const ConfigNode config = ConfigNode::parse(
      fmt::format("{{type: encoder_classifier, dim: 256, layers: 4, heads: 4, ff_dim: 1024, dropout: 0, recompute: {}, attention: {}}}",
                  o.recompute, attention),
      "bench");
  DataInfo data;
  data.vocab = 256;
  data.max_length = n;
  data.labels = {"0", "1"};
  return build_model(config, data, RngKey(0));
}

Batch random_batch(i64 b, i64 n) {
  Batch batch;
  batch.tokens = Tensor::empty({b, n}, DType::I64);
  batch.labels = Tensor::empty({b}, DType::I64);
  batch.mask = Tensor::full({b, n}, 1, DType::U8);
  const RngKey key(1);
  for (i64 i = 0; i < b * n; ++i) batch.tokens.mut_ptr<i64>()[i] = static_cast<i64>(key.below(static_cast<std::uint64_t>(i), 256));
  for (i64 i = 0; i < b; ++i) {
    batch.labels.mut_ptr<i64>()[i] = i % 2;
    batch.rows.push_back(i);
  }
  return batch;
}

// One measurement; prints one JSON line.
void measure(const std::string& variant, i64 n, const Options& o) {
  const double ceiling = ceiling_gflops();
  const std::unique_ptr<Model> model = bench_model(variant, n, o);
  const std::vector<Parameter*> parameters = model->parameters();
  const std::unique_ptr<Optimizer> optimizer = build_optimizer(ConfigNode::parse("{type: adamw, lr: 1e-4}", "bench"), parameters);
  const Batch batch = random_batch(o.batch, n);
  const kernels::PrecisionScope math(o.math == "bf16" ? kernels::Math::BF16 : kernels::Math::F32);
  const double base = peak_mib();
  std::vector<double> times;
  counters::Counts before{}, after{};
  std::size_t growths = 0;
  counters::set_timing(true);
  for (i64 s = 0; s < o.warmup + o.steps; ++s) {
    if (s == o.warmup) {
      before = counters::now();
      growths = memory::stats().growths;
    }
    const double start = seconds();
    {
      Tape tape;
      const Output out =
          model->forward(batch, {.training = true, .key = RngKey(2).fold_in(static_cast<std::uint64_t>(s)), .rows = batch.rows});
      tape.backward(out.loss.sum);
    }
    scale_grads(parameters, 1 / static_cast<double>(o.batch));
    optimizer->step(1e-4, s + 1);
    zero_grad(parameters);
    if (s >= o.warmup) times.push_back(seconds() - start);
  }
  after = counters::now();
  const double ms = median(times) * 1e3, steps = static_cast<double>(o.steps);
  const double gflop =
      static_cast<double>(after.matmul_flops - before.matmul_flops + after.attention_flops - before.attention_flops) / steps * 1e-9;
  double total = 0;
  for (double t : times) total += t;
  const double rate = gflop / ms * 1e3, share = (after.matmul_seconds - before.matmul_seconds) / total;
  fmt::print(
      "{{\"variant\": \"{}\", \"n\": {}, \"batch\": {}, \"threads\": {}, \"math\": \"{}\", \"step_ms\": {:.1f}, \"min_ms\": {:.1f}, "
      "\"tokens_per_s\": {:.0f}, "
      "\"peak_mib\": {:.0f}, \"gflop\": {:.2f}, \"gflop_per_s\": {:.1f}, \"ceiling_gflop_per_s\": {:.1f}, \"of_ceiling\": {:.3f}, "
      "\"matmul_share\": {:.3f}, "
      "\"allocations_in_steady_steps\": {}}}\n",
      variant, n, o.batch, thread_count(), o.math, ms, *std::min_element(times.begin(), times.end()) * 1e3,
      static_cast<double>(o.batch * n) / ms * 1e3, peak_mib() - base, gflop, rate, ceiling, rate / ceiling, share,
      memory::stats().growths - growths);
}

// Runs `measure` in a process of its own, so that peak memory is its own; returns the JSON line.
std::string in_child(const std::string& variant, i64 n, const Options& o) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) throw Error("cannot make a pipe");
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    close(pipe_ends[0]);
    try {
      measure(variant, n, o);
    } catch (const std::exception& e) {
      fmt::print(stderr, "error: {} at N = {}: {}\n", variant, n, e.what());
      std::fflush(stdout);
      _exit(1);
    }
    std::fflush(stdout);
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "";
  return text;
}

int bench_steps(const Options& o) {
  std::ofstream json;
  if (!o.json.empty()) {
    json.open(o.json);
    if (!json) throw IoError(o.json + ": cannot be written");
  }
  fmt::print("one training step: encoder, 4 layers, D 256, 4 heads, feed-forward 1024, batch {}, {} threads, {}\n\n", o.batch,
             o.threads > 0 ? o.threads : static_cast<i64>(thread_count()), o.math);
  fmt::print("{:<20} {:>6} {:>9} {:>10} {:>9} {:>8} {:>9} {:>11} {:>9}\n", "attention", "N", "ms", "tokens/s", "peak MiB", "GFLOP",
             "GFLOP/s", "of ceiling", "products");
  int failures = 0;
  for (const std::string& variant : o.variants)
    for (i64 n : o.lengths) {
      const std::string line = in_child(variant, n, o);
      if (line.empty()) {
        ++failures;
        continue;
      }
      const ConfigNode r = ConfigNode::parse(line, "bench");
      const auto value = [&](const char* key) { return std::stod(r[key].text()); };
      fmt::print("{:<20} {:>6} {:>9.1f} {:>10.0f} {:>9.0f} {:>8.1f} {:>9.1f} {:>10.0f}% {:>8.0f}%\n", variant, n, value("step_ms"),
                 value("tokens_per_s"), value("peak_mib"), value("gflop"), value("gflop_per_s"), 100 * value("of_ceiling"),
                 100 * value("matmul_share"));
      std::fflush(stdout);
      if (json.is_open()) json << line << std::flush;
    }
  fmt::print(
      "\npeak: memory above the level before the first step; ceiling: this machine's rate on one 1024 x 1024 x 1024 product;\n"
      "products: share of the step inside matrix products and attention.\n");
  return failures > 0 ? 1 : 0;
}

int bench_ops(const Options& o) {
  fmt::print("{:<24} {:>12} {:>10} {:>10} {:>10} {:>12}\n", "op", "elements", "forward us", "GFLOP/s", "GB/s", "backward us");
  bool any = false;
  for (const samples::OpRow& row : samples::op_rows()) {
    if ((o.ops != "all" && row.name.find(o.ops) == std::string::npos) || !row.large) continue;
    any = true;
    const samples::Large large = row.large(o.size);
    std::vector<double> forward, backward;
    for (int i = 0; i < 7; ++i) {
      const double start = seconds();
      const Tensor y = large.call(large.inputs);
      forward.push_back(seconds() - start);
      if (!row.differentiable) continue;
      Tape tape;
      samples::Inputs watched;
      for (const Tensor& x : large.inputs) watched.push_back(x.dtype() == DType::F32 ? tape.watch(x) : x);
      const Tensor z = large.call(watched);
      if (!z.grad_ref()) continue;
      const double from = seconds();
      tape.backward(z, Tensor::full(z.shape(), 1));
      backward.push_back(seconds() - from);
    }
    const double f = median(forward);
    fmt::print("{:<24} {:>12} {:>10.1f} {:>10.1f} {:>10.1f} {:>12}\n", row.name, large.inputs.empty() ? 0 : large.inputs[0].numel(),
               f * 1e6, large.flops / f * 1e-9, large.bytes / f * 1e-9,
               backward.empty() ? "-" : fmt::format("{:.1f}", median(backward) * 1e6));
  }
  if (!any) throw ConfigError("--ops " + o.ops + ": no op has this in its name");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Times one training step of a 4-layer encoder (D 256, 4 heads, feed-forward 1024, byte vocabulary) per attention variant and\n"
      "length, each in a process of its own; or the single ops.\n\n"
      "Examples:\n"
      "  bench\n"
      "  bench --variants full,local --lengths 1024,2048,4096 --json steps.jsonl\n"
      "  bench --variants local --attention ', window: 16'     other keys of the variant\n"
      "  bench --ops all                                       every op, forward and backward\n"
      "  bench --ops softmax --size 4000000",
      "bench");
  app.add_option("--variants", o.variants, "attention types, or 'all'")->delimiter(',')->capture_default_str();
  app.add_option("--lengths", o.lengths, "sequence lengths")->delimiter(',')->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--batch", o.batch, "sequences a step")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--steps", o.steps, "timed steps; the median counts")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps before")->check(CLI::Range(0, 4096))->capture_default_str();
  app.add_option("--threads", o.threads, "0 = all this process may use")->check(CLI::Range(0, 4096))->capture_default_str();
  app.add_option("--attention", o.attention, "more keys of the attention section, as YAML: ', window: 16'");
  app.add_option("--math", o.math, "f32, or bf16 products")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
  app.add_flag("--recompute", o.recompute, "recompute blocks in backward");
  app.add_option("--json", o.json, "also write one JSON line a measurement to this file");
  app.add_option("--ops", o.ops, "time the ops with this in their name instead ('all')");
  app.add_option("--size", o.size, "elements of the ops' main input")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  return apps::run_program(app, argc, argv, [&] {
    if (o.threads > 0) set_thread_count(static_cast<int>(o.threads));
    if (o.variants == std::vector<std::string>{"all"}) {
      o.variants = attention_registry().names();
      std::erase(o.variants, "hybrid");
    }
    for (const std::string& v : o.variants) attention_registry().get(v);
    return o.ops.empty() ? bench_steps(o) : bench_ops(o);
  });
}
