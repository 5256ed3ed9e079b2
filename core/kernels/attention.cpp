// attention.cpp: cuts attention into work for the tile engine of attention_simd.h. The cut follows from the shape: with
// many heads a head is one piece of work, with few heads a piece is one tile of queries (forward) or a fixed set of key
// tiles (backward), whose shares of dq are added in a fixed order.
#include "core/kernels/attention.h"

#include <cmath>

#include "core/counters.h"
#include "core/error.h"
#include "core/kernels/attention_head.h"
#include "core/kernels/attention_simd.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace tapeformer::kernels {
namespace attention_tiles {
namespace {

constexpr i64 kEnoughPieces = 16;

// Scratch of one call, one equal part for every thread that may work on it.
class Scratch {
 public:
  Scratch(i64 pieces, std::size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        nested_(in_parallel()),
        storage_(bytes_ * static_cast<std::size_t>(nested_ ? 1 : std::min<i64>(thread_count(), pieces))) {}
  std::byte* mine() { return storage_.data() + (nested_ ? 0 : static_cast<std::size_t>(parallel_member()) * bytes_); }

 private:
  std::size_t bytes_;
  bool nested_;
  Storage storage_;
};

Dropout dropout_of(const Attention<float>& a) {
  if (a.dropout <= 0) return {};
  return {true, static_cast<std::int32_t>(std::lround(a.dropout * 0x1.0p16)), static_cast<float>(1 / (1 - a.dropout))};
}

Head make_head(const Attention<float>& a, const Sizes& size, i64 index) {
  Head head;
  head.a = &a;
  head.size = &size;
  head.b = index / a.H;
  head.h = index % a.H;
  if (a.dropout > 0) {
    const i64 sample = a.rows != nullptr ? a.rows[head.b] : head.b;
    head.dropout_key = a.dropout_key.fold_in(static_cast<std::uint64_t>(sample)).fold_in(static_cast<std::uint64_t>(head.h));
  }
  head.query_order = a.query_order.head(head.b, head.h);
  head.key_order = a.key_order.head(head.b, head.h);
  return head;
}

// Heads taken together as one piece of work, so that tiny heads do not cost a piece each.
i64 heads_per_piece(const Sizes& s) { return std::max<i64>(1, (i64{1} << 20) / std::max<i64>(1, s.N * s.M * (s.d + s.dv))); }

class Forward {
 public:
  Forward(const Attention<float>& a, RowsView<float> o, float* row_max, float* row_lse)
      : a_(a), o_(o), row_max_(row_max), row_lse_(row_lse), size_(a), dropout_(dropout_of(a)) {}

  void run() {
    if (a_.B * a_.H >= kEnoughPieces)
      whole_heads();
    else
      query_tiles();
  }

 private:
  static constexpr std::size_t kFloat = sizeof(float);
  std::size_t state_bytes() const { return sizeof(ForwardState) + static_cast<std::size_t>(kTile * (size_.dp + size_.dvp)) * kFloat; }

  void whole_heads() {
    const i64 heads = a_.B * a_.H, grain = heads_per_piece(size_);
    Scratch scratch(heads, state_bytes() + static_cast<std::size_t>(Head::forward_floats(size_)) * kFloat);
    parallel_for(heads, grain, [&](i64 begin, i64 end) {
      std::byte* mine = scratch.mine();
      for (i64 x = begin; x < end; ++x) {
        Head head = make_head(a_, size_, x);
        head.place_forward(reinterpret_cast<float*>(mine + state_bytes()));
        for (i64 t = 0; t < size_.k_tiles; ++t) head.pack_key_tile(t);
        for (i64 t = 0; t < size_.q_tiles; ++t) tile(head, t, mine);
      }
    });
  }

