#include "core/hdf5_file.h"
#include "data/dataset.h"
#include "data/phone_labels.h"
#include "sound_writer.h"
#include "temp_dir.h"

namespace tapeformer {
namespace {

struct AudioData : ::testing::Test {
  TempDir dir;
  AudioData() {
    std::filesystem::create_directories(dir / "wav");
    for (int i = 0; i < 4; ++i)
      write_sound(dir / ("wav/" + std::to_string(i) + ".wav"), sine(300 + 400 * i, 8000, 2000 + 400 * static_cast<std::size_t>(i)), 8000);
  }
  ConfigNode section(const std::string& rows, const std::string& more = "", const std::string& header = "path\tlabel\tspeaker\n") {
    return ConfigNode::parse("type: audio\ntrain: " + dir.write("train.tsv", header + rows) + "\nsample_rate: 8000\n" + more, "run.yaml");
  }
  std::string error(const std::string& rows, const std::string& more = "") {
    return message_of([&] { load_data(section(rows, more)); });
  }
};

const std::string kRows = "wav/0.wav\tlow\tann\nwav/1.wav\tlow\tbob\nwav/2.wav\thigh\tann\nwav/3.wav\thigh\tbob\n";

bool equal(const Sample& a, const Sample& b) {
  return a.label == b.label && a.frame_labels == b.frame_labels && a.features.to_vector() == b.features.to_vector();
}

TEST_F(AudioData, LoadsClips) {
  const DataSet set = load_data(section(kRows));
  const DataInfo& info = set.preprocessor->info();
  EXPECT_EQ(info.labels, (std::vector<std::string>{"high", "low"}));
  EXPECT_EQ(info.feature_dim, 40);
  EXPECT_EQ(info.max_length, 41);
  EXPECT_EQ(set.train->size(), 4);
  EXPECT_EQ(set.train->length(0), 26);
  const Sample s = set.train->get(0, {});
  EXPECT_EQ(s.features.shape(), (Shape{26, 40}));
  EXPECT_EQ(s.label, 1);
  EXPECT_EQ(set.train->describe(2), (dir / "train.tsv") + ":4");
  double sum = 0, squares = 0, count = 0;
  for (i64 i = 0; i < 4; ++i)
    for (double x : set.train->get(i, {}).features.to_vector()) {
      sum += x;
      squares += x * x;
      ++count;
    }
  EXPECT_NEAR(sum / count, 0, 1e-4);
  EXPECT_NEAR(squares / count, 1, 1e-3);
  EXPECT_TRUE(equal(set.preprocessor->sample_of_file(dir / "wav/0.wav"), [&] {
    Sample t = s;
    t.label = kIgnoreLabel;
    return t;
  }()));
  EXPECT_TRUE(contains(message_of([&] { set.preprocessor->sample_of_line("x"); }), "expected a file and not a line"));
}

TEST_F(AudioData, UtteranceNormalisationStackingAndLongestLength) {
  const DataSet set = load_data(section(kRows, "normalise: utterance\nstack: 3\nmax_seconds: 0.3"));
  EXPECT_EQ(set.preprocessor->info().feature_dim, 120);
  EXPECT_EQ(set.preprocessor->info().max_length, 11);  // 31 frames by threes
  EXPECT_EQ(set.train->get(3, {}).features.shape(), (Shape{11, 120}));
  EXPECT_EQ(set.train->length(0), 9);
  const DataSet plain = load_data(section(kRows, "normalise: utterance\nmax_seconds: 0.3"));
  const std::vector<double> a = set.train->get(0, {}).features.to_vector(), b = plain.train->get(0, {}).features.to_vector();
  for (std::size_t i = 0; i < b.size(); ++i) EXPECT_EQ(a[i], b[i]);
  double sum = 0;
  for (std::size_t t = 0; t < 26; ++t) sum += b[t * 40 + 7];
  EXPECT_NEAR(sum, 0, 1e-3);
}

TEST_F(AudioData, SpeakersHeldOut) {
  const std::string file = dir.write("all.tsv", "path\tlabel\tspeaker\n" + kRows);
  const DataSet set = load_data(ConfigNode::parse("type: audio\nsample_rate: 8000\ntrain: {files: [" + file +
                                                      "], exclude: {speaker: ann}}\ntest: {files: " + file + ", where: {speaker: ann}}",
                                                  "y"));
  EXPECT_EQ(set.train->size(), 2);
  EXPECT_EQ(set.test->size(), 2);
  EXPECT_EQ(set.test->describe(1), file + ":4");
}

TEST_F(AudioData, AugmentationOnlyWithAKey) {
  const DataSet set =
      load_data(section(kRows, "augment: {time_masks: 2, freq_masks: 2, time_shift: 2, freq_warp: 0.1, gain: 0.2, noise: 0.1}"));
  const DataSet plain = load_data(section(kRows));
  EXPECT_TRUE(equal(set.train->get(1, {}), plain.train->get(1, {})));
  EXPECT_TRUE(equal(set.train->get(1, RngKey(1)), set.train->get(1, RngKey(1))));
  EXPECT_FALSE(equal(set.train->get(1, RngKey(1)), set.train->get(1, RngKey(2))));
  EXPECT_EQ(set.train->get(1, RngKey(1)).length(), set.train->length(1));
  EXPECT_TRUE(equal(plain.train->get(1, RngKey(1)), plain.train->get(1, {})));
}

TEST_F(AudioData, ProblemsNameManifestAndRow) {
  write_sound(dir / "wav/short.wav", sine(300, 8000, 150), 8000);
  write_sound(dir / "wav/none.wav", {}, 8000);
  dir.write("wav/text.wav", "no sound");
  const std::string bad =
      kRows + "wav/gone.wav\tlow\tx\nwav/short.wav\tlow\tx\nwav/none.wav\tlow\tx\nwav/text.wav\tlow\tx\nwav/0.wav\t\tx\n";
  const std::string message = error(bad);
  EXPECT_TRUE(contains(message, "5 of 9 rows cannot be used"));
  EXPECT_TRUE(contains(message, "train.tsv:6: " + (dir / "wav/gone.wav") + ": no such file"));
  EXPECT_TRUE(contains(message, "train.tsv:7: " + (dir / "wav/short.wav") + ": lasts 18.8 ms, shorter than one window"));
  EXPECT_TRUE(contains(message, "train.tsv:8: " + (dir / "wav/none.wav") + ": lasts 0.0 ms"));
  EXPECT_TRUE(contains(message, "train.tsv:9: " + (dir / "wav/text.wav") + ": cannot be read as sound"));
  EXPECT_TRUE(contains(message, "train.tsv:10: the label (column 'label') is empty"));
  EXPECT_EQ(load_data(section(bad, "on_error: skip\non_empty: skip")).train->size(), 4);
  EXPECT_TRUE(contains(error(""), "there is a header and no row below it"));
  const std::string valid = "valid: " + dir.write("valid.tsv", "path\tlabel\nwav/0.wav\tlo\n");
  EXPECT_TRUE(contains(error(kRows, valid), "valid.tsv:2: label 'lo' does not occur in the training part"));
}

TEST_F(AudioData, ConfigMistakes) {
  EXPECT_TRUE(contains(error(kRows, "columns: {frames: speaker}\nstack: 2"), "data.stack: got 2, expected 1 with frame labels"));
  EXPECT_TRUE(contains(error(kRows, "silence: sil"), "data.silence: is for frame labels"));
  EXPECT_TRUE(contains(error(kRows, "features: {type: mfcc}\naugment: {freq_masks: 1}"), "need features.type: log_mel"));
  EXPECT_TRUE(contains(error(kRows, "features: {n_mel: 4}"), "(did you mean 'n_mels'?)"));
  EXPECT_TRUE(contains(error(kRows, "columns: {label: digit}"), "no column 'digit', the header has: path, label, speaker"));
  EXPECT_TRUE(contains(explain_data_config("audio"), "augment.time_masks"));
  const ConfigNode resolved = resolve_data_config(section(kRows));
  EXPECT_EQ(resolve_data_config(ConfigNode::parse(resolved.yaml(), "y")).json(), resolved.json());
}

TEST_F(AudioData, SavedPreprocessorReadsSound) {
  const DataSet set = load_data(section(kRows, "features: {type: mfcc, deltas: 1}\nstack: 2"));
  {
    Hdf5File file = Hdf5File::create(dir / "p.h5");
    set.preprocessor->save(file, "/data");
    file.close();
  }
  const auto loaded = load_preprocessor(Hdf5File::open(dir / "p.h5"), "/data");
  EXPECT_TRUE(equal(loaded->sample_of_file(dir / "wav/3.wav"), set.preprocessor->sample_of_file(dir / "wav/3.wav")));
  EXPECT_EQ(loaded->info().max_length, set.preprocessor->info().max_length);
  EXPECT_TRUE(equal(loaded->dataset(dir / "train.tsv", Part::Test)->get(2, {}), set.train->get(2, {})));
}

TEST_F(AudioData, CacheGivesTheSameAndNoticesChanges) {
  const std::string cache = "cache_dir: " + (dir / "cache");
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(dir / "cache"), std::filesystem::directory_iterator());
  };
  const DataSet first = load_data(section(kRows, cache)), second = load_data(section(kRows, cache)), without = load_data(section(kRows));
  EXPECT_EQ(files(), 1);
  for (i64 i = 0; i < 4; ++i) {
    EXPECT_TRUE(equal(first.train->get(i, {}), second.train->get(i, {})));
    EXPECT_TRUE(equal(first.train->get(i, {}), without.train->get(i, {})));
  }
  load_data(section(kRows, cache + "\nfeatures: {n_mels: 20}"));
  EXPECT_EQ(files(), 2);
  write_sound(dir / "wav/0.wav", sine(900, 8000, 2000), 8000);
  EXPECT_FALSE(equal(load_data(section(kRows, cache)).train->get(0, {}), first.train->get(0, {})));
  EXPECT_EQ(files(), 3);
  for (const auto& entry : std::filesystem::directory_iterator(dir / "cache")) std::ofstream(entry.path()) << "damaged";
  EXPECT_EQ(load_data(section(kRows, cache)).train->size(), 4);
}

