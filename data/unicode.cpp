#include "data/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

namespace tapeformer {
namespace {

bool is_ascii(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

bool is_ideograph(std::int32_t c) {
  return (c >= 0x2E80 && c <= 0x9FFF && !(c >= 0x3000 && c <= 0x3004)) || (c >= 0xF900 && c <= 0xFAFF) || c >= 0x20000;
}

const utf8proc_uint8_t* bytes_of(std::string_view text, std::size_t at) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t c;
    const auto used = utf8proc_iterate(bytes_of(text, at), static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    if (used <= 0) return at;
    at += static_cast<std::size_t>(used);
  }
  return kValid;
}

std::int32_t next_codepoint(std::string_view text, std::size_t& at) {
  const unsigned char first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) {
    ++at;
    return first;
  }
  utf8proc_int32_t c;
  const auto used = utf8proc_iterate(bytes_of(text, at), static_cast<utf8proc_ssize_t>(text.size() - at), &c);
  at += used > 0 ? static_cast<std::size_t>(used) : 1;
  return used > 0 ? c : 0xFFFD;
}

std::string to_utf8(std::int32_t codepoint) {
  utf8proc_uint8_t buffer[4];
  const auto size = utf8proc_encode_char(codepoint, buffer);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(size));
}

CharKind kind_of(std::int32_t c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return CharKind::Letter;
  if (c >= '0' && c <= '9') return CharKind::Digit;
  if (c == ' ' || (c >= 9 && c <= 13) || c == 0x85) return CharKind::Space;
  if (c < 0x80) return CharKind::Other;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharKind::Space;
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return is_ideograph(c) ? CharKind::Ideograph : CharKind::Letter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharKind::Letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharKind::Digit;
    default:
      return CharKind::Other;
  }
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[at]);
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      ++at;
    } else {
      out += to_utf8(utf8proc_tolower(next_codepoint(text, at)));
    }
  }
  return out;
}

std::string normalise_nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const auto size = utf8proc_map(bytes_of(text, 0), static_cast<utf8proc_ssize_t>(text.size()), &raw,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  return size < 0 ? std::string(text) : std::string(reinterpret_cast<char*>(raw), static_cast<std::size_t>(size));
}

bool is_blank(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::int32_t c = next_codepoint(text, at);
    const auto category = utf8proc_category(c);
    if (kind_of(c) != CharKind::Space && category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF) return false;
  }
  return true;
}

}  // namespace tapeformer
