#include "core/kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <vector>

#include "core/counters.h"
#include "core/error.h"
#include "core/kernels/dnnl_matmul.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace tapeformer::kernels {
namespace {

thread_local Math math = Math::F32;

std::string& backend() {
  static std::string name = "onednn";
  return name;
}

i64 divide_up(i64 a, i64 b) { return (a + b - 1) / b; }

// Batch indices that only continue the rows of the one before are rows: fewer, larger products.
template <class T>
void merge_batches(Gemm<T>& g) {
  const auto rows_continue = [&](i64 size, i64 a, i64 b, i64 c) {
    return size == 1 || (b == 0 && a == g.m * g.a.row && c == g.m * g.c.row);
  };
  if (rows_continue(g.batch1, g.a.batch1, g.b.batch1, g.c.batch1)) {
    g.m *= g.batch1;
    g.batch1 = 1;
    if (rows_continue(g.batch0, g.a.batch0, g.b.batch0, g.c.batch0)) {
      g.m *= g.batch0;
      g.batch0 = 1;
    }
  }
  if (g.batch1 == 1) {  // one batch dimension left: it becomes the inner one
    std::swap(g.batch0, g.batch1);
    std::swap(g.a.batch0, g.a.batch1);
    std::swap(g.b.batch0, g.b.batch1);
    std::swap(g.c.batch0, g.c.batch1);
  }
}

template <class T>
const T* matrix_at(const MatrixView<const T>& x, i64 b0, i64 b1) {
  return x.p + b0 * x.batch0 + b1 * x.batch1;
}
template <class T>
T* matrix_at(const MatrixView<T>& x, i64 b0, i64 b1) {
  return x.p + b0 * x.batch0 + b1 * x.batch1;
}

// Sizes of the pieces a product is cut into. They follow from its shape alone, hence so do the bits of its result.
struct Tiles {
  i64 m, n, k;    // of a piece
  i64 batch = 1;  // matrices of the inner batch dimension in a piece
};

constexpr i64 kEnoughPieces = 16;
constexpr i64 kSmallestPiece = 4 << 20;  // multiply-adds: about 40 us
constexpr i64 kChunkOfK = 1024;

template <class T>
Tiles choose_tiles(const Gemm<T>& g) {
  Tiles t{std::min<i64>(g.m, 256), std::min<i64>(g.n, 1024), g.k};
  const i64 batches = g.batch0 * g.batch1;
  const auto pieces = [&] { return batches * divide_up(g.m, t.m) * divide_up(g.n, t.n) * divide_up(g.k, t.k); };
  const auto one = [&] { return t.m * t.n * t.k; };
  if (g.k >= 2 * kChunkOfK && one() > kSmallestPiece) {  // deep products, such as the gradient of a weight
    const i64 parts = std::min({divide_up(kEnoughPieces, pieces()), g.k / kChunkOfK, one() / kSmallestPiece});
    t.k = divide_up(divide_up(g.k, parts), 64) * 64;
  }
  while (pieces() < kEnoughPieces && one() > kSmallestPiece && std::max(t.m, t.n) > 64) {
    i64& larger = t.n >= t.m ? t.n : t.m;
    larger = divide_up(larger / 2, 64) * 64;
  }
  if (t.m == g.m && t.n == g.n && t.k == g.k && g.batch1 > 1) {
    t.batch = std::clamp<i64>(kSmallestPiece / std::max<i64>(one(), 1), 1, g.batch1);
  }
  return t;
}

// ---- one piece on one thread

struct Piece {
  i64 batch, m, n, k;
};

template <class T>
void pack(std::vector<T>& to, const T* from, i64 batch, i64 rows, i64 cols, i64 s_batch, i64 s_row, i64 s_col) {
  to.resize(static_cast<std::size_t>(batch * rows * cols));
  T* p = to.data();
  for (i64 b = 0; b < batch; ++b)
    for (i64 i = 0; i < rows; ++i)
      for (i64 j = 0; j < cols; ++j) *p++ = from[b * s_batch + i * s_row + j * s_col];
}

template <class Operand>
void run_packed(dnnl_matmul::Spec s, const Operand* a, const Operand* b, float* c, const float* bias) {
  thread_local std::vector<Operand> a_dense, b_dense;
  for (i64 i = 0; i < s.batch; ++i) {
    pack(a_dense, a + i * s.a_batch, 1, s.m, s.k, 0, s.a_row, s.a_col);
    pack(b_dense, b + i * s.b_batch, 1, s.k, s.n, 0, s.b_row, s.b_col);
    dnnl_matmul::Spec dense = s;
    dense.batch = 1;
    dense.a_batch = dense.b_batch = dense.c_batch = 0;
    dense.a_row = s.k;
    dense.b_row = s.n;
    dense.a_col = dense.b_col = 1;
    const bool done = dnnl_matmul::run(dense, a_dense.data(), b_dense.data(), c + i * s.c_batch, bias);
    TAPEFORMER_ASSERT(done, "oneDNN cannot multiply dense matrices");
  }
}

template <class Operand>
void multiply_onednn(const MatrixView<const Operand>& a, const MatrixView<const Operand>& b, const MatrixView<float>& c, const Piece& p,
                     const float* bias, bool accumulate) {
  const bool bf16 = std::is_same_v<Operand, BF16>;
  const dnnl_matmul::Spec s{p.batch, p.m,   p.n,      p.k,   a.batch1,        a.row,      a.col, b.batch1,
                            b.row,   b.col, c.batch1, c.row, bias != nullptr, accumulate, bf16};
  if (!dnnl_matmul::run(s, a.p, b.p, c.p, bias)) run_packed(s, a.p, b.p, c.p, bias);
}

void start_openblas() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

struct BlasOperand {  // a matrix as cblas wants it, packed when neither of its strides is one
  const float* p;
  CBLAS_TRANSPOSE transpose = CblasNoTrans;
  int leading;

