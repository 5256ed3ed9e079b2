#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "temp_dir.h"

namespace tapeformer {
namespace {

// Sample i has the token i + 3 as often as its length says; augmentation adds one random token's worth to the label.
class Numbers final : public Dataset {
 public:
  explicit Numbers(i64 n) : n_(n) {}
  i64 size() const override { return n_; }
  i64 length(i64 i) const override { return 1 + (i * 7919) % 23; }
  Sample get(i64 i, std::optional<RngKey> key) const override {
    if (i == bad) throw DataError("number 13 is missing");
    Sample s;
    s.tokens.assign(static_cast<std::size_t>(length(i)), i + 3);
    s.label = key ? static_cast<i64>(key->below(0, 1000000)) : i;
    return s;
  }
  std::string describe(i64 i) const override { return "numbers:" + std::to_string(i); }
  i64 bad = -1;

 private:
  i64 n_;
};

DataInfo info() {
  DataInfo i;
  i.vocab = 1000;
  i.labels = {"a", "b"};
  return i;
}

LoaderConfig config(i64 batch, i64 budget, i64 bucket, int prefetch) {
  LoaderConfig c;
  c.batch_size = batch;
  c.token_budget = budget;
  c.bucket = bucket;
  c.prefetch = prefetch;
  return c;
}

bool same(const Batch& a, const Batch& b) {
  return a.rows == b.rows && a.tokens.to_vector() == b.tokens.to_vector() && a.labels.to_vector() == b.labels.to_vector() &&
         a.mask.to_vector() == b.mask.to_vector();
}

std::vector<Batch> take(Loader& loader, Cursor& cursor, int n) {
  std::vector<Batch> out;
  for (int i = 0; i < n; ++i) out.push_back(loader.next(cursor));
  return out;
}

const std::vector<LoaderConfig> kConfigs{config(8, 0, 0, 0), config(8, 0, 4, 0), config(16, 90, 0, 0), config(5, 60, 3, 0)};

TEST(Loader, EveryEpochHasEverySampleOnce) {
  const Numbers data(101);
  for (const LoaderConfig& c : kConfigs) {
    Loader loader(data, info(), c, RngKey(3));
    std::vector<i64> orders[2];
    for (i64 epoch : {0, 1})
      for (i64 b = 0; b < loader.batches(epoch); ++b)
        for (i64 row : loader.indices({epoch, b})) orders[epoch].push_back(row);
    EXPECT_NE(orders[0], orders[1]);
    for (auto& order : orders) {
      std::sort(order.begin(), order.end());
      for (i64 i = 0; i < 101; ++i) EXPECT_EQ(order.at(static_cast<std::size_t>(i)), i);
    }
  }
}

TEST(Loader, SameBatchesForAnyPrefetch) {
  const Numbers data(101);
  for (LoaderConfig c : kConfigs) {
    c.prefetch = 0;
    Loader plain(data, info(), c, RngKey(3));
    Cursor cursor;
    const std::vector<Batch> expected = take(plain, cursor, 40);
    for (int prefetch : {1, 2, 4, 9}) {
      c.prefetch = prefetch;
      Loader loader(data, info(), c, RngKey(3));
      Cursor at;
      const std::vector<Batch> got = take(loader, at, 40);
      EXPECT_EQ(at, cursor);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << i;
    }
  }
}

TEST(Loader, ResumesAnywhere) {
  const Numbers data(61);
  for (LoaderConfig c : kConfigs) {
    Loader plain(data, info(), c, RngKey(4));
    std::vector<Cursor> cursors;
    std::vector<Batch> expected;
    Cursor cursor;
    for (int i = 0; i < 25; ++i) {
      cursors.push_back(cursor);
      expected.push_back(plain.next(cursor));
    }
    c.prefetch = 3;
    Loader jumping(data, info(), c, RngKey(4));
    for (std::size_t i : {7u, 8u, 2u, 24u, 0u, 1u, 13u}) {
      Cursor from = cursors[i];
      EXPECT_TRUE(same(jumping.next(from), expected[i])) << i;
      Loader fresh(data, info(), c, RngKey(4));
      from = cursors[i];
      EXPECT_TRUE(same(fresh.next(from), expected[i])) << i;
    }
  }
}

TEST(Loader, CursorMovesIntoTheNextEpoch) {
  const Numbers data(20);
  Loader loader(data, info(), config(8, 0, 0, 2), RngKey(1));
  EXPECT_EQ(loader.batches(0), 3);
  Cursor c{0, 2};
  EXPECT_EQ(loader.next(c).size(), 4);
  EXPECT_EQ(c, (Cursor{1, 0}));
  Cursor past{0, 3};  // one past the end is the beginning of the next epoch
  EXPECT_TRUE(same(loader.next(past), loader.next(c)));
  EXPECT_EQ(past, c);
}

TEST(Loader, TokenBudgetHoldsAndBucketingSavesPadding) {
  const Numbers data(500);
  Loader loader(data, info(), config(64, 128, 0, 0), RngKey(1)), plain(data, info(), config(16, 0, 0, 0), RngKey(1));
  EXPECT_LT(loader.padding_share(0), 0.1);
  EXPECT_GT(plain.padding_share(0), 0.3);
  Cursor c;
  i64 most = 0;
  for (i64 b = 0; b < loader.batches(0); ++b) {
    const Batch batch = loader.next(c);
    most = std::max(most, batch.size() * batch.length());
    EXPECT_LE(batch.size() * batch.length(), 128);
    EXPECT_LE(batch.size(), 64);
  }
  Cursor largest = loader.largest_batch(0);
  const Batch batch = loader.next(largest);
  EXPECT_EQ(batch.size() * batch.length(), most);
}

TEST(Loader, BatchesAreInRandomOrderOfLength) {
  const Numbers data(500);
  Loader loader(data, info(), config(10, 0, 50, 0), RngKey(1));
  std::vector<i64> lengths;
  for (i64 b = 0; b < loader.batches(0); ++b) lengths.push_back(data.length(loader.indices({0, b})[0]));
  EXPECT_FALSE(std::is_sorted(lengths.begin(), lengths.end()));
}

TEST(Loader, WithoutShufflingInOrder) {
  const Numbers data(10);
  LoaderConfig c = config(4, 0, 0, 1);
  c.shuffle = c.augment = false;
  Loader loader(data, info(), c, RngKey(1));
  Cursor at;
  EXPECT_EQ(loader.next(at).rows, (std::vector<i64>{0, 1, 2, 3}));
  EXPECT_EQ(loader.next(at).labels.to_vector(), (std::vector<double>{4, 5, 6, 7}));
}

TEST(Loader, RanksShareTheEpoch) {
  const Numbers data(101);
  for (bool shuffle : {true, false}) {
    std::multiset<i64> seen;
    std::set<i64> counts;
    for (i64 rank = 0; rank < 3; ++rank) {
      LoaderConfig c = config(5, 0, 2, 0);
      c.shuffle = shuffle;
      c.rank = rank;
      c.ranks = 3;
      Loader loader(data, info(), c, RngKey(1));
      counts.insert(loader.batches(0));
      for (i64 b = 0; b < loader.batches(0); ++b)
        for (i64 row : loader.indices({0, b})) seen.insert(row);
    }
    EXPECT_EQ(std::set<i64>(seen.begin(), seen.end()).size(), seen.size());
    if (shuffle)
      EXPECT_EQ(counts.size(), 1u);
    else
      EXPECT_EQ(seen.size(), 101u);
  }
}

TEST(Loader, AugmentationDependsOnEpochAndSampleOnly) {
  const Numbers data(12);
  Loader loader(data, info(), config(12, 0, 0, 0), RngKey(1)), small(data, info(), config(12, 0, 4, 2), RngKey(1));
  const auto labels = [](Loader& l, i64 epoch) {
    Cursor c{epoch, 0};
    const Batch b = l.next(c);
    std::map<i64, double> out;
    for (i64 i = 0; i < b.size(); ++i) out[b.rows[static_cast<std::size_t>(i)]] = b.labels.to_vector()[static_cast<std::size_t>(i)];
    return out;
  };
  EXPECT_EQ(labels(loader, 0), labels(small, 0));
  EXPECT_NE(labels(loader, 0), labels(loader, 1));
}

TEST(Loader, ErrorsOfTheDataReachTheCaller) {
  Numbers data(40);
  data.bad = 13;
  for (int prefetch : {0, 3}) {
    LoaderConfig c = config(4, 0, 0, prefetch);
    c.shuffle = false;
    Loader loader(data, info(), c, RngKey(1));
    Cursor at;
    take(loader, at, 3);
    EXPECT_EQ(message_of([&] { loader.next(at); }), "number 13 is missing");
    EXPECT_EQ(at, (Cursor{0, 3}));
    EXPECT_EQ(message_of([&] { loader.next(at); }), "number 13 is missing");
    at = {0, 4};
    EXPECT_EQ(loader.next(at).rows[0], 16);
  }
}

TEST(Loader, Mistakes) {
  const Numbers data(40), none(0);
  EXPECT_TRUE(contains(message_of([&] { Loader(data, info(), config(0, 0, 0, 0), RngKey(1)); }), "batch_size: got 0, expected at least 1"));
  EXPECT_TRUE(contains(message_of([&] { Loader(none, info(), config(4, 0, 0, 0), RngKey(1)); }), "the data set has no sample"));
  EXPECT_TRUE(contains(message_of([&] { Loader(data, info(), config(4, 10, 0, 0), RngKey(1)); }), "more than the token budget of 10"));
}

TEST(Collate, PadsAtTheEnd) {
  Sample a, b;
  a.tokens = {5, 6, 7};
  a.label = 1;
  b.tokens = {8};
  const Batch batch = collate({a, b}, {4, 2}, info());
  EXPECT_EQ(batch.tokens.to_vector(), (std::vector<double>{5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(batch.mask.to_vector(), (std::vector<double>{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(batch.labels.to_vector(), (std::vector<double>{1, kIgnoreLabel}));
  EXPECT_EQ(batch.real_tokens(), 4);
  EXPECT_FALSE(batch.features.defined());
}

TEST(Collate, FeaturesAndFrameLabels) {
  DataInfo i;
  i.input = DataInfo::Input::Features;
  i.target = DataInfo::Target::Frame;
  i.feature_dim = 2;
  Sample a, b;
  a.features = Tensor::from<float>({1, 2}, {1, 2});
  a.frame_labels = {3};
  b.features = Tensor::from<float>({3, 4, 5, 6}, {2, 2});
  b.frame_labels = {0, kIgnoreLabel};
  const Batch batch = collate({a, b}, {0, 1}, i);
  EXPECT_EQ(batch.features.to_vector(), (std::vector<double>{1, 2, 0, 0, 3, 4, 5, 6}));
  EXPECT_EQ(batch.labels.to_vector(), (std::vector<double>{3, kIgnoreLabel, 0, kIgnoreLabel}));
}

}  // namespace
}  // namespace tapeformer
