# Every library comes from a Debian 12 package; `./run deps` installs them.
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
# By name: the package's own configuration asks for the headers of OpenCL, which nothing here uses.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE dnnl.hpp REQUIRED)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
pkg_check_modules(SNDFILE REQUIRED IMPORTED_TARGET sndfile)
pkg_check_modules(SAMPLERATE REQUIRED IMPORTED_TARGET samplerate)
pkg_check_modules(KISSFFT REQUIRED IMPORTED_TARGET kissfft-float)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# The pthread and serial builds share one interface; either works, since it is always called with one thread.
find_library(OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-pthread openblas-openmp openblas-serial REQUIRED)
find_path(OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas-pthread openblas-openmp openblas-serial
          PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} REQUIRED)

add_library(tapeformer_dependencies INTERFACE)
target_include_directories(tapeformer_dependencies SYSTEM INTERFACE ${OPENBLAS_INCLUDE} ${DNNL_INCLUDE})
target_link_libraries(tapeformer_dependencies INTERFACE
  OpenMP::OpenMP_CXX ${DNNL_LIBRARY} ${OPENBLAS_LIBRARY} yaml-cpp spdlog::spdlog PkgConfig::HDF5 PkgConfig::SNDFILE
  PkgConfig::SAMPLERATE PkgConfig::KISSFFT PkgConfig::UTF8PROC PkgConfig::XXHASH PkgConfig::HWY)

# CLI11 and nlohmann-json are header-only; the programs alone see CLI11.
add_library(tapeformer_cli INTERFACE)
