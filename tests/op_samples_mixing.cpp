// Rows for what mixes positions without attention: Fourier transforms and recurrent networks.
#include <cmath>
#include <numbers>

#include "autograd/ops.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

using Plains = std::vector<Plain>;

// ---- fourier_mix

struct FourierCase {
  std::string label;
  Shape x;
  bool masked = false, ortho = true, trim = true;
};

Tensor mix(const Inputs& in, const FourierCase& c) {
  return ops::fourier_mix(in[0], {.mask = c.masked ? in[1] : Tensor(), .ortho = c.ortho, .trim = c.trim});
}

Plain mixed(const Plains& in, const FourierCase& c) {
  const i64 N = c.x[1], D = c.x[2];
  const auto real = [&](i64 b, i64 n) { return !c.masked || at(in[1], {b, n}) != 0; };
  const auto place = [&](i64 b, i64 n) {  // position in the transform
    i64 before = 0;
    for (i64 i = 0; i < n; ++i) before += !c.trim || real(b, i);
    return before;
  };
  return plain(c.x, [&](const Index& i) {
    if (!real(i[0], i[1])) return 0.0;
    const i64 L = place(i[0], N), k = place(i[0], i[1]);
    double sum = 0;
    for (i64 n = 0; n < N; ++n)
      for (i64 a = 0; a < D && real(i[0], n); ++a) {
        const double turns = static_cast<double>(place(i[0], n) * k % L) / static_cast<double>(L) + static_cast<double>(a * i[2] % D) / D;
        sum += at(in[0], {i[0], n, a}) * std::cos(2 * std::numbers::pi * turns);
      }
    return c.ortho ? sum / std::sqrt(static_cast<double>(L * D)) : sum;
  });
}

OpRow fourier_row() {
  OpRow row{"fourier_mix", true, {}, {}, {}};
  for (const FourierCase& c : std::vector<FourierCase>{{"even", {2, 4, 6}},
                                                       {"odd", {1, 5, 3}},
                                                       {"one position", {2, 1, 4}},
                                                       {"one feature", {1, 6, 1}},
                                                       {"one of each", {1, 1, 1}},
                                                       {"a large prime", {1, 101, 2}},
                                                       {"two large primes", {1, 2, 103}},
                                                       {"trimmed", {3, 7, 4}, true},
                                                       {"trimmed, plain", {3, 8, 5}, true, false},
                                                       {"zeros", {3, 7, 4}, true, true, false},
                                                       {"nothing", {0, 3, 2}}}) {
    Inputs in{numbers(c.x, 1)};
    if (c.masked) in.push_back(flags({c.x[0], c.x[1]}, 3));
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return mix(x, c); }, [c](const Plains& x) { return mixed(x, c); },
                           static_cast<double>(16 * (c.x[1] + c.x[2]))});
  }
  row.errors = {{[] {
                   ops::fourier_mix(numbers({2, 3}, 1));
                 },
                 "[fourier_mix] got x [2, 3], expected [B, N, D]"},
                {[] {
                   ops::fourier_mix(numbers({2, 3, 4}, 1), {.mask = flags({2, 4}, 1)});
                 },
                 "[fourier_mix] mask is u8 [2, 4], expected u8 [2, 3] with 1 = real"},
                {[] {
                   ops::fourier_mix(flags({2, 3, 4}, 1));
                 },
                 "[fourier_mix] got element type u8"}};
  row.large = [](i64 n) {
    const Shape shape{2, std::max<i64>(8, n / 256), 128};
    return make_large(
        {numbers(shape, 1)}, [](const Inputs& in) { return ops::fourier_mix(in[0]); },
        2.5 * static_cast<double>(shape.numel()) * std::log2(static_cast<double>(shape[1] * shape[2])), shape.numel());
  };
  return row;
}

// ---- recurrent

using kernels::Cell;

struct RecurrentCase {
  std::string label;
  Cell cell;
  i64 B, N, H;
  bool reverse = false, masked = false;
};

