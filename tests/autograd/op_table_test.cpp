// Every row of the op table: values against plain loops, gradients against central differences, f32 against f64, thread
// counts, messages.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <regex>
#include <set>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

enum class Layout { Plain, Turned, Cut };  // as it is; a transposed or stepped view; a slice between other values

// A contiguous tensor whose `view` has x's values.
Tensor base_of(const Tensor& x, Layout layout) {
  if (layout == Layout::Plain || x.rank() == 0) return x;
  if (layout == Layout::Turned && x.rank() >= 2) return x.transpose(-1, -2).clone();
  Shape wide = x.shape();
  const double junk = x.dtype() == DType::U8 ? 1 : x.dtype() == DType::I64 ? 1e6 : std::numeric_limits<double>::quiet_NaN();
  if (layout == Layout::Turned) {
    wide.push_back(2);
    Tensor base = Tensor::full(wide, junk, x.dtype());
    base.slice(1, 0, 1).copy_from(x.view({x.dim(0), 1}));
    return base;
  }
  wide[wide.rank() - 1] += 3;
  Tensor base = Tensor::full(wide, junk, x.dtype());
  base.slice(-1, 1, 1 + x.dim(-1)).copy_from(x);
  return base;
}

Tensor view_of(const Tensor& base, const Shape& shape, Layout layout) {
  if (layout == Layout::Plain || shape.rank() == 0) return base;
  if (layout == Layout::Turned && shape.rank() >= 2) return ops::transpose(base, -1, -2);
  if (layout == Layout::Turned) return ops::reshape(ops::slice(base, 1, 0, 1), shape);
  return ops::slice(base, -1, 1, 1 + shape.dim(-1));
}

Inputs bases_of(const Sample& s, Layout layout, DType type = DType::F64) {
  Inputs out;
  for (const Tensor& x : s.inputs) out.push_back(base_of(x.dtype() == DType::F64 ? x.to(type) : x, layout));
  return out;
}

Tensor call(const Sample& s, const Inputs& bases, Layout layout) {
  Inputs in;
  for (std::size_t i = 0; i < bases.size(); ++i) in.push_back(view_of(bases[i], s.inputs[i].shape(), layout));
  return s.call(in);
}

constexpr Layout kLayouts[] = {Layout::Plain, Layout::Turned, Layout::Cut};

void expect_close(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_LE(std::abs(got[i] - want[i]), tolerance * (1 + std::abs(want[i])))
        << "element " << i << ": got " << got[i] << ", want " << want[i];
  }
}

class OpTable : public ::testing::TestWithParam<std::size_t> {
 protected:
  const OpRow& row() const { return op_rows()[GetParam()]; }
  template <class F>
  void each(F&& f) const {
    for (const Sample& s : row().samples)
      for (Layout layout : kLayouts) {
        SCOPED_TRACE(row().name + ": " + s.label + ", layout " + std::to_string(static_cast<int>(layout)));
        f(s, layout);
      }
  }
};

TEST_P(OpTable, ValuesMatchPlainLoops) {
  ASSERT_GE(row().samples.size(), 2u);
  each([&](const Sample& s, Layout layout) {
    if (!s.reference) return;
    std::vector<Plain> in;
    for (const Tensor& x : s.inputs) in.push_back({x.shape(), x.to_vector()});
    const Plain want = s.reference(in);
    for (DType type : {DType::F64, DType::F32}) {
      const Tensor y = call(s, bases_of(s, layout, type), layout);
      EXPECT_EQ(y.shape(), want.shape);
      EXPECT_EQ(y.dtype(), row().differentiable ? type : DType::U8);
      expect_close(y.to_vector(), want.v, s.error * (type == DType::F64 ? 0x1p-52 : 0x1p-23));
    }
  });
}

TEST_P(OpTable, GradientsMatchCentralDifferences) {
  if (!row().differentiable) {
    each([&](const Sample& s, Layout layout) {
      Tape tape;
      Inputs in;
      for (const Tensor& x : bases_of(s, layout)) in.push_back(tape.watch(x));
      EXPECT_FALSE(call(s, in, layout).grad_ref());
    });
    return;
  }
  each([&](const Sample& s, Layout layout) {
    EXPECT_EQ(gradcheck([&](const Inputs& in) { return call(s, in, layout); }, bases_of(s, layout)), "");
  });
}

std::vector<Tensor> gradients(const std::function<Tensor(const Inputs&)>& f, const Inputs& inputs) {  // output first
  Tape tape;
  Inputs in;
  for (const Tensor& x : inputs) in.push_back(is_float(x.dtype()) ? tape.watch(x) : x);
  const Tensor y = f(in);
  std::vector<Tensor> out{y};
  if (!y.grad_ref()) return out;
  Tensor upstream = Tensor::empty(y.shape());
  fill_normal(upstream, RngKey(3), 0, 1);
  tape.backward(y, upstream.to(y.dtype()));
  for (const Tensor& x : in) out.push_back(x.grad_ref() && tape.grad(x).defined() ? tape.grad(x) : Tensor());
  return out;
}

