# libmultihead-circuits: what the weights of heads say. Decompositions are LAPACK's.
find_package(PkgConfig REQUIRED)
pkg_check_modules(LAPACKE REQUIRED IMPORTED_TARGET lapacke)
file(GLOB circuits_sources CONFIGURE_DEPENDS circuits/*.c)
mha_library(multihead_circuits SOURCES ${circuits_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES PkgConfig::LAPACKE)
