// hdf5_text.h: text and lists of text in an HDF5 file, of any size and with any bytes (attributes end at 64 KB).
#pragma once
#include <string>
#include <vector>

#include "core/hdf5_file.h"

namespace tapeformer {

void write_text(Hdf5File&, const std::string& path, const std::string&);
std::string read_text(const Hdf5File&, const std::string& path);
void write_texts(Hdf5File&, const std::string& path, const std::vector<std::string>&);
std::vector<std::string> read_texts(const Hdf5File&, const std::string& path);  // IoError when the sizes do not fit

}  // namespace tapeformer