TEST_P(OpTable, F32GradientsMatchF64) {
  each([&](const Sample& s, Layout layout) {
    const auto f = [&](const Inputs& in) { return call(s, in, layout); };
    const auto wide = gradients(f, bases_of(s, layout)), narrow = gradients(f, bases_of(s, layout, DType::F32));
    ASSERT_EQ(wide.size(), narrow.size());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(wide[i].defined(), narrow[i].defined());
      if (!wide[i].defined() || !row().differentiable) continue;
      EXPECT_EQ(narrow[i].dtype(), DType::F32);
      expect_close(narrow[i].to_vector(), wide[i].to_vector(), 16 * (s.error + 16) * 0x1p-23);
    }
  });
}

// Some inputs recorded, the others not: the same gradients as when all are.
TEST_P(OpTable, GradientsDoNotDependOnWhichInputsAreRecorded) {
  for (const Sample& s : row().samples) {
    SCOPED_TRACE(row().name + ": " + s.label);
    if (!row().differentiable || s.inputs.size() < 2) continue;
    const auto all = gradients(s.call, s.inputs);
    for (std::size_t k = 0; k < s.inputs.size(); ++k) {
      if (!is_float(s.inputs[k].dtype())) continue;
      Tape tape;
      Inputs in = s.inputs;
      in[k] = tape.watch(in[k]);
      const Tensor y = s.call(in);
      if (!y.grad_ref()) continue;
      Tensor upstream = Tensor::empty(y.shape());
      fill_normal(upstream, RngKey(3), 0, 1);
      tape.backward(y, upstream.to(DType::F64));
      ASSERT_EQ(tape.grad(in[k]).defined(), all[k + 1].defined());
      if (all[k + 1].defined()) EXPECT_EQ(tape.grad(in[k]).to_vector(), all[k + 1].to_vector()) << "input " << k;
    }
  }
}

TEST_P(OpTable, SameBitsForAnyThreadCount) {
  ASSERT_TRUE(row().large) << row().name << " has no large sample";
  const Large large = row().large(200000);
  EXPECT_GE(large.bytes, 4 * 2000.0);
  const int before = thread_count();
  std::vector<Tensor> first;
  for (int threads : {1, 2, 3, 8}) {
    set_thread_count(threads);
    std::vector<Tensor> now = gradients(large.call, large.inputs);
    for (Tensor& t : now) t = t.defined() ? t.to_contiguous() : t;
    if (threads == 1) first = now;
    for (std::size_t i = 0; i < now.size(); ++i) {
      ASSERT_EQ(now[i].defined(), first[i].defined());
      if (!now[i].defined()) continue;
      const auto data = [](const Tensor& t) {
        return t.dtype() == DType::U8 ? static_cast<const void*>(t.ptr<std::uint8_t>()) : t.ptr<float>();
      };
      EXPECT_EQ(std::memcmp(data(now[i]), data(first[i]), now[i].bytes()), 0)
          << row().name << " tensor " << i << " with " << threads << " threads";
    }
  }
  set_thread_count(before);
}

TEST_P(OpTable, ErrorsSayWhatIsWrong) {
  ASSERT_FALSE(row().errors.empty()) << row().name << " has no error sample";
  for (const ErrorSample& e : row().errors) {
    try {
      e.call();
      ADD_FAILURE() << "no error, expected: " << e.text;
    } catch (const ShapeError& got) {
      EXPECT_NE(std::string(got.what()).find(e.text), std::string::npos) << "got:      " << got.what() << "\nexpected: " << e.text;
    } catch (const std::exception& got) {
      ADD_FAILURE() << "not a ShapeError: " << got.what() << "\nexpected: " << e.text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpTable, ::testing::Range(std::size_t{0}, op_rows().size()),
                         [](const auto& info) { return op_rows()[info.param].name; });

TEST(OpList, EveryOpHasARow) {
  std::ifstream file(SOURCE_DIR "/autograd/ops.h");
  std::set<std::string> declared, rows;
  const std::regex declaration("^Tensor (\\w+)\\(");
  for (std::string line; std::getline(file, line);)
    if (std::smatch m; std::regex_search(line, m, declaration)) declared.insert(m[1]);
  for (const OpRow& r : op_rows()) EXPECT_TRUE(rows.insert(r.name).second) << r.name << " has two rows";
  EXPECT_GE(declared.size(), 60u);
  for (const std::string& name : declared) EXPECT_TRUE(rows.count(name)) << "no row in tests/op_samples*.cpp for op '" << name << "'";
  for (const std::string& name : rows) EXPECT_TRUE(declared.count(name)) << "the row '" << name << "' names no op of autograd/ops.h";
}

}  // namespace
}  // namespace tapeformer::samples
