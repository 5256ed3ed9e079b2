// Rates of the matrix product and of the attention tile engine, in one process so that they can be compared.
//   g++ -std=c++20 -O2 -I. bench/kernel_speed.cpp -o kernel_speed -Lbuild -ltapeformer -lfmt -Wl,-rpath,build
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/kernels/attention.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"

using namespace tapeformer;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<float> values(i64 n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 20 & 1023) - 512) / 512;
  return v;
}

double best_of(const std::function<void()>& f) {  // seconds: the best of at least 7 calls and half a second
  f();
  double best = 1e9;
  const double start = seconds();
  for (int i = 0; i < 7 || seconds() - start < 0.5; ++i) {
    const double t = seconds();
    f();
    best = std::min(best, seconds() - t);
  }
  return best;
}

void report_gemm(i64 m, i64 n, i64 k, bool a_turned, bool b_turned) {
  const auto a = values(m * k), b = values(k * n);
  std::vector<float> c(static_cast<std::size_t>(m * n));
  kernels::Gemm<float> g{.m = m, .n = n, .k = k};
  g.a = {a.data(), a_turned ? 1 : k, a_turned ? m : 1};
  g.b = {b.data(), b_turned ? 1 : n, b_turned ? k : 1};
  g.c = {c.data(), n, 1};
  const double t = best_of([&] { kernels::gemm(g); });
  std::printf("gemm %5ld x %5ld x %5ld %s%s  %7.1f GFLOP/s\n", m, n, k, a_turned ? "At" : "A ", b_turned ? "Bt" : "B ",
              2e-9 * double(m * n * k) / t);
}

struct Window final : kernels::Pattern {
  i64 radius;
  explicit Window(i64 r) : radius(r) {}
  Cover cover(i64, i64, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    if (k0 > q1 - 1 + radius || k1 - 1 < q0 - radius) return Cover::None;
    return k1 - 1 <= q0 + radius && k0 >= q1 - 1 - radius ? Cover::Full : Cover::Partial;
  }
  void row(i64, i64, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    const i64 first = std::clamp(i - radius, k0, k1) - k0, last = std::clamp(i + radius + 1, k0, k1) - k0;
    std::memset(allowed, 0, static_cast<std::size_t>(first));
    std::memset(allowed + last, 0, static_cast<std::size_t>(k1 - k0 - last));
  }
};

void report_attention(i64 B, i64 H, i64 N, i64 d, bool causal, double dropout, i64 window = 0) {
  const i64 row = 3 * H * d;
  const auto qkv = values(B * N * row), d_o = values(B * H * N * d);
  std::vector<float> o(d_o.size()), max(B * H * N), lse(B * H * N), grads(qkv.size());
  const Window pattern(window);
  kernels::Attention<float> a;
  a.B = B, a.H = H, a.N = a.M = N, a.d = a.dv = d;
  a.q = {qkv.data(), N * row, d, row};
  a.k = {qkv.data() + H * d, N * row, d, row};
  a.v = {qkv.data() + 2 * H * d, N * row, d, row};
  a.scale = 1 / std::sqrt(double(d));
  a.causal = causal;
  a.dropout = dropout;
  if (window > 0) a.pattern = &pattern;
  kernels::AttentionGrads<float> g;
  g.dq = {grads.data(), N * row, d, row};
  g.dk = {grads.data() + H * d, N * row, d, row};
  g.dv = {grads.data() + 2 * H * d, N * row, d, row};
  const double f = best_of([&] { kernels::attention_forward(a, {o.data(), N * H * d, d, H * d}, max.data(), lse.data()); });
  const double b = best_of([&] {
    kernels::attention_backward(a, {o.data(), N * H * d, d, H * d}, max.data(), lse.data(), {d_o.data(), N * H * d, d, H * d}, g);
  });
  const double keys = window > 0 ? double(2 * window + 1) : causal ? double(N + 1) / 2 : double(N);
  const double pairs = double(B * H * N) * keys;
  std::printf(
      "attention B%ld H%ld N%ld d%ld%s%s window %ld: forward %6.2f ms %6.1f GFLOP/s, backward %6.2f ms %6.1f, both "
      "%6.1f\n",
      B, H, N, d, causal ? " causal" : "", dropout > 0 ? " dropout" : "", window, f * 1e3, 4e-9 * pairs * double(d) / f, b * 1e3,
      10e-9 * pairs * double(d) / b, 14e-9 * pairs * double(d) / (f + b));
}

}  // namespace

int main(int argc, char** argv) {
  for (int threads : {2, 1}) {
    if (argc > 1 && std::stoi(argv[1]) != threads) continue;
    set_thread_count(threads);
    std::printf("%d threads\n", threads);
    report_gemm(4096, 256, 768, false, false);
    report_gemm(4096, 256, 1024, false, true);
    report_gemm(4096, 1024, 256, false, false);
    report_gemm(4096, 1024, 256, false, true);
    report_gemm(256, 1024, 4096, true, false);
    report_gemm(256, 256, 16384, true, false);
    report_attention(4, 4, 1024, 64, false, 0);
    report_attention(4, 4, 2048, 64, false, 0);
    report_attention(1, 4, 2048, 64, false, 0);
    report_attention(4, 4, 1024, 64, true, 0);
    report_attention(4, 4, 1024, 64, false, 0.1);
    report_attention(4, 4, 1024, 32, false, 0);
    report_attention(4, 4, 4096, 64, false, 0, 128);
    report_attention(4, 4, 4096, 64, false, 0, 32);
    report_attention(32, 8, 64, 32, false, 0);
  }
}
