// unicode.h: UTF-8 text, by way of utf8proc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tapeformer {

constexpr std::size_t kValid = static_cast<std::size_t>(-1);
std::size_t first_invalid_utf8(std::string_view);                // byte position of the first fault, kValid when there is none
std::int32_t next_codepoint(std::string_view, std::size_t& at);  // moves `at` on; a faulty byte gives U+FFFD
std::string to_utf8(std::int32_t codepoint);

enum class CharKind { Space, Letter, Digit, Ideograph, Other };  // Letter includes combining marks; Ideograph: scripts without blanks
CharKind kind_of(std::int32_t codepoint);

std::string lowercase(std::string_view);
std::string normalise_nfc(std::string_view);
bool is_blank(std::string_view);  // nothing but white space, controls and invisible marks

}  // namespace tapeformer
