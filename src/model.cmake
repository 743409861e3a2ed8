# libmultihead-model: safetensors, GGUF, .npy, tokenizers, model folders.
find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.12)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc>=2.6)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.30)
file(GLOB model_sources CONFIGURE_DEPENDS io/*.c tokenizer/*.c model/*.c model/arch/*.c)
mha_library(multihead_model SOURCES ${model_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES PkgConfig::JANSSON PkgConfig::UTF8PROC PkgConfig::PCRE2)
