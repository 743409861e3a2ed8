# libmultihead-model: safetensors, GGUF, .npy, tokenizers, model folders, studies.
find_package(PkgConfig REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.12)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc>=2.6)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.30)
set(image_libraries)
set(image_definitions)
foreach(format PNG JPEG) # optional: reading images
  string(TOLOWER lib${format} module)
  pkg_check_modules(${format} IMPORTED_TARGET ${module})
  if(${format}_FOUND AND NOT EMSCRIPTEN)
    list(APPEND image_libraries PkgConfig::${format})
    list(APPEND image_definitions MHAI_HAVE_${format})
  endif()
endforeach()
file(GLOB model_sources CONFIGURE_DEPENDS image/*.c io/*.c tokenizer/*.c model/*.c model/arch/*.c study/*.c)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(FILTER model_sources EXCLUDE REGEX "_avx(2|512)\\.c$")
endif()
mha_library(multihead_model SOURCES ${model_sources}
  PUBLIC_LIBRARIES multihead PRIVATE_LIBRARIES PkgConfig::JANSSON PkgConfig::UTF8PROC PkgConfig::PCRE2
    ${image_libraries})
target_compile_definitions(multihead_model_objects PRIVATE ${image_definitions})

# One body for each instruction set, without fused multiply-adds.
if(EMSCRIPTEN)
  set_source_files_properties(io/gguf_decode_portable.c PROPERTIES COMPILE_OPTIONS
    "-fno-trapping-math;${mha_kernel_flags}")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(decode_flags -O3 -fno-trapping-math ${MHA_UNHARDENED})
  if(MHA_SANITIZE)
    set(decode_flags -O1 -fno-trapping-math)
  endif()
  target_compile_definitions(multihead_model_objects PRIVATE MHAI_HAVE_X86)
  set_source_files_properties(io/gguf_decode_avx2.c PROPERTIES COMPILE_OPTIONS
    "${decode_flags};-mavx2;-mf16c")
  set_source_files_properties(io/gguf_decode_avx512.c PROPERTIES COMPILE_OPTIONS
    "${decode_flags};${avx512_machine}")
endif()