Tensor run(const Inputs& in, const RecurrentCase& c) {
  return ops::recurrent(in[0], in[1], in[2], {.cell = c.cell, .reverse = c.reverse, .mask = c.masked ? in[3] : Tensor()});
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// One step of one sample, gate by gate.
void step(const Plains& in, Cell cell, i64 b, i64 t, std::vector<double>& h, std::vector<double>& c) {
  const std::vector<double> old = h;
  const i64 H = static_cast<i64>(h.size());
  for (i64 j = 0; j < H; ++j) {
    const auto gi = [&](i64 block) { return at(in[0], {b, t, block * H + j}); };
    const auto gh = [&](i64 block) {
      double sum = at(in[2], {block * H + j});
      for (i64 k = 0; k < H; ++k) sum += at(in[1], {block * H + j, k}) * old[k];
      return sum;
    };
    const auto gate = [&](i64 block) { return logistic(gi(block) + gh(block)); };
    if (cell == Cell::Rnn) {
      h[j] = std::tanh(gi(0) + gh(0));
    } else if (cell == Cell::Lstm) {
      c[j] = gate(1) * c[j] + gate(0) * std::tanh(gi(2) + gh(2));
      h[j] = gate(3) * std::tanh(c[j]);
    } else {
      h[j] = (1 - gate(1)) * std::tanh(gi(2) + gate(0) * gh(2)) + gate(1) * old[j];
    }
  }
}

Plain states(const Plains& in, const RecurrentCase& c) {
  Plain y = plain({c.B, c.N, c.H}, [](const Index&) { return 0.0; });
  for (i64 b = 0; b < c.B; ++b) {
    std::vector<double> h(static_cast<std::size_t>(c.H)), cell(h);
    for (i64 s = 0; s < c.N; ++s) {
      const i64 t = c.reverse ? c.N - 1 - s : s;
      if (c.masked && at(in[3], {b, t}) == 0) continue;
      step(in, c.cell, b, t, h, cell);
      std::copy(h.begin(), h.end(), y.v.begin() + (b * c.N + t) * c.H);
    }
  }
  return y;
}

OpRow recurrent_row() {
  OpRow row{"recurrent", true, {}, {}, {}};
  for (Cell cell : {Cell::Rnn, Cell::Lstm, Cell::Gru}) {
    const i64 G = kernels::gates_of(cell);
    const std::string name = cell == Cell::Rnn ? "rnn" : cell == Cell::Lstm ? "lstm" : "gru";
    for (const RecurrentCase& c : std::vector<RecurrentCase>{{name, cell, 2, 5, 3},
                                                             {name + " backwards, masked", cell, 3, 6, 2, true, true},
                                                             {name + " masked", cell, 9, 4, 2, false, true},
                                                             {name + " one step", cell, 2, 1, 3},
                                                             {name + " one state", cell, 1, 4, 1},
                                                             {name + " nothing", cell, 2, 0, 3}}) {
      Inputs in{numbers({c.B, c.N, G * c.H}, 1), numbers({G * c.H, c.H}, 2, -1, 1), numbers({G * c.H}, 3, -1, 1)};
      if (c.masked) in.push_back(flags({c.B, c.N}, 4));
      row.samples.push_back(
          {c.label, std::move(in), [c](const Inputs& x) { return run(x, c); }, [c](const Plains& x) { return states(x, c); }, 256});
    }
  }
  const auto call = [](const Shape& gi, const Shape& w, const Shape& b, const Tensor& mask = {}) {
    ops::recurrent(numbers(gi, 1), numbers(w, 1), numbers(b, 1), {.cell = Cell::Gru, .mask = mask});
  };
  row.errors = {{[=] {
                   call({2, 3, 8}, {9, 3}, {9});
                 },
                 "[recurrent] got gi [2, 3, 8], w_hh [9, 3], b_hh [9], expected [B, N, 3 H], [3 H, H], [3 H]"},
                {[=] {
                   call({2, 3, 8}, {8, 3}, {8});
                 },
                 "[recurrent] got gi [2, 3, 8], w_hh [8, 3]"},
                {[=] {
                   call({2, 3, 9}, {9, 3}, {9}, flags({3, 2}, 1));
                 },
                 "[recurrent] mask is u8 [3, 2], expected u8 [2, 3] with 1 = real"},
                {[] {
                   ops::recurrent(numbers({2, 3, 4}, 1), Tensor::zeros({4, 1}), numbers({4}, 1));
                 },
                 "[recurrent] element types differ: got f64 and f32"}};
  row.large = [](i64 n) {
    constexpr i64 B = 20, H = 48;
    const i64 N = std::max<i64>(2, n / (4 * B * H));
    return make_large(
        {numbers({B, N, 4 * H}, 1), numbers({4 * H, H}, 2, -0.2, 0.2), numbers({4 * H}, 3)},
        [](const Inputs& in) { return ops::recurrent(in[0], in[1], in[2]); }, 2.0 * B * N * 4 * H * H, B * N * H);
  };
  return row;
}

}  // namespace

void add_mixing(std::vector<OpRow>& rows) {
  rows.push_back(fourier_row());
  rows.push_back(recurrent_row());
}

}  // namespace tapeformer::samples