  BlasOperand(const MatrixView<const float>& x, i64 rows, i64 cols, std::vector<float>& dense) : p(x.p) {
    if ((x.col == 1 || cols == 1) && (x.row >= cols || rows == 1)) {
      leading = static_cast<int>(std::max(x.row, cols));
    } else if ((x.row == 1 || rows == 1) && (x.col >= rows || cols == 1)) {
      transpose = CblasTrans;
      leading = static_cast<int>(std::max(x.col, rows));
    } else {
      pack(dense, x.p, 1, rows, cols, 0, x.row, x.col);
      p = dense.data();
      leading = static_cast<int>(cols);
    }
  }
};

void multiply_openblas(MatrixView<const float> a, MatrixView<const float> b, const MatrixView<float>& c, const Piece& p, const float* bias,
                       bool accumulate) {
  thread_local std::vector<float> a_dense, b_dense;
  for (i64 i = 0; i < p.batch; ++i) {
    MatrixView<const float> ai = a, bi = b;
    ai.p += i * a.batch1;
    bi.p += i * b.batch1;
    const BlasOperand x(ai, p.m, p.k, a_dense), y(bi, p.k, p.n, b_dense);
    float* ci = c.p + i * c.batch1;
    if (bias != nullptr) {
      for (i64 r = 0; r < p.m; ++r) std::copy(bias, bias + p.n, ci + r * c.row);
    }
    const float beta = accumulate || bias != nullptr ? 1.0f : 0.0f;
    cblas_sgemm(CblasRowMajor, x.transpose, y.transpose, static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1.0f, x.p,
                x.leading, y.p, y.leading, beta, ci, static_cast<int>(std::max(c.row, p.n)));
  }
}

template <class T>
void multiply_plain(const MatrixView<const T>& a, const MatrixView<const T>& b, const MatrixView<T>& c, const Piece& p, const T* bias,
                    bool accumulate) {
  constexpr i64 kBlock = 128;  // a block of B of this many rows and columns stays in the cache
  thread_local std::vector<T> block;
  for (i64 batch = 0; batch < p.batch; ++batch) {
    const T* ap = a.p + batch * a.batch1;
    const T* bp = b.p + batch * b.batch1;
    T* cp = c.p + batch * c.batch1;
    for (i64 i = 0; i < p.m && !accumulate; ++i)
      for (i64 j = 0; j < p.n; ++j) cp[i * c.row + j] = bias ? bias[j] : T(0);
    for (i64 k0 = 0; k0 < p.k; k0 += kBlock)
      for (i64 j0 = 0; j0 < p.n; j0 += kBlock) {
        const i64 depth = std::min(kBlock, p.k - k0), width = std::min(kBlock, p.n - j0);
        const T* rows = bp + k0 * b.row + j0 * b.col;
        i64 stride = b.row;
        if (b.col != 1) {
          pack(block, rows, 1, depth, width, 0, b.row, b.col);
          rows = block.data();
          stride = width;
        }
        for (i64 i = 0; i < p.m; ++i) {
          T* out = cp + i * c.row + j0;
          for (i64 k = 0; k < depth; ++k) {
            const T x = ap[i * a.row + (k0 + k) * a.col];
            const T* y = rows + k * stride;
            for (i64 j = 0; j < width; ++j) out[j] += x * y[j];
          }
        }
      }
  }
}

// ---- the pieces of a product in parallel

template <class T, class Multiply>
void multiply_piece(const Gemm<T>& g, const Tiles& t, i64 index, i64 k0, T* partial, Multiply&& multiply) {
  const i64 across = divide_up(g.n, t.n), down = divide_up(g.m, t.m), groups = divide_up(g.batch1, t.batch);
  const i64 j = index % across * t.n, i = index / across % down * t.m;
  const i64 b1 = index / across / down % groups * t.batch, b0 = index / across / down / groups;
  const Piece piece{std::min(t.batch, g.batch1 - b1), std::min(t.m, g.m - i), std::min(t.n, g.n - j), std::min(t.k, g.k - k0)};
  auto a = g.a;
  auto b = g.b;
  auto c = g.c;
  a.p = matrix_at(g.a, b0, b1) + i * a.row + k0 * a.col;
  b.p = matrix_at(g.b, b0, b1) + k0 * b.row + j * b.col;
  c.p = matrix_at(g.c, b0, b1) + i * c.row + j;
  if (partial != nullptr) {
    c.p = partial;
    c.row = piece.n;
  }
  const bool alone = partial == nullptr;
  multiply(a, b, c, piece, alone && g.bias ? g.bias + j : nullptr, alone && g.accumulate);
}

constexpr i64 kRowsToAdd = 16;

// Rows [first, first + kRowsToAdd) of a piece of C from its partial products.
template <class T>
void add_chunks(const MatrixView<T>& c, const Piece& p, const T* bias, bool accumulate, i64 first, const T* partial, i64 chunks, i64 size) {
  for (i64 i = first; i < std::min(p.m, first + kRowsToAdd); ++i) {
    T* out = c.p + i * c.row;
    for (i64 j = 0; j < p.n && !accumulate; ++j) out[j] = bias ? bias[j] : T(0);
    for (i64 chunk = 0; chunk < chunks; ++chunk) {
      const T* from = partial + chunk * size + i * p.n;
      for (i64 j = 0; j < p.n; ++j) out[j] += from[j];
    }
  }
}

// k is cut: every chunk of k gives a partial product of its own, and they are added in the order of k.
template <class T, class Multiply>
void multiply_cut_k(const Gemm<T>& g, const Tiles& t, i64 pieces, Multiply&& multiply) {
  const i64 chunks = divide_up(g.k, t.k), size = t.m * t.n;
  Storage storage(static_cast<std::size_t>(pieces * chunks * size) * sizeof(T));
  T* partial = reinterpret_cast<T*>(storage.data());
  parallel_for(pieces * chunks, 1, [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) multiply_piece(g, t, x / chunks, x % chunks * t.k, partial + x * size, multiply);
  });
  const i64 rows = divide_up(t.m, kRowsToAdd);
  parallel_for(pieces * rows, 1, [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) {
      multiply_piece(g, t, x / rows, 0, static_cast<T*>(nullptr),
                     [&](const auto&, const auto&, const MatrixView<T>& c, const Piece& p, const T* bias, bool accumulate) {
                       add_chunks(c, p, bias, accumulate, x % rows * kRowsToAdd, partial + x / rows * chunks * size, chunks, size);
                     });
    }
  });
}

