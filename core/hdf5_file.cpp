#include "core/hdf5_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace tapeformer {
namespace {

class Handle {  // any HDF5 id with its closing function
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  operator hid_t() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

void quiet() {
  static const herr_t once = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  (void)once;
}

[[noreturn]] void fail(const std::string& file, const std::string& what) { throw IoError(fmt::format("{}: {}", file, what)); }

hid_t native(DType t) {
  switch (t) {
    case DType::F32:
    case DType::BF16:
      return H5T_NATIVE_FLOAT;
    case DType::F64:
      return H5T_NATIVE_DOUBLE;
    case DType::I64:
      return H5T_NATIVE_INT64;
    case DType::I32:
      return H5T_NATIVE_INT32;
    case DType::U8:
      break;
  }
  return H5T_NATIVE_UINT8;
}

DType stored_type(hid_t type, const std::string& file, const std::string& path) {
  const std::size_t size = H5Tget_size(type);
  if (H5Tget_class(type) == H5T_FLOAT) return size > 4 ? DType::F64 : DType::F32;
  if (H5Tget_class(type) == H5T_ENUM && size == 1) return DType::U8;  // h5py stores bool so
  if (H5Tget_class(type) != H5T_INTEGER) fail(file, path + ": holds neither numbers nor booleans");
  if (size == 1 && H5Tget_sign(type) == H5T_SGN_NONE) return DType::U8;
  return size == 4 && H5Tget_sign(type) == H5T_SGN_2 ? DType::I32 : DType::I64;
}

}  // namespace

Hdf5File Hdf5File::open(const std::string& path) {
  quiet();
  if (!std::filesystem::exists(path)) fail(path, "no such file");
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (id < 0) fail(path, "is not an HDF5 file, or is damaged");
  return Hdf5File(path, id);
}

Hdf5File Hdf5File::create(const std::string& path, std::size_t user_block) {
  quiet();
  const Handle plist(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  if (user_block > 0) H5Pset_userblock(plist, user_block);
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, plist, H5P_DEFAULT);
  if (id < 0) fail(path, fmt::format("cannot be created: {}", std::strerror(errno)));
  return Hdf5File(path, id);
}

Hdf5File::Hdf5File(Hdf5File&& other) noexcept : path_(std::move(other.path_)), id_(other.id_) { other.id_ = -1; }

Hdf5File::~Hdf5File() {
  if (id_ >= 0) H5Fclose(id_);
}

void Hdf5File::close() {
  const hid_t id = id_;
  id_ = -1;
  if (id >= 0 && H5Fclose(id) < 0) fail(path_, "could not be written completely (is the disk full?)");
}

void Hdf5File::write(const std::string& path, const Tensor& tensor) {
  Tensor t = tensor.dtype() == DType::BF16 ? tensor.to(DType::F32) : tensor;
  t = t.to_contiguous().detach();
  if (t.storage()->bytes() != t.bytes()) t = t.clone();  // a slice: copy, so that its data starts the storage
  std::vector<hsize_t> dims(t.shape().begin(), t.shape().end());
  const Handle space(dims.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
                     H5Sclose);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation, false);  // the same content gives the same bytes
  const Handle set(H5Dcreate2(id_, path.c_str(), native(t.dtype()), space, links, creation, H5P_DEFAULT), H5Dclose);
  if (!set.valid() || H5Dwrite(set, native(t.dtype()), H5S_ALL, H5S_ALL, H5P_DEFAULT, t.storage()->data()) < 0)
    fail(path_, path + ": cannot be written");
}