struct FrameLabels : AudioData {
  const std::string header = "path\tphn\n";
  FrameLabels() { dir.write("wav/0.phn", "0 400 h#\n400 1000 aa\n1000 1500 b\n"); }  // 2000 samples at 8 kHz
};

TEST_F(FrameLabels, FrameHasThePhoneAtItsCentre) {
  const DataSet set = load_data(section("wav/0.wav\twav/0.phn\n", "columns: {frames: phn}\nsilence: h#", header));
  const DataInfo& info = set.preprocessor->info();
  EXPECT_EQ(info.target, DataInfo::Target::Frame);
  EXPECT_EQ(info.labels, (std::vector<std::string>{"aa", "b", "h#"}));
  const Sample s = set.train->get(0, {});
  ASSERT_EQ(s.frame_labels.size(), 26u);
  for (std::size_t t = 0; t < 26; ++t) {
    const std::size_t sample = 80 * t;
    EXPECT_EQ(s.frame_labels[t], sample < 400 ? 2 : sample < 1000 ? 0 : sample < 1500 ? 1 : 2) << t;
  }
}

TEST_F(FrameLabels, SamplesAreAtTheFilesOwnRate) {
  const DataSet set = load_data(ConfigNode::parse(
      "type: audio\ntrain: " + dir.write("train.tsv", header + "wav/0.wav\twav/0.phn\n") + "\nsample_rate: 16000\ncolumns: {frames: phn}",
      "y"));
  const Sample s = set.train->get(0, {});
  EXPECT_EQ(s.frame_labels.at(4), 2);  // centre 640 of 16 kHz = 320
  EXPECT_EQ(s.frame_labels.at(5), 0);  // 400 belongs to the phone that begins there
  EXPECT_EQ(s.frame_labels.at(18), 1);
  EXPECT_EQ(s.frame_labels.at(19), kIgnoreLabel);  // 1520 is after the last end, and no silence is named
}

