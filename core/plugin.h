// plugin.h: code that joins at run time. A shared library whose files register themselves (an attention variant, a model, an optimizer)
// adds its names to the registries when it is loaded.
#pragma once
#include <string>

namespace tapeformer {

// Throws ConfigError where two files took one name.
void check_registrations();

// Loads a shared library for the life of the program. IoError when it is not whole, cannot be loaded or lacks symbols; ConfigError when it
// registers nothing or a name that is taken.
void load_plugin(const std::string& path);

}  // namespace tapeformer