Tensor Hdf5File::read(const std::string& path) const {
  const Handle set(H5Dopen2(id_, path.c_str(), H5P_DEFAULT), H5Dclose);
  if (!set.valid()) fail(path_, fmt::format("has no dataset '{}'", path));
  const Handle type(H5Dget_type(set), H5Tclose), space(H5Dget_space(set), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0 || rank > Shape::kMaxRank)
    fail(path_, fmt::format("{}: has {} dimensions, expected at most {}", path, rank, Shape::kMaxRank));
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  Shape shape;
  double elements = 1;  // more than any compression packs into the file: a damaged header
  for (hsize_t d : dims) elements *= static_cast<double>(d);
  hsize_t file_size = 0;
  H5Fget_filesize(id_, &file_size);
  if (elements > 2000 * static_cast<double>(file_size)) fail(path_, fmt::format("{}: claims {} elements (damaged?)", path, elements));
  for (hsize_t d : dims) shape.push_back(static_cast<i64>(d));
  const DType dtype = stored_type(type, path_, path);
  Tensor t = Tensor::empty(shape, dtype);
  const hid_t memory_type = H5Tget_class(type) == H5T_ENUM ? static_cast<hid_t>(type) : native(dtype);
  if (t.numel() > 0 && H5Dread(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, t.storage()->data()) < 0)
    fail(path_, path + ": cannot be read (damaged?)");
  return t;
}

bool Hdf5File::exists(const std::string& path) const {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (part.size() > 1 && H5Lexists(id_, part.c_str(), H5P_DEFAULT) <= 0) return false;
    if (at == std::string::npos) return true;
  }
}

std::vector<std::string> Hdf5File::list(const std::string& group) const {
  std::vector<std::string> names;
  if (!exists(group)) return names;
  const Handle g(H5Gopen2(id_, group.c_str(), H5P_DEFAULT), H5Gclose);
  if (!g.valid()) return names;
  H5Literate(
      g, H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        static_cast<std::vector<std::string>*>(out)->push_back(name);
        return 0;
      },
      &names);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Hdf5File::datasets() const {
  std::vector<std::string> paths;
  H5Ovisit(
      id_, H5_INDEX_NAME, H5_ITER_INC,
      [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
        if (info->type == H5O_TYPE_DATASET) static_cast<std::vector<std::string>*>(out)->push_back(std::string("/") + name);
        return 0;
      },
      &paths);
  std::sort(paths.begin(), paths.end());
  return paths;
}

namespace {

void write_scalar_attribute(hid_t file, const std::string& path, const std::string& name, hid_t type, const void* value,
                            const std::string& file_name) {
  const Handle object(H5Oopen(file, path.c_str(), H5P_DEFAULT), H5Oclose);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute.valid() || H5Awrite(attribute, type, value) < 0) fail(file_name, fmt::format("attribute '{}' cannot be written", name));
}

}  // namespace

namespace {

std::string text_path(const std::string& path, const std::string& name) { return "/text" + (path == "/" ? "" : path) + "/" + name; }

}  // namespace

void Hdf5File::write_attribute(const std::string& path, const std::string& name, const std::string& value) {
  if (value.size() > 32000) {  // attributes are limited to 64 KiB: long text becomes a dataset of bytes
    write(text_path(path, name), Tensor::from<std::uint8_t>(std::span(reinterpret_cast<const std::uint8_t*>(value.data()), value.size()),
                                                            {static_cast<i64>(value.size())}));
    return;
  }
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, std::max<std::size_t>(value.size(), 1));
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  const std::string padded = value.empty() ? std::string(1, '\0') : value;
  write_scalar_attribute(id_, path, name, type, padded.data(), path_);
}

void Hdf5File::write_attribute(const std::string& path, const std::string& name, double value) {
  write_scalar_attribute(id_, path, name, H5T_NATIVE_DOUBLE, &value, path_);
}

void Hdf5File::write_attribute(const std::string& path, const std::string& name, i64 value) {
  write_scalar_attribute(id_, path, name, H5T_NATIVE_INT64, &value, path_);
}

bool Hdf5File::has_attribute(const std::string& path, const std::string& name) const {
  const Handle object(H5Oopen(id_, path.c_str(), H5P_DEFAULT), H5Oclose);
  return (object.valid() && H5Aexists(object, name.c_str()) > 0) || exists(text_path(path, name));
}