TEST_F(FrameLabels, FoldingAndUnknownPhones) {
  const std::string table = dir.write("phones.tsv", "phone\tclass\th\naa\tvowel\t1\nb\tstop\t1\nh#\tsil\t1\np\tstop\t1\n");
  const std::string keys = "columns: {frames: phn}\nsilence: h#\nfolding: {file: " + table + ", to: class}";
  const DataSet set = load_data(section("wav/0.wav\twav/0.phn\n", keys, header));
  EXPECT_EQ(set.preprocessor->info().labels, (std::vector<std::string>{"sil", "stop", "vowel"}));
  EXPECT_EQ(set.train->get(0, {}).frame_labels.at(6), 2);
  dir.write("wav/1.phn", "0 2000 zz\n");
  EXPECT_TRUE(contains(message_of([&] { load_data(section("wav/0.wav\twav/0.phn\nwav/1.wav\twav/1.phn\n", keys, header)); }),
                       "train.tsv:3: phone 'zz' is not in"));
  EXPECT_TRUE(contains(message_of([&] { load_data(section("wav/0.wav\twav/none.phn\n", keys, header)); }), "none.phn: no such file"));
  EXPECT_TRUE(
      contains(message_of([&] { load_data(section("wav/0.wav\twav/0.phn\n", keys + "\nsample_rate: 8000", header)); }), "stands twice"));
}

TEST_F(FrameLabels, DamagedAlignments) {
  const auto complaint = [&](const std::string& text) { return message_of([&] { read_phones(dir.write("x.phn", text)); }); };
  EXPECT_TRUE(contains(complaint("0 10 a\n10 b\n"), "x.phn:2: got '10 b', expected a start sample, an end sample and a phone"));
  EXPECT_TRUE(contains(complaint("0 10 a\n5 20 b\n"), "x.phn:2: the segment 5 to 20 runs backwards or overlaps the one before"));
  EXPECT_TRUE(contains(complaint("\n"), "x.phn:1: holds no segment"));
}

}  // namespace
}  // namespace tapeformer
