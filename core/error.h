// error.h: what goes wrong, said once and clearly. User mistakes throw a subclass of Error; broken invariants are
// TAPEFORMER_ASSERT and can never be reached from user input.
#pragma once
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tapeformer {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
class ShapeError : public Error {  // a tensor has the wrong shape or type
  using Error::Error;
};
class ConfigError : public Error {  // a configuration key, value or combination
  using Error::Error;
};
class IoError : public Error {  // a file that is missing, damaged or cannot be written
  using Error::Error;
};
class DataError : public Error {  // the content of a data set
  using Error::Error;
};
class MemoryError : public Error {  // more than this machine has
  using Error::Error;
};
class NumericError : public Error {  // NaN or infinity
  using Error::Error;
};

// The candidate closest to `word` by edit distance, or "" when none is close enough to be a likely misspelling.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// "a, b, c"
std::string join(std::span<const std::string> words, std::string_view separator = ", ");

// " (did you mean 'full'?)" or "".
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

[[noreturn]] void assertion_failed(const char* condition, const char* message, const char* file, int line);

}  // namespace tapeformer

#define TAPEFORMER_ASSERT(condition, message) \
  ((condition) ? void(0) : ::tapeformer::assertion_failed(#condition, message, __FILE__, __LINE__))
