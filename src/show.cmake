# libmultihead-show: maps of a model as figures, reports and the answers of a live page.
file(GLOB show_sources CONFIGURE_DEPENDS show/*.c)
mha_library(multihead_show SOURCES ${show_sources} PUBLIC_LIBRARIES multihead_model multihead_render
  PRIVATE_LIBRARIES PkgConfig::JANSSON)
