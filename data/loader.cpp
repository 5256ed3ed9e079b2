#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

namespace tapeformer {
namespace {

constexpr i64 kDefaultBucket = 50;     // windows for a token budget without a bucket
constexpr std::size_t kKeptPlans = 3;  // epochs whose batches are remembered
constexpr int kMostThreads = 4;

using Plan = std::vector<std::vector<i64>>;  // sample indices of each batch, over all ranks

void shuffle(Plan& plan, RngKey key) {
  const KeyedPermutation order(plan.size(), key);
  Plan out(plan.size());
  for (std::size_t i = 0; i < plan.size(); ++i) out[i] = std::move(plan[order(i)]);
  plan = std::move(out);
}

struct Job {
  Cursor cursor;
  std::vector<i64> rows;
  std::promise<Batch> promise;
};

// Threads that turn jobs into batches.
class Workers {
 public:
  Workers(int threads, std::function<Batch(const Job&)> make) : make_(std::move(make)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this](std::stop_token stop) { work(stop); });
  }
  void add(std::shared_ptr<Job> job) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
    ready_.notify_one();
  }
  void drop_waiting() {
    std::lock_guard lock(mutex_);
    queue_.clear();
  }

 private:
  void work(std::stop_token stop) {
    while (true) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        if (!ready_.wait(lock, stop, [&] { return !queue_.empty(); })) return;
        if (stop.stop_requested()) return;
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        job->promise.set_value(make_(*job));
      } catch (...) {
        job->promise.set_exception(std::current_exception());
      }
    }
  }

  std::function<Batch(const Job&)> make_;
  std::mutex mutex_;
  std::condition_variable_any ready_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::vector<std::jthread> threads_;  // last: they end before the rest goes
};

}  // namespace

struct Loader::State {
  const Dataset& dataset;
  DataInfo info;
  LoaderConfig config;
  RngKey key;
  std::mutex mutex;  // of plans
  std::map<i64, std::shared_ptr<const Plan>> plans;
  std::deque<std::pair<Cursor, std::future<Batch>>> ahead;
  std::unique_ptr<Workers> workers;

  State(const Dataset& d, const DataInfo& i, LoaderConfig c, RngKey k) : dataset(d), info(i), config(c), key(k) { check(); }

  void check() const {
    const auto require = [](bool ok, const std::string& what) {
      if (!ok) throw ConfigError("loader: " + what);
    };
    require(config.batch_size >= 1, fmt::format("batch_size: got {}, expected at least 1", config.batch_size));
    require(config.token_budget >= 0 && config.bucket >= 0 && config.prefetch >= 0,
            "token_budget, bucket and prefetch: expected at least 0");
    require(config.ranks >= 1 && config.rank >= 0 && config.rank < config.ranks,
            fmt::format("rank: got {} of {}", config.rank, config.ranks));
    if (dataset.size() == 0) throw DataError("loader: the data set has no sample");
    if (config.token_budget == 0) return;
    for (i64 s = 0; s < dataset.size(); ++s)
      if (dataset.length(s) > config.token_budget)
        throw DataError(fmt::format("{}: has {} positions, more than the token budget of {} for a whole batch", dataset.describe(s),
                                    dataset.length(s), config.token_budget));
  }

  std::vector<i64> order(i64 epoch) const {
    std::vector<i64> out(static_cast<std::size_t>(dataset.size()));
    std::iota(out.begin(), out.end(), i64{0});
    if (!config.shuffle) return out;
    const KeyedPermutation permutation(out.size(), key.fold_in("order").fold_in(static_cast<std::uint64_t>(epoch)));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<i64>(permutation(i));
    return out;
  }

  bool buckets() const { return config.bucket > 0 || config.token_budget > 0; }

  void sort_windows(std::vector<i64>& samples) const {
    const auto window = static_cast<std::size_t>((config.bucket > 0 ? config.bucket : kDefaultBucket) * config.batch_size);
    for (std::size_t at = 0; at < samples.size(); at += window) {
      const auto begin = samples.begin() + static_cast<std::ptrdiff_t>(at);
      std::stable_sort(begin, begin + static_cast<std::ptrdiff_t>(std::min(window, samples.size() - at)),
                       [&](i64 a, i64 b) { return dataset.length(a) < dataset.length(b); });
    }
  }

  Plan cut(const std::vector<i64>& samples) const {
    Plan plan;
    i64 longest = 0;
    for (i64 s : samples) {
      const i64 with = std::max(longest, dataset.length(s));
      const bool full = plan.empty() || static_cast<i64>(plan.back().size()) == config.batch_size ||
                        (config.token_budget > 0 && with * (static_cast<i64>(plan.back().size()) + 1) > config.token_budget);
      if (full) plan.emplace_back();
      longest = full ? dataset.length(s) : with;
      plan.back().push_back(s);
    }
    return plan;
  }

