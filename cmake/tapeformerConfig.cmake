# find_package(tapeformer) gives the target tapeformer::tapeformer. The public headers show fmt and nothing else of other libraries.
include(CMakeFindDependencyMacro)
find_dependency(fmt)
include(${CMAKE_CURRENT_LIST_DIR}/tapeformerTargets.cmake)
