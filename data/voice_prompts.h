// voice_prompts.h: a sound set that every Debian machine can install: the prompts of the Asterisk telephone exchange in
// five languages (packages asterisk-core-sounds-{en,es,fr,it,ru}-wav); the language is the label. One speaker a
// language, so telling the languages apart is telling the speakers apart.
#pragma once
#include <string>

#include "core/shape.h"

namespace tapeformer {

struct PromptCounts {
  i64 train = 0, valid = 0, test = 0;
  i64 empty = 0;  // files without a sample, left out
};
// Writes <out_dir>/{train,valid,test}.tsv: path (absolute), label, prompt. The same prompt is in the same part for
// every language. IoError when none of the packages is installed.
PromptCounts voice_prompts(const std::string& out_dir);

}  // namespace tapeformer