  std::shared_ptr<const Plan> plan(i64 epoch) {
    std::lock_guard lock(mutex);
    auto& slot = plans[epoch];
    if (slot) return slot;
    std::vector<i64> samples = order(epoch);
    if (buckets()) sort_windows(samples);
    Plan fresh = cut(samples);
    if (buckets() && config.shuffle) shuffle(fresh, key.fold_in("batches").fold_in(static_cast<std::uint64_t>(epoch)));
    const auto result = slot = std::make_shared<const Plan>(std::move(fresh));
    while (plans.size() > kKeptPlans) plans.erase(plans.begin()->first == epoch ? std::prev(plans.end()) : plans.begin());
    return result;
  }

  // Training gives every rank equally many batches (a rest smaller than `ranks` is left out); otherwise none is left
  // out.
  i64 count(const Plan& p) const {
    const auto all = static_cast<i64>(p.size());
    if (!config.shuffle) return std::max<i64>(0, (all - config.rank + config.ranks - 1) / config.ranks);
    if (all < config.ranks) throw DataError(fmt::format("loader: an epoch has {} batches, fewer than the {} processes", all, config.ranks));
    return all / config.ranks;
  }

  Cursor settled(Cursor c) {
    if (c.epoch < 0 || c.batch < 0) throw DataError(fmt::format("loader: there is no batch {} of epoch {}", c.batch, c.epoch));
    if (c.batch < count(*plan(c.epoch))) return c;
    c = {c.epoch + 1, 0};
    if (count(*plan(c.epoch)) == 0) throw DataError(fmt::format("loader: no batch for process {} of {}", config.rank, config.ranks));
    return c;
  }

  std::vector<i64> rows(Cursor c) {
    const auto p = plan(c.epoch);
    if (c.batch < 0 || c.batch >= count(*p)) throw DataError(fmt::format("loader: epoch {} has no batch {}", c.epoch, c.batch));
    return (*p)[static_cast<std::size_t>(c.batch * config.ranks + config.rank)];
  }

  Batch make(Cursor c, const std::vector<i64>& rows) const {
    const RngKey epoch_key = key.fold_in("augment").fold_in(static_cast<std::uint64_t>(c.epoch));
    std::vector<Sample> samples;
    for (i64 row : rows) {
      const auto augment = config.augment ? std::optional(epoch_key.fold_in(static_cast<std::uint64_t>(row))) : std::nullopt;
      samples.push_back(dataset.get(row, augment));
    }
    return collate(samples, rows, info);
  }

  void request(Cursor c) {
    auto job = std::make_shared<Job>(Job{c, rows(c), {}});
    ahead.emplace_back(c, job->promise.get_future());
    workers->add(std::move(job));
  }

  // Keeps batch c and the `prefetch` batches after it requested.
  void look_ahead(Cursor c) {
    if (!workers)
      workers = std::make_unique<Workers>(std::min(config.prefetch, kMostThreads), [this](const Job& j) { return make(j.cursor, j.rows); });
    if (!ahead.empty() && ahead.front().first != c) {
      workers->drop_waiting();
      ahead.clear();
    }
    if (ahead.empty()) request(c);
    while (static_cast<int>(ahead.size()) <= config.prefetch) {
      const Cursor last = ahead.back().first;
      request(settled({last.epoch, last.batch + 1}));
    }
  }
};

Loader::Loader(const Dataset& dataset, const DataInfo& info, LoaderConfig config, RngKey key)
    : state_(std::make_unique<State>(dataset, info, config, key)) {}
Loader::~Loader() = default;

Batch Loader::next(Cursor& cursor) {
  State& s = *state_;
  const Cursor now = s.settled(cursor);
  Batch batch;
  if (s.config.prefetch == 0) {
    batch = s.make(now, s.rows(now));
  } else {
    s.look_ahead(now);
    std::future<Batch> result = std::move(s.ahead.front().second);
    s.ahead.pop_front();
    batch = result.get();
  }
  cursor = now.batch + 1 < s.count(*s.plan(now.epoch)) ? Cursor{now.epoch, now.batch + 1} : Cursor{now.epoch + 1, 0};
  return batch;
}

i64 Loader::batches(i64 epoch) const { return state_->count(*state_->plan(epoch)); }

std::vector<i64> Loader::indices(Cursor cursor) const { return state_->rows(cursor); }

double Loader::padding_share(i64 epoch) const {
  double all = 0, real = 0;
  for (i64 b = 0; b < batches(epoch); ++b) {
    i64 longest = 0;
    const std::vector<i64> rows = indices({epoch, b});
    for (i64 row : rows) {
      longest = std::max(longest, state_->dataset.length(row));
      real += static_cast<double>(state_->dataset.length(row));
    }
    all += static_cast<double>(longest) * static_cast<double>(rows.size());
  }
  return all > 0 ? 1.0 - real / all : 0.0;
}

Cursor Loader::largest_batch(i64 epoch) const {
  Cursor best{epoch, 0};
  i64 most = -1;
  for (i64 b = 0; b < batches(epoch); ++b) {
    const std::vector<i64> rows = indices({epoch, b});
    i64 longest = 0;
    for (i64 row : rows) longest = std::max(longest, state_->dataset.length(row));
    const i64 positions = longest * static_cast<i64>(rows.size());
    if (positions > most) {
      most = positions;
      best.batch = b;
    }
  }
  return best;
}

}  // namespace tapeformer
