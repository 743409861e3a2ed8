# libmultihead-circuits: analysis of the weights of heads. LAPACK computes the decompositions.
find_package(PkgConfig REQUIRED)
pkg_check_modules(LAPACKE REQUIRED IMPORTED_TARGET lapacke)
file(GLOB circuits_sources CONFIGURE_DEPENDS circuits/*.c)
mha_library(multihead_circuits SOURCES ${circuits_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES PkgConfig::LAPACKE)
