#include "core/kernels/fourier.h"

#include <kiss_fft.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace tapeformer::kernels {
namespace {

using Complex = std::complex<float>;

// The rows of sample b that take part, in order; -1 reads as zeros and is not written.
std::vector<i64> rows_of(const FourierMix& f, i64 b) {
  std::vector<i64> rows;
  for (i64 n = 0; n < f.N; ++n) {
    const bool real = f.mask == nullptr || f.mask[b * f.N + n] != 0;
    if (real || !f.trim) rows.push_back(real ? n : -1);
  }
  return rows;
}

double factor(const FourierMix& f, std::size_t length) { return f.ortho ? 1 / std::sqrt(static_cast<double>(length) * f.D) : 1; }

template <class T>
void clear_padding(const FourierMix& f, T* y) {
  for (i64 r = 0; f.mask != nullptr && r < f.B * f.N; ++r)
    if (f.mask[r] == 0) std::fill_n(y + r * f.D, f.D, T(0));
}

// ---- f32

i64 largest_prime_factor(i64 n) {
  i64 largest = 1;
  for (i64 p = 2; p * p <= n; ++p)
    for (; n % p == 0; n /= p) largest = p;
  return std::max(largest, n);
}

Complex turn(i64 step, i64 n) {  // exp(-2 pi i step / n), 0 <= step < n
  const double angle = -2 * std::numbers::pi * static_cast<double>(step) / static_cast<double>(n);
  return {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
}

// KISS FFT takes n p for a prime factor p; from here on three transforms of twice the length are cheaper.
constexpr i64 kLargePrime = 100;

class Plan {  // the forward transform of one length; any number of threads may run it
 public:
  explicit Plan(i64 n) : n_(n), chirped_(largest_prime_factor(n) >= kLargePrime) {
    size_ = chirped_ ? kiss_fft_next_fast_size(static_cast<int>(2 * n - 1)) : static_cast<int>(n);
    plain_.reset(kiss_fft_alloc(size_, 0, nullptr, nullptr));
    TAPEFORMER_ASSERT(plain_ != nullptr, "no plan for a transform");
    if (!chirped_) return;
    for (i64 k = 0; k < n; ++k) chirp_.push_back(turn(k * k % (2 * n), 2 * n));
    std::vector<Complex> filter(static_cast<std::size_t>(size_));
    for (i64 k = 0; k < n; ++k) filter[k] = filter[(size_ - k) % size_] = std::conj(chirp_[k]) / static_cast<float>(size_);
    filter_.resize(filter.size());
    transform(filter.data(), filter_.data());
  }

  void run(const Complex* in, Complex* out) const {  // out is not in
    if (!chirped_) return transform(in, out);
    thread_local std::vector<Complex> a, b;
    a.assign(static_cast<std::size_t>(size_), {});
    b.resize(a.size());
    for (i64 k = 0; k < n_; ++k) a[k] = in[k] * chirp_[k];
    transform(a.data(), b.data());
    for (std::size_t k = 0; k < b.size(); ++k) b[k] = std::conj(b[k] * filter_[k]);
    transform(b.data(), a.data());  // the inverse transform, conjugated
    for (i64 k = 0; k < n_; ++k) out[k] = std::conj(a[k]) * chirp_[k];
  }

 private:
  void transform(const Complex* in, Complex* out) const {
    kiss_fft(plain_.get(), reinterpret_cast<const kiss_fft_cpx*>(in), reinterpret_cast<kiss_fft_cpx*>(out));
  }
  struct Free {
    void operator()(kiss_fft_state* p) const { kiss_fft_free(p); }
  };
  i64 n_;
  bool chirped_;
  int size_;
  std::unique_ptr<kiss_fft_state, Free> plain_;
  std::vector<Complex> chirp_, filter_;
};

std::shared_ptr<const Plan> plan_of(i64 n) {
  constexpr std::size_t kMost = 256;  // trimmed samples have many lengths
  static std::mutex mutex;
  static std::map<i64, std::shared_ptr<const Plan>> plans;
  const std::lock_guard lock(mutex);
  if (const auto it = plans.find(n); it != plans.end()) return it->second;
  if (plans.size() >= kMost) plans.clear();
  return plans[n] = std::make_shared<const Plan>(n);
}

struct Sample {
  std::vector<i64> rows;
  std::shared_ptr<const Plan> plan;  // over rows; null where there are none
};

// Two real rows are one complex row: their spectra are its even and odd parts. Columns c and D - c of a real row's spectrum are
// conjugates, so c <= D/2 are kept: spectrum[c * rows + n].
void transform_pair(const FourierMix& f, const Sample& s, const Plan& plan, i64 pair, const float* x, Complex* spectrum) {
  thread_local std::vector<Complex> in, out;
  in.resize(static_cast<std::size_t>(f.D));
  out.resize(in.size());
  const i64 rows = static_cast<i64>(s.rows.size()), n = 2 * pair;
  const auto row = [&](i64 i) { return i < rows && s.rows[i] >= 0 ? x + s.rows[i] * f.D : nullptr; };
  const float *even = row(n), *odd = row(n + 1);
  for (i64 a = 0; a < f.D; ++a) in[a] = {even ? even[a] : 0, odd ? odd[a] : 0};
  plan.run(in.data(), out.data());
  for (i64 c = 0; c <= f.D / 2; ++c) {
    const Complex z = out[c], w = std::conj(out[(f.D - c) % f.D]), sum = 0.5f * (z + w), difference = 0.5f * (z - w);
    spectrum[c * rows + n] = sum;
    if (n + 1 < rows) spectrum[c * rows + n + 1] = {difference.imag(), -difference.real()};
  }
}

constexpr i64 kColumns = 8;  // transformed together, so that y is written in runs

void transform_columns(const FourierMix& f, const Sample& s, i64 first, const Complex* spectrum, float* y) {
  thread_local std::vector<Complex> out;
  const i64 rows = static_cast<i64>(s.rows.size()), count = std::min(kColumns, f.D / 2 + 1 - first);
  out.resize(static_cast<std::size_t>(count * rows));
  for (i64 c = 0; c < count; ++c) s.plan->run(spectrum + (first + c) * rows, out.data() + c * rows);
  const float scale = static_cast<float>(factor(f, s.rows.size()));
  for (i64 n = 0; n < rows; ++n) {
    if (s.rows[n] < 0) continue;
    float* to = y + s.rows[n] * f.D;
    for (i64 c = 0; c < count; ++c) to[first + c] = scale * out[c * rows + n].real();
    for (i64 c = first == 0 ? 1 : 0; c < count; ++c) to[f.D - first - c] = scale * out[c * rows + (rows - n) % rows].real();
  }
}

void mix(const FourierMix& f, const float* x, float* y) {
  std::vector<Sample> samples(static_cast<std::size_t>(f.B));
  for (i64 b = 0; b < f.B; ++b) {
    samples[b].rows = rows_of(f, b);
    if (!samples[b].rows.empty()) samples[b].plan = plan_of(static_cast<i64>(samples[b].rows.size()));
  }
  const auto across = plan_of(f.D);
  const i64 half = f.D / 2 + 1, pairs = (f.N + 1) / 2, blocks = (half + kColumns - 1) / kColumns;
  Storage storage(static_cast<std::size_t>(f.B * half * f.N) * sizeof(Complex));
  Complex* spectra = reinterpret_cast<Complex*>(storage.data());
  parallel_for(f.B * pairs, std::max<i64>(1, 2048 / f.D), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 b = i / pairs, pair = i % pairs;
      if (2 * pair < static_cast<i64>(samples[b].rows.size()))
        transform_pair(f, samples[b], *across, pair, x + b * f.N * f.D, spectra + b * half * f.N);
    }
  });
  parallel_for(f.B * blocks, std::max<i64>(1, 512 / f.N), [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      const i64 b = i / blocks;
      if (samples[b].plan) transform_columns(f, samples[b], i % blocks * kColumns, spectra + b * half * f.N, y + b * f.N * f.D);
    }
  });
}

