#include "data/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>

#include "core/error.h"
#include "core/hdf5_file.h"
#include "core/parallel.h"
#include "data/dataset.h"
#include "data/draws.h"
#include "data/idx_file.h"

namespace tapeformer {
namespace {

constexpr double kDash = 2, kThickness = 0.5, kMargin = 1, kCircle = 1.5,
                 kDashInk = 0.75;        // pixels; intensity of a dash beside a circle's 1
constexpr i64 kPadding = 1, kFiner = 2;  // border; subdivisions for smooth edges
constexpr int kImageTries = 20000, kCurveTries = 30;

struct Point {
  double x, y;
};
Point operator+(Point a, Point b) { return {a.x + b.x, a.y + b.y}; }
Point operator*(double s, Point p) { return {s * p.x, s * p.y}; }
double length(Point p) { return std::hypot(p.x, p.y); }
double distance(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

struct Dash {
  Point start, end;
  Point direction() const { return (1 / distance(start, end)) * Point{end.x - start.x, end.y - start.y}; }
};

double distance(Point p, const Dash& d) {
  const Point along{d.end.x - d.start.x, d.end.y - d.start.y};
  const double t = ((p.x - d.start.x) * along.x + (p.y - d.start.y) * along.y) / (along.x * along.x + along.y * along.y);
  return distance(p, d.start + std::clamp(t, 0.0, 1.0) * along);
}

using Curve = std::vector<Dash>;

class Scene {
 public:
  Scene(const PathfinderSettings& s, Draws& draw) : s_(&s), draw_(&draw), mask_(static_cast<std::size_t>(s.size * s.size), false) {}

  std::optional<Dash> first_dash(Point start) {
    const double angle = draw_->between(0, 2 * std::numbers::pi);
    const Dash dash{start, start + kDash * Point{std::cos(angle), std::sin(angle)}};
    if (!is_free(dash)) return std::nullopt;
    return dash;
  }

  // The next dash of a curve: it starts a dash and two margins after the last one, and turns towards one of the free pixels around.
  bool extend(Curve& curve) {
    const Dash& last = curve.back();
    const Point forward = last.direction(), start = last.start + (kDash + 2 * kMargin) * forward;
    std::vector<std::pair<double, Dash>> choices;
    double total = 0;
    each_pixel_near(start, kDash + kMargin + 1, [&](i64 x, i64 y) {
      const Point offset = centre(x, y) + (-1) * start;
      if (std::abs(length(offset) - (kDash + kMargin)) > 0.5 || masked(x, y)) return;
      const Point unit = (1 / length(offset)) * offset;
      const double turn = std::acos(std::clamp(unit.x * forward.x + unit.y * forward.y, -1.0, 1.0));
      const double weight = std::pow(std::cos(std::min(s_->continuity * turn, std::numbers::pi / 2)), 2);
      const Dash dash{start, start + kDash * unit};
      if (weight < 1e-9 || !is_free(dash)) return;
      total += weight;
      choices.emplace_back(total, dash);
    });
    if (choices.empty()) return false;
    const double at = draw_->between(0, total);
    const auto chosen = std::find_if(choices.begin(), choices.end() - 1, [&](const std::pair<double, Dash>& c) { return at < c.first; });
    curve.push_back(chosen->second);
    block(chosen->second);
    return true;
  }

  bool is_free(const Dash& dash) const {
    constexpr int kSteps = 8;
    for (int i = 0; i <= kSteps; ++i) {
      const Point p = dash.start + (static_cast<double>(i) / kSteps) * Point{dash.end.x - dash.start.x, dash.end.y - dash.start.y};
      if (masked(static_cast<i64>(std::floor(p.x)), static_cast<i64>(std::floor(p.y)))) return false;
    }
    return true;
  }
  void block(const Dash& dash) {
    each_pixel_near(dash.start, kDash + kMargin + 1, [&](i64 x, i64 y) {
      if (distance(centre(x, y), dash) <= kMargin) mask_[index(x, y)] = true;
    });
  }
  Point anywhere() {
    const auto low = static_cast<double>(kPadding), high = static_cast<double>(s_->size - kPadding);
    const double x = draw_->between(low, high);
    return {x, draw_->between(low, high)};
  }

 private:
  template <class F>
  void each_pixel_near(Point p, double reach, F&& f) const {
    const auto from = [&](double at) { return std::max<i64>(0, static_cast<i64>(std::floor(at - reach))); };
    const auto to = [&](double at) { return std::min(s_->size, static_cast<i64>(std::ceil(at + reach))); };
    for (i64 y = from(p.y); y < to(p.y); ++y)
      for (i64 x = from(p.x); x < to(p.x); ++x) f(x, y);
  }
  static Point centre(i64 x, i64 y) { return {static_cast<double>(x) + 0.5, static_cast<double>(y) + 0.5}; }
  std::size_t index(i64 x, i64 y) const { return static_cast<std::size_t>(y * s_->size + x); }
  bool masked(i64 x, i64 y) const {
    if (x < kPadding || y < kPadding || x >= s_->size - kPadding || y >= s_->size - kPadding) return true;
    return mask_[index(x, y)];
  }
  const PathfinderSettings* s_;
  Draws* draw_;
  std::vector<bool> mask_;  // drawn on, or too near to it
};

// Two long curves, grown in turn.
std::optional<std::array<Curve, 2>> long_curves(Scene& scene, Draws& draw, const PathfinderSettings& s) {
  const Point start = scene.anywhere();
  const double angle = draw.between(0, 2 * std::numbers::pi);
  const std::optional<Dash> a = scene.first_dash(start);
  if (!a) return std::nullopt;
  scene.block(*a);
  const std::optional<Dash> b = scene.first_dash(start + static_cast<double>(s.distance) * Point{std::cos(angle), std::sin(angle)});
  if (!b) return std::nullopt;
  scene.block(*b);
  std::array<Curve, 2> curves{Curve{*a}, Curve{*b}};
  for (i64 n = 1; n < s.contour; ++n)
    for (Curve& c : curves)
      if (!scene.extend(c)) return std::nullopt;
  return curves;
}

std::optional<Curve> short_curve(const Scene& before, Draws& draw, const PathfinderSettings& s, i64 dashes, Scene& after) {
  for (int tries = 0; tries < kCurveTries; ++tries) {
    after = before;
    const std::optional<Dash> first = after.first_dash(after.anywhere());
    if (!first) continue;
    after.block(*first);
    Curve curve{*first};
    while (static_cast<i64>(curve.size()) < dashes && after.extend(curve)) {
    }
    if (static_cast<i64>(curve.size()) == dashes) return curve;
  }
  return std::nullopt;
}

// Ink between 0 and 1 where the edge of a shape is `inside` finer pixels away.
double coverage(double inside) { return std::clamp(inside + 0.5, 0.0, 1.0); }

std::vector<std::uint8_t> draw_image(const std::vector<Dash>& dashes, const std::array<Point, 2>& circles, i64 size) {
  std::vector<std::uint8_t> out;
  constexpr double kScale = kFiner;
  for (i64 y = 0; y < size; ++y)
    for (i64 x = 0; x < size; ++x) {
      double sum = 0;
      for (i64 sub = 0; sub < kFiner * kFiner; ++sub) {
        const Point p{static_cast<double>(x) + (static_cast<double>(sub % kFiner) + 0.5) / kScale,
                      static_cast<double>(y) + (static_cast<double>(sub / kFiner) + 0.5) / kScale};
        double ink = 0;
        for (const Dash& d : dashes) ink = std::max(ink, kDashInk * coverage(kScale * (kThickness / 2 - distance(p, d))));
        for (const Point& c : circles) ink = std::max(ink, coverage(kScale * (kCircle - distance(p, c))));
        sum += ink;
      }
      out.push_back(static_cast<std::uint8_t>(std::lround(255 * sum / (kScale * kScale))));
    }
  return out;
}

void check(const PathfinderSettings& s) {
  const auto require = [](bool ok, const std::string& message) {
    if (!ok) throw ConfigError(message);
  };
  require(s.size >= 12 && s.size <= 1024, fmt::format("size: got {}, expected 12 to 1024", s.size));
  require(s.contour >= 3, fmt::format("contour: got {}, expected at least 3", s.contour));
  require(s.distance >= 2, fmt::format("distance: got {}, expected at least 2", s.distance));
  require(s.continuity > 0, fmt::format("continuity: got {}, expected above 0", s.continuity));
  for (i64 n : s.samples) require(n >= 1, fmt::format("samples: got {}, expected at least 1 for each part", n));
}

double mean(const std::vector<PathfinderImage>& images, bool label, double (*measure)(const PathfinderImage&)) {
  double sum = 0, count = 0;
  for (const PathfinderImage& i : images)
    if (i.connected == label) {
      sum += measure(i);
      ++count;
    }
  return count > 0 ? sum / count : 0;
}

double ink_of(const PathfinderImage& i) {
  double sum = 0;
  for (std::uint8_t p : i.pixels) sum += p;
  return sum / (255.0 * static_cast<double>(i.pixels.size()));
}
double distance_of(const PathfinderImage& i) { return i.circle_distance; }

// Accuracy on `test` of "measure < t" or its opposite, whichever is best on `train`.
double threshold_accuracy(const std::vector<PathfinderImage>& train, const std::vector<PathfinderImage>& test,
                          double (*measure)(const PathfinderImage&)) {
  std::vector<std::pair<double, bool>> sorted;
  i64 below = 0, connected = 0;  // right answers of "connected is below" as the threshold moves up
  for (const PathfinderImage& i : train) {
    sorted.emplace_back(measure(i), i.connected);
    connected += i.connected;
  }
  std::sort(sorted.begin(), sorted.end());
  const auto all = static_cast<i64>(sorted.size());
  below = all - connected;
  i64 best = std::max(below, all - below);
  double threshold = -1e300;
  bool low = below >= all - below;
  for (const auto& [value, label] : sorted) {
    below += label ? 1 : -1;
    if (std::max(below, all - below) <= best) continue;
    best = std::max(below, all - below);
    threshold = value;
    low = below >= all - below;
  }
  double right = 0;
  for (const PathfinderImage& i : test) right += ((measure(i) <= threshold) == low) == i.connected;
  return right / static_cast<double>(test.size());
}

}  // namespace

PathfinderImage pathfinder_image(RngKey key, const PathfinderSettings& s) {
  Draws draw(key);
  PathfinderImage out;
  out.connected = draw.below(2) == 1;
  const i64 dashes = s.contour / 3, distractors = s.distractors >= 0 ? s.distractors : 20 / dashes;
  for (int tries = 0; tries < kImageTries; ++tries) {
    Scene scene(s, draw);
    const auto curves = long_curves(scene, draw, s);
    if (!curves) continue;
    std::vector<Dash> all;
    for (const Curve& c : *curves) all.insert(all.end(), c.begin(), c.end());
    bool complete = true;
    for (i64 d = 0; d < distractors && complete; ++d) {
      Scene after(s, draw);
      const std::optional<Curve> curve = short_curve(scene, draw, s, dashes, after);
      complete = curve.has_value();
      if (complete) all.insert(all.end(), curve->begin(), curve->end());
      scene = after;
    }
    if (!complete) continue;
    const auto first = static_cast<std::size_t>(draw.below(2)), second = out.connected ? first : 1 - first;
    const std::array<Point, 2> circles{(*curves)[first].front().start, (*curves)[second].back().end};
    out.circle_distance = distance(circles[0], circles[1]);
    out.pixels = draw_image(all, circles, s.size);
    return out;
  }
  throw ConfigError(fmt::format("pathfinder: two curves of {} dashes and {} of {} do not fit into {} x {} pixels", s.contour, distractors,
                                dashes, s.size, s.size));
}

PathfinderShortcuts generate_pathfinder(const std::string& out_dir, const PathfinderSettings& s) {
  check(s);
  std::filesystem::create_directories(out_dir);
  const RngKey key = RngKey(s.seed).fold_in("pathfinder");
  constexpr std::array kParts{Part::Train, Part::Valid, Part::Test};
  std::array<std::vector<PathfinderImage>, 3> parts;
  for (std::size_t p = 0; p < 3; ++p) {
    std::vector<PathfinderImage>& images = parts[p];
    images.resize(static_cast<std::size_t>(s.samples[p]));
    const RngKey part_key = key.fold_in(name_of(kParts[p]));
    parallel_for(s.samples[p], 16, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i)
        images[static_cast<std::size_t>(i)] = pathfinder_image(part_key.fold_in(static_cast<std::uint64_t>(i)), s);
    });
    IdxArray pixels{{s.samples[p], s.size, s.size}, {}}, labels{{s.samples[p]}, {}};
    for (const PathfinderImage& i : images) {
      pixels.values.insert(pixels.values.end(), i.pixels.begin(), i.pixels.end());
      labels.values.push_back(i.connected);
    }
    const std::string start = (std::filesystem::path(out_dir) / std::string(name_of(kParts[p]))).string();
    write_idx(start + "-images-idx3-ubyte", pixels);
    write_idx(start + "-labels-idx1-ubyte", labels);
  }
  write_file_atomically((std::filesystem::path(out_dir) / "labels.txt").string(), "apart\nconnected\n");
  PathfinderShortcuts out;
  const auto& test = parts[2];
  out.connected = static_cast<double>(std::count_if(test.begin(), test.end(), [](const auto& i) { return i.connected; })) /
                  static_cast<double>(test.size());
  for (std::size_t label = 0; label < 2; ++label) {
    out.ink[label] = mean(test, label == 1, ink_of);
    out.distance[label] = mean(test, label == 1, distance_of);
  }
  out.ink_accuracy = threshold_accuracy(parts[0], test, ink_of);
  out.distance_accuracy = threshold_accuracy(parts[0], test, distance_of);
  return out;
}

}  // namespace tapeformer
