# libmultihead: base, kernels, attention, module, nn, analysis.
file(GLOB compute_sources CONFIGURE_DEPENDS
  base/*.c ranks/*.c distributed/*.c attention/*.c cache/*.c nn/*.c attend/*.c module/*.c transformer/*.c analysis/*.c)
# Ninja starts compiling in this order. The slowest files come first, so that the build does not end with
# them.
set(kernel_sources)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(kernel_sources kernels/isa/isa_avx512.c kernels/isa/isa_avx2.c
    kernels/isa/int8_amx.c kernels/isa/int8_avx512.c kernels/isa/int8_avx2.c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(kernel_sources kernels/isa/isa_neon.c kernels/isa/int8_neon.c)
endif()
list(APPEND kernel_sources kernels/isa/isa_portable.c kernels/isa/int8_portable.c)
add_library(multihead_kernels OBJECT ${kernel_sources})
target_include_directories(multihead_kernels PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(multihead_kernels PRIVATE multihead_kernel_settings)
mha_library(multihead OBJECTS $<TARGET_OBJECTS:multihead_kernels> SOURCES
  kernels/kern_dispatch.c kernels/int8_dispatch.c ${compute_sources})

# Let the compiler turn branches into masks, and so vectorise the loop.
set_source_files_properties(attention/feature_map.c PROPERTIES COMPILE_OPTIONS -fno-trapping-math)

set_source_files_properties(base/version.c PROPERTIES COMPILE_DEFINITIONS
  "MHAI_VERSION=\"${MHA_VERSION}\";MHAI_VERSION_MAJOR=${PROJECT_VERSION_MAJOR};MHAI_VERSION_MINOR=${PROJECT_VERSION_MINOR};MHAI_VERSION_PATCH=${PROJECT_VERSION_PATCH}")

# Only the files of src/kernels/isa have machine flags. Sanitizers instrument the portable kernels. The other
# kernels have the same source and take minutes to compile; MHA_SANITIZE_KERNELS also instruments them.
set(isa_flags -O3 -fno-trapping-math ${mha_kernel_flags})
set(portable_flags ${isa_flags})
if(MHA_SANITIZE)
  set(portable_flags -O1 -fno-trapping-math ${MHA_SANITIZER_OPTIONS})
  if(MHA_SANITIZE MATCHES "address")
    # Check all accesses for bounds, by calls. With inline checks, checks of undefined behaviour or coverage,
    # clang takes minutes per file. The deep stage clang of .ci/run checks undefined behaviour.
    list(APPEND portable_flags -fno-sanitize=undefined)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
      # gcc 12 uses aligned 64-byte stores in frames on ASan's heap, which it aligns to 32 (gcc bug 110027).
      list(APPEND portable_flags --param=asan-use-after-return=0 --param=asan-instrumentation-with-call-threshold=0)
    else()
      list(APPEND portable_flags -mllvm -asan-instrumentation-with-call-threshold=0)
    endif()
  endif()
  if(MHA_FUZZ)
    list(APPEND portable_flags -fno-sanitize=fuzzer-no-link)
  endif()
  if(MHA_SANITIZE_KERNELS)
    set(isa_flags ${portable_flags})
  endif()
endif()
set_source_files_properties(kernels/isa/isa_portable.c kernels/isa/int8_portable.c PROPERTIES
  COMPILE_OPTIONS "${portable_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(multihead_kernels PRIVATE MHAI_HAVE_X86)
  target_compile_definitions(multihead_objects PRIVATE MHAI_HAVE_X86)
  set_source_files_properties(kernels/isa/isa_avx2.c kernels/isa/int8_avx2.c PROPERTIES
    COMPILE_OPTIONS "${isa_flags};-mavx2;-mfma;-mf16c")
  set(avx512_machine -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx512bf16 -mavx2 -mfma -mf16c
    -mprefer-vector-width=512)
  set_source_files_properties(kernels/isa/isa_avx512.c PROPERTIES COMPILE_OPTIONS
    "${isa_flags};${avx512_machine}")
  set_source_files_properties(kernels/isa/int8_avx512.c PROPERTIES COMPILE_OPTIONS
    "${isa_flags};${avx512_machine};-mavx512vnni")
  set_source_files_properties(kernels/isa/int8_amx.c PROPERTIES COMPILE_OPTIONS
    "${isa_flags};${avx512_machine};-mavx512vnni;-mamx-tile;-mamx-int8;-mamx-bf16")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_compile_definitions(multihead_kernels PRIVATE MHAI_HAVE_NEON)
  target_compile_definitions(multihead_objects PRIVATE MHAI_HAVE_NEON)
  set_source_files_properties(kernels/isa/isa_neon.c kernels/isa/int8_neon.c PROPERTIES COMPILE_OPTIONS "${isa_flags}")
endif()
