# libmultihead: base, kernels, attention, module, nn, presets, analysis.
file(GLOB compute_sources CONFIGURE_DEPENDS
  base/*.c ranks/*.c distributed/*.c attention/*.c cache/*.c nn/*.c attend/*.c module/*.c transformer/*.c presets/*.c analysis/*.c)
# What compiles longest comes first: ninja starts it first, and nobody waits for it in the end.
set(kernel_sources)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(kernel_sources kernels/isa/isa_avx512.c kernels/isa/isa_avx2.c
    kernels/isa/int8_avx512.c kernels/isa/int8_avx2.c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(kernel_sources kernels/isa/isa_neon.c kernels/isa/int8_neon.c)
endif()
mha_library(multihead SOURCES ${kernel_sources}
  kernels/isa/isa_portable.c kernels/isa/int8_portable.c
  kernels/kern_dispatch.c kernels/int8_dispatch.c ${compute_sources})

# So that the choices in it become masks and the loop becomes vectors.
set_source_files_properties(attention/feature_map.c PROPERTIES COMPILE_OPTIONS -fno-trapping-math)

set_source_files_properties(base/version.c PROPERTIES COMPILE_DEFINITIONS
  "MHAI_VERSION=\"${MHA_VERSION}\";MHAI_VERSION_MAJOR=${PROJECT_VERSION_MAJOR};MHAI_VERSION_MINOR=${PROJECT_VERSION_MINOR};MHAI_VERSION_PATCH=${PROJECT_VERSION_PATCH}")

# The files of src/kernels/isa are the only ones with machine flags.
set(isa_flags -O3 -fno-trapping-math)
if(MHA_HARDENING)
  list(APPEND isa_flags -fno-stack-protector -U_FORTIFY_SOURCE)
  if(MHA_HAVE_fstack_clash_protection)
    list(APPEND isa_flags -fno-stack-clash-protection)
  endif()
endif()
if(MHA_SANITIZE)
  list(APPEND isa_flags -g0) # lines of these take a third of the time of compiling them, which is minutes
endif()
if(MHA_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # gcc 12 stores vectors of 64 bytes to frames on ASan's heap that it aligns to 32 (its bug 110027).
  list(APPEND isa_flags --param=asan-use-after-return=0)
endif()
if(MHA_FUZZ)
  # All that finds an access out of bounds, by calls: inline, with coverage and optimised, a file of
  # these takes clang ten minutes.
  set(isa_flags -O1 -g0 -fno-trapping-math -fno-sanitize=undefined,fuzzer-no-link
    -mllvm -asan-instrumentation-with-call-threshold=0)
endif()
set_source_files_properties(kernels/isa/isa_portable.c kernels/isa/int8_portable.c PROPERTIES COMPILE_OPTIONS "${isa_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(multihead_objects PRIVATE MHAI_HAVE_X86)
  set_source_files_properties(kernels/isa/isa_avx2.c kernels/isa/int8_avx2.c PROPERTIES
    COMPILE_OPTIONS "${isa_flags};-mavx2;-mfma;-mf16c")
  set(avx512_flags "${isa_flags};-mavx512f;-mavx512dq;-mavx512bw;-mavx512vl;-mavx512bf16;-mavx2;-mfma;-mf16c;-mprefer-vector-width=512")
  set_source_files_properties(kernels/isa/isa_avx512.c PROPERTIES COMPILE_OPTIONS
    "${avx512_flags}")
  set_source_files_properties(kernels/isa/int8_avx512.c PROPERTIES COMPILE_OPTIONS
    "${avx512_flags};-mavx512vnni")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_compile_definitions(multihead_objects PRIVATE MHAI_HAVE_NEON)
  set_source_files_properties(kernels/isa/isa_neon.c kernels/isa/int8_neon.c PROPERTIES COMPILE_OPTIONS "${isa_flags}")
endif()