template <class T, class Multiply>
void multiply_tiles(const Gemm<T>& g, const Tiles& t, Multiply&& multiply) {
  const i64 pieces = g.batch0 * divide_up(g.batch1, t.batch) * divide_up(g.m, t.m) * divide_up(g.n, t.n);
  if (t.k < g.k) return multiply_cut_k(g, t, pieces, multiply);
  parallel_for(pieces, 1, [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) multiply_piece(g, t, x, 0, static_cast<T*>(nullptr), multiply);
  });
}

// ---- bf16

std::uint16_t round_to_bf16(float x) {  // nearest, ties to even; NaN stays NaN
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

void round_into(BF16& to, float x) { to.bits = round_to_bf16(x); }
void round_into(float& to, float x) { to = std::bit_cast<float>(std::uint32_t{round_to_bf16(x)} << 16); }

// A dense copy of every distinct matrix in x, rounded to bf16 and held as To, in the same orientation.
template <class To>
struct RoundedCopy {
  MatrixView<const To> view;
  std::optional<Storage> storage;

  RoundedCopy(const MatrixView<const float>& x, i64 batch0, i64 batch1, i64 rows, i64 cols) {
    const i64 n0 = x.batch0 == 0 ? 1 : batch0, n1 = x.batch1 == 0 ? 1 : batch1;
    const bool turned = x.col != 1 && x.row == 1;
    const i64 outer = turned ? cols : rows, inner = turned ? rows : cols;
    const i64 outer_step = turned ? x.col : x.row, inner_step = turned ? x.row : x.col;
    storage.emplace(static_cast<std::size_t>(n0 * n1 * rows * cols) * sizeof(To));
    To* to = reinterpret_cast<To*>(storage->data());
    parallel_for(n0 * n1 * outer, std::max<i64>(1, 65536 / inner), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const float* from = x.p + r / outer / n1 * x.batch0 + r / outer % n1 * x.batch1 + r % outer * outer_step;
        for (i64 i = 0; i < inner; ++i) round_into(to[r * inner + i], from[i * inner_step]);
      }
    });
    view = {to, turned ? 1 : cols, turned ? rows : 1, x.batch0 == 0 ? 0 : n1 * rows * cols, x.batch1 == 0 ? 0 : rows * cols};
  }
};