  void query_tiles() {
    const i64 heads = a_.B * a_.H, floats = Head::forward_floats(size_);
    Storage packed(static_cast<std::size_t>(heads * floats) * kFloat);
    std::vector<Head> all;
    for (i64 x = 0; x < heads; ++x) {
      all.push_back(make_head(a_, size_, x));
      all.back().place_forward(reinterpret_cast<float*>(packed.data()) + x * floats);
    }
    parallel_for(heads * size_.k_tiles, 4, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) all[x / size_.k_tiles].pack_key_tile(x % size_.k_tiles);
    });
    Scratch scratch(heads * size_.q_tiles, state_bytes());
    parallel_for(heads * size_.q_tiles, 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) tile(all[x / size_.q_tiles], x % size_.q_tiles, scratch.mine());
    });
  }

  void tile(const Head& head, i64 t, std::byte* memory) {
    thread_local std::vector<i64> key_tiles;
    auto* state = new (memory) ForwardState;
    head.key_tiles(t, key_tiles);
    const i64 stats = (head.b * a_.H + head.h) * a_.query_rows();
    float* q = reinterpret_cast<float*>(memory + sizeof(ForwardState));
    const i64 pairs = forward_tile(head, dropout_, t, key_tiles, *state, q, q + kTile * size_.dp, o_.p + head.b * o_.b + head.h * o_.h,
                                   o_.n, row_max_ + stats, row_lse_ + stats);
    counters::add_attention(2 * pairs * (a_.d + a_.dv), pairs);
  }

  const Attention<float>& a_;
  RowsView<float> o_;
  float *row_max_, *row_lse_;
  Sizes size_;
  Dropout dropout_;
};

class Backward {
 public:
  Backward(const Attention<float>& a, RowsView<const float> o, const float* row_max, const float* row_lse, RowsView<const float> d_o,
           const AttentionGrads<float>& grads)
      : a_(a), o_(o), row_max_(row_max), row_lse_(row_lse), d_o_(d_o), grads_(grads), size_(a), dropout_(dropout_of(a)) {}

  void run(i64 first, i64 heads) {  // of the B * H heads
    if (heads >= kEnoughPieces)
      whole_heads(first, heads);
    else
      key_groups(first, heads);
  }

 private:
  static constexpr std::size_t kFloat = sizeof(float);
  i64 dq_floats() const { return kTile * size_.q_tiles * size_.dp; }
  std::size_t state_bytes() const { return sizeof(BackwardState) + static_cast<std::size_t>(kTile * (size_.dp + size_.dvp)) * kFloat; }
  void pack_query(const Head& head, i64 t) const { head.pack_query_tile_backward(t, o_, row_max_, row_lse_, d_o_); }

  void whole_heads(i64 first, i64 heads) {
    const i64 floats = Head::backward_floats(size_);
    Scratch scratch(heads, state_bytes() + static_cast<std::size_t>(floats + dq_floats()) * kFloat);
    parallel_for(heads, heads_per_piece(size_), [&](i64 begin, i64 end) {
      std::byte* mine = scratch.mine();
      float* packed = reinterpret_cast<float*>(mine + state_bytes());
      float* dq = packed + floats;
      for (i64 x = begin; x < end; ++x) {
        Head head = make_head(a_, size_, first + x);
        head.place_backward(packed);
        if (a_.pattern != nullptr) head.find_users();
        for (i64 t = 0; t < size_.q_tiles; ++t) pack_query(head, t);
        for (i64 t = 0; t < size_.k_tiles; ++t) head.pack_key_tile_backward(t);
        std::fill(dq, dq + dq_floats(), 0.0f);
        for (i64 t = 0; t < size_.k_tiles; ++t) key_tile(head, t, dq, mine);
        for (i64 t = 0; t < size_.q_tiles; ++t) write_dq(head, t, dq, 1);
      }
    });
  }

