// audio_file.h: sound files of any format that libsndfile reads, as mono samples at one rate.
#pragma once
#include <string>
#include <vector>

#include "core/shape.h"

namespace tapeformer {

struct Audio {
  std::vector<float> samples;  // -1 to 1, mean of the channels
  i64 rate = 0;                // Hz
};
Audio read_audio(const std::string& path);  // IoError: missing, or no sound file; DataError: not a finite number
Audio resample(Audio audio, i64 rate);      // libsamplerate, sinc of medium quality; the same when the rate fits
i64 audio_frames(const std::string& path);  // samples a channel, from the header

}  // namespace tapeformer