bool wants_bf16(const Gemm<float>& g) {
  return math == Math::BF16 && dnnl_matmul::has_bf16() && std::min({g.m, g.n, g.k}) >= 32 && g.m * g.n * g.k >= (i64{1} << 22);
}

template <class To>
void gemm_rounded(const Gemm<float>& g, const Tiles& t) {
  const RoundedCopy<To> a(g.a, g.batch0, g.batch1, g.m, g.k), b(g.b, g.batch0, g.batch1, g.k, g.n);
  Gemm<float> places = g;  // has the strides of the copies, so that a piece's offset in it is its offset in a copy
  places.a = {g.a.p, a.view.row, a.view.col, a.view.batch0, a.view.batch1};
  places.b = {g.b.p, b.view.row, b.view.col, b.view.batch0, b.view.batch1};
  multiply_tiles(places, t, [&](const auto& ta, const auto& tb, const auto& c, const Piece& p, const float* bias, bool accumulate) {
    MatrixView<const To> ca = a.view, cb = b.view;
    ca.p += ta.p - g.a.p;
    cb.p += tb.p - g.b.p;
    multiply_onednn(ca, cb, c, p, bias, accumulate);
  });
}

void multiply_f32(const Gemm<float>& g) {
  if (g.batch0 * g.batch1 * g.m * g.n * g.k <= 512) {
    multiply_tiles(g, {g.m, g.n, g.k}, multiply_plain<float>);
  } else if (backend() == "openblas") {
    start_openblas();
    multiply_tiles(g, choose_tiles(g), multiply_openblas);
  } else if (wants_bf16(g)) {
    dnnl_matmul::bf16_is_fast() ? gemm_rounded<BF16>(g, choose_tiles(g)) : gemm_rounded<float>(g, choose_tiles(g));
  } else {
    multiply_tiles(g, choose_tiles(g), multiply_onednn<float>);
  }
}

}  // namespace

template <class T>
void gemm(const Gemm<T>& wanted) {
  if (wanted.batch0 * wanted.batch1 * wanted.m * wanted.n == 0) return;
  counters::add_matmul(2 * wanted.batch0 * wanted.batch1 * wanted.m * wanted.n * wanted.k);
  const counters::Timed timed;
  Gemm<T> g = wanted;
  merge_batches(g);
  if (g.k == 0) {
    multiply_tiles(g, {std::min<i64>(g.m, 64), g.n, 1}, multiply_plain<T>);
  } else if constexpr (std::is_same_v<T, float>) {
    multiply_f32(g);
  } else {
    Tiles t = choose_tiles(g);
    t.m = std::min<i64>(t.m, 64);
    multiply_tiles(g, t, multiply_plain<T>);
  }
}
template void gemm(const Gemm<float>&);
template void gemm(const Gemm<double>&);

PrecisionScope::PrecisionScope(Math m) : previous_(math) { math = m; }
PrecisionScope::~PrecisionScope() { math = previous_; }

void set_gemm_backend(const std::string& name) {
  static const std::vector<std::string> known{"onednn", "openblas"};
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw ConfigError("gemm_backend: got '" + name + "', expected one of: " + join(known) + did_you_mean(name, known));
  }
  backend() = name;
}
const std::string& gemm_backend() { return backend(); }

}  // namespace tapeformer::kernels