  // Key tiles g, g + groups, g + 2 groups ... of a head form group g, which has its own dq. With an outer product, whose gradients have no
  // such copies, a head is one group.
  void key_groups(i64 first, i64 heads) {
    const i64 floats = Head::backward_floats(size_);
    const i64 most = grads_.dleft.p != nullptr ? 1 : std::max<i64>(size_.k_tiles, 1);
    const i64 groups = std::clamp<i64>((kEnoughPieces + heads - 1) / heads, 1, most);
    Storage memory(static_cast<std::size_t>(heads * (floats + groups * dq_floats())) * kFloat);
    float* packed = reinterpret_cast<float*>(memory.data());
    float* dq = packed + heads * floats;
    std::vector<Head> all;
    for (i64 x = 0; x < heads; ++x) {
      all.push_back(make_head(a_, size_, first + x));
      all.back().place_backward(packed + x * floats);
    }
    pack_all(all);
    Scratch scratch(heads * groups, state_bytes());
    parallel_for(heads * groups, 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        std::fill(dq + x * dq_floats(), dq + (x + 1) * dq_floats(), 0.0f);
        for (i64 t = x % groups; t < size_.k_tiles; t += groups) key_tile(all[x / groups], t, dq + x * dq_floats(), scratch.mine());
      }
    });
    parallel_for(heads * size_.q_tiles, 4, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 head = x / size_.q_tiles;
        write_dq(all[head], x % size_.q_tiles, dq + head * groups * dq_floats(), groups);
      }
    });
  }

  void pack_all(std::vector<Head>& all) const {
    const i64 both = size_.q_tiles + size_.k_tiles;
    parallel_for(static_cast<i64>(all.size()) * both, 4, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 t = x % both;
        if (t < size_.q_tiles)
          pack_query(all[x / both], t);
        else
          all[x / both].pack_key_tile_backward(t - size_.q_tiles);
      }
    });
    if (a_.pattern == nullptr) return;
    parallel_for(static_cast<i64>(all.size()), 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) all[x].find_users();
    });
  }

  void key_tile(const Head& head, i64 t, float* dq, std::byte* memory) {
    auto* state = new (memory) BackwardState;
    float* dk = reinterpret_cast<float*>(memory + sizeof(BackwardState));
    float* dv = dk + kTile * size_.dp;
    std::fill(dk, dv + kTile * size_.dvp, 0.0f);
    std::fill(state->bias_grad, state->bias_grad + kTile, 0.0f);
    i64 pairs = 0;
    const auto add = [&](i64 query_tile) {
      const i64 done = backward_tile(head, dropout_, query_tile, t, *state, dk, dv, dq, grads_.dkey_bias != nullptr);
      if (done > 0 && grads_.dpair_bias.p != nullptr) add_pair_bias(head, query_tile, t, *state);
      if (done > 0 && grads_.dleft.p != nullptr) head.add_outer_grads(query_tile, t, state->scores, grads_);
      pairs += done;
    };
    if (a_.pattern != nullptr) {
      for (i64 u = head.starts[t]; u < head.starts[t + 1]; ++u) add(head.users[u]);
    } else {
      for (i64 q = a_.causal && !head.ordered() ? t : 0; q < size_.q_tiles; ++q) add(q);
    }
    write_keys(head, t, dk, dv, state->bias_grad);
    counters::add_attention(2 * pairs * (3 * a_.d + 2 * a_.dv), 0);
  }

  void add_pair_bias(const Head& head, i64 query_tile, i64 key_tile, const BackwardState& state) const {
    const auto& out = grads_.dpair_bias;
    for (i64 i = 0; i < size_.rows(query_tile); ++i) {
      const i64 row = head.query_row(query_tile * kTile + i);
      if (row < 0) continue;
      float* to = out.p + head.b * out.b + head.h * out.h + row * out.n;
      const float* from = state.scores + i * kTile;
      for (i64 j = 0; j < size_.keys(key_tile); ++j)
        if (const i64 key = head.key_row(key_tile * kTile + j); key >= 0) to[key] += from[j];
    }
  }

  static void put(float* to, const float* from, i64 n, float scale, bool add) {
    for (i64 c = 0; c < n && add; ++c) to[c] += scale * from[c];
    for (i64 c = 0; c < n && !add; ++c) to[c] = scale * from[c];
  }

  void write_keys(const Head& head, i64 t, const float* dk, const float* dv, const float* bias_grad) const {
    const auto scale = static_cast<float>(a_.scale);
    for (i64 j = 0; j < size_.keys(t); ++j) {
      const i64 row = head.key_row(t * kTile + j);
      if (row < 0) continue;
      if (grads_.dk.p != nullptr)
        put(grads_.dk.p + head.b * grads_.dk.b + head.h * grads_.dk.h + row * grads_.dk.n, dk + j * size_.dp, size_.d, scale, grads_.add);
      if (grads_.dv.p != nullptr)
        put(grads_.dv.p + head.b * grads_.dv.b + head.h * grads_.dv.h + row * grads_.dv.n, dv + j * size_.dvp, size_.dv, 1, grads_.add);
      if (grads_.dkey_bias != nullptr)
        put(grads_.dkey_bias + (head.b * a_.H + head.h) * a_.key_rows() + row, bias_grad + j, 1, 1, grads_.add);
    }
  }

  void write_dq(const Head& head, i64 t, const float* dq, i64 groups) const {
    if (grads_.dq.p == nullptr) return;
    const auto scale = static_cast<float>(a_.scale);
    for (i64 i = t * kTile; i < t * kTile + size_.rows(t); ++i) {
      const i64 row = head.query_row(i);
      if (row < 0) continue;
      float* to = grads_.dq.p + head.b * grads_.dq.b + head.h * grads_.dq.h + row * grads_.dq.n;
      for (i64 g = 0; g < groups; ++g) put(to, dq + g * dq_floats() + i * size_.dp, size_.d, scale, grads_.add || g > 0);
    }
  }

  const Attention<float>& a_;
  RowsView<const float> o_;
  const float *row_max_, *row_lse_;
  RowsView<const float> d_o_;
  const AttentionGrads<float>& grads_;
  Sizes size_;
  Dropout dropout_;
};