std::string Hdf5File::read_text(const std::string& path, const std::string& name) const {
  if (exists(text_path(path, name))) {
    const Tensor t = read(text_path(path, name));
    const auto bytes = t.data<std::uint8_t>();
    return {bytes.begin(), bytes.end()};
  }
  const Handle object(H5Oopen(id_, path.c_str(), H5P_DEFAULT), H5Oclose);
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) fail(path_, fmt::format("has no attribute '{}'", name));
  const Handle type(H5Aget_type(attribute), H5Tclose);
  if (H5Tget_class(type) != H5T_STRING) fail(path_, fmt::format("attribute '{}' is not text", name));
  if (H5Tis_variable_str(type) > 0) {
    char* value = nullptr;
    if (H5Aread(attribute, type, &value) < 0 || value == nullptr) fail(path_, fmt::format("attribute '{}' cannot be read", name));
    std::string text = value;
    H5free_memory(value);
    return text;
  }
  std::string text(H5Tget_size(type), '\0');
  if (H5Aread(attribute, type, text.data()) < 0) fail(path_, fmt::format("attribute '{}' cannot be read", name));
  return text.substr(0, text.find_last_not_of('\0') + 1);
}

double Hdf5File::read_number(const std::string& path, const std::string& name) const {
  const Handle object(H5Oopen(id_, path.c_str(), H5P_DEFAULT), H5Oclose);
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  double value = 0;
  if (!attribute.valid() || H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0) fail(path_, fmt::format("has no number '{}'", name));
  return value;
}

// ---- checked files: the first 512 bytes, which HDF5 leaves to the user, hold "TAPEFORMER xxh128:<hex>" over the rest ----

namespace {

constexpr std::size_t kUserBlock = 512;
constexpr std::string_view kMagic = "TAPEFORMER xxh128:";

std::string hash_after_block(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  in.seekg(kUserBlock);
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    XXH3_128bits_update(state, buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  const XXH128_hash_t h = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

void flush_and_rename(const std::string& temporary, const std::string& path) {
  const int fd = ::open(temporary.c_str(), O_RDONLY);
  if (fd < 0 || ::fsync(fd) != 0) fail(temporary, fmt::format("cannot be flushed to disk: {}", std::strerror(errno)));
  ::close(fd);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail(path, fmt::format("cannot be replaced: {}", std::strerror(errno)));
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
}

class Temporary {  // removes the file unless it was renamed
 public:
  explicit Temporary(const std::string& path) : name(fmt::format("{}.tmp{}", path, ::getpid())) {}
  ~Temporary() {
    std::error_code ignored;
    std::filesystem::remove(name, ignored);
  }
  const std::string name;
};

}  // namespace

void save_checked(const std::string& path, const std::function<void(Hdf5File&)>& fill) {
  const Temporary temporary(path);
  Hdf5File file = Hdf5File::create(temporary.name, kUserBlock);
  fill(file);
  file.close();
  const std::string stamp = std::string(kMagic) + hash_after_block(temporary.name) + "\n";
  std::fstream out(temporary.name, std::ios::binary | std::ios::in | std::ios::out);
  out.write(stamp.data(), static_cast<std::streamsize>(stamp.size()));
  out.close();
  if (!out) fail(temporary.name, "cannot be written (is the disk full?)");
  flush_and_rename(temporary.name, path);
}

Hdf5File open_checked(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, "no such file");
  std::string head(kUserBlock, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (static_cast<std::size_t>(in.gcount()) != head.size() || head.compare(0, kMagic.size(), kMagic) != 0)
    fail(path, "is not a file that this program saved, or its start is damaged");
  const std::string stamp = std::string(kMagic) + hash_after_block(path) + "\n";
  if (head != stamp + std::string(kUserBlock - stamp.size(), '\0')) fail(path, "is damaged: its content does not match its checksum");
  return Hdf5File::open(path);
}

void write_file_atomically(const std::string& path, const std::string& content) {
  const Temporary temporary(path);
  {
    std::ofstream out(temporary.name, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  }
  flush_and_rename(temporary.name, path);
}

}  // namespace tapeformer
