// plugin.h: code that joins at run time. A shared library whose files register themselves (an attention variant, a model, an optimizer)
// adds its names to the registries when it is loaded.
#pragma once
#include <string>

namespace tapeformer {

// Loads a shared library for the life of the program. IoError when it cannot be loaded or lacks symbols.
void load_plugin(const std::string& path);

}  // namespace tapeformer