// A pair bias shared between samples or heads gets its shares in their order, so those do not run at the same time.
i64 heads_at_a_time(const Attention<float>& a, const RowsView<float>& pair) {
  if (pair.p == nullptr) return a.B * a.H;
  if (a.H > 1 && pair.h == 0) return 1;
  return a.B > 1 && pair.b == 0 ? a.H : a.B * a.H;
}

}  // namespace
}  // namespace attention_tiles

template <>
void attention_forward(const Attention<float>& a, RowsView<float> o, float* row_max, float* row_lse) {
  if (a.B * a.H * a.N == 0) return;
  TAPEFORMER_ASSERT(!a.causal || a.query_order.p || a.key_order.p || a.M >= a.N, "causal attention needs at least as many keys as queries");
  TAPEFORMER_ASSERT(a.left.p == nullptr || a.key_order.p == nullptr, "an outer product needs the keys in their own order");
  const counters::Timed timed;
  attention_tiles::Forward(a, o, row_max, row_lse).run();
}

template <>
void attention_backward(const Attention<float>& a, RowsView<const float> o, const float* row_max, const float* row_lse,
                        RowsView<const float> d_o, const AttentionGrads<float>& grads) {
  const i64 heads = a.B * a.H, step = attention_tiles::heads_at_a_time(a, grads.dpair_bias);
  const counters::Timed timed;
  attention_tiles::Backward backward(a, o, row_max, row_lse, d_o, grads);
  for (i64 first = 0; first < heads; first += step) backward.run(first, step);
}

template <>
void attention_forward(const Attention<double>& a, RowsView<double> o, double* row_max, double* row_lse) {
  const counters::Timed timed;
  attention_forward_reference(a, o, row_max, row_lse);
}

template <>
void attention_backward(const Attention<double>& a, RowsView<const double> o, const double* row_max, const double* row_lse,
                        RowsView<const double> d_o, const AttentionGrads<double>& grads) {
  const counters::Timed timed;
  attention_backward_reference(a, o, row_max, row_lse, d_o, grads);
}

}  // namespace tapeformer::kernels
