// hdf5_file.h: the only door to HDF5. Tensors and attributes by path; damaged files become IoError, never a crash.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer {

class Hdf5File {  // closes itself; not copyable
 public:
  static Hdf5File open(const std::string& path);                                // read only; IoError when missing or no HDF5 file
  static Hdf5File create(const std::string& path, std::size_t user_block = 0);  // overwrites
  Hdf5File(Hdf5File&&) noexcept;
  ~Hdf5File();

  void write(const std::string& path, const Tensor&);  // groups on the way are made; bf16 is stored as f32
  Tensor read(const std::string& path) const;          // f32, f64, i64, i32, u8 keep their type; other integers become i64
  bool exists(const std::string& path) const;
  std::vector<std::string> list(const std::string& group) const;  // names in a group, sorted; empty when absent
  std::vector<std::string> datasets() const;                      // every dataset's path, sorted: "/model/embed/table"

  // Attributes of the object at `path` ("/" = the file).
  void write_attribute(const std::string& path, const std::string& name, const std::string& value);
  void write_attribute(const std::string& path, const std::string& name, double value);
  void write_attribute(const std::string& path, const std::string& name, i64 value);
  bool has_attribute(const std::string& path, const std::string& name) const;
  std::string read_text(const std::string& path, const std::string& name) const;
  double read_number(const std::string& path, const std::string& name) const;
  void close();  // IoError when the last bytes cannot be written

 private:
  Hdf5File(std::string path, i64 id) : path_(std::move(path)), id_(id) {}
  std::string path_;
  i64 id_ = -1;
};

// Writes through `fill` into a temporary beside `path`, stamps it with a checksum over the whole file, flushes it to disk and renames it:
// readers see the old file or the new one, never a part.
void save_checked(const std::string& path, const std::function<void(Hdf5File&)>& fill);
// Opens a file written by save_checked after verifying its checksum; IoError says what is wrong with it.
Hdf5File open_checked(const std::string& path);

// Text to `path` the same way: temporary, flush, rename.
void write_file_atomically(const std::string& path, const std::string& content);

}  // namespace tapeformer