// ---- f64: the sums as they stand, angles from a table of exact multiples

struct Angles {
  std::vector<double> cosine, sine;  // of 2 pi k / n
  explicit Angles(i64 n) {
    for (i64 k = 0; k < n; ++k) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
  }
};

void mix_sample(const FourierMix& f, const std::vector<i64>& rows, const Angles& features, const double* x, double* y) {
  const i64 n = static_cast<i64>(rows.size()), D = f.D;
  const Angles positions(n);
  std::vector<double> real(static_cast<std::size_t>(n * D)), imaginary(real.size());
  for (i64 i = 0; i < n; ++i)
    for (i64 c = 0; c < D && rows[i] >= 0; ++c)
      for (i64 a = 0; a < D; ++a) {
        real[i * D + c] += x[rows[i] * D + a] * features.cosine[a * c % D];
        imaginary[i * D + c] -= x[rows[i] * D + a] * features.sine[a * c % D];
      }
  for (i64 k = 0; k < n; ++k) {
    if (rows[k] < 0) continue;
    double* to = y + rows[k] * D;
    std::fill_n(to, D, 0.0);
    for (i64 i = 0; i < n; ++i)
      for (i64 c = 0; c < D; ++c) to[c] += positions.cosine[i * k % n] * real[i * D + c] + positions.sine[i * k % n] * imaginary[i * D + c];
    for (i64 c = 0; c < D; ++c) to[c] *= factor(f, rows.size());
  }
}

void mix(const FourierMix& f, const double* x, double* y) {
  const Angles features(f.D);
  parallel_for(f.B, 1, [&](i64 begin, i64 end) {
    for (i64 b = begin; b < end; ++b) mix_sample(f, rows_of(f, b), features, x + b * f.N * f.D, y + b * f.N * f.D);
  });
}

}  // namespace

template <class T>
void fourier_mix(const FourierMix& f, const T* x, T* y) {
  if (f.B * f.N * f.D == 0) return;
  clear_padding(f, y);
  mix(f, x, y);
}
template void fourier_mix(const FourierMix&, const float*, float*);
template void fourier_mix(const FourierMix&, const double*, double*);

}  // namespace tapeformer::kernels
