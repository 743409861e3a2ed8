# libmultihead-render: pictures of matrices. Knows nothing of attention.
find_package(PkgConfig REQUIRED)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(FREETYPE REQUIRED IMPORTED_TARGET freetype2)
file(GLOB render_sources CONFIGURE_DEPENDS render/*.c)
mha_library(multihead_render SOURCES ${render_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES PkgConfig::PNG PkgConfig::FREETYPE)
