# Compiler settings of all our targets: link multihead_settings privately. The kernels have separate settings, which
# sanitizers do not change, so that ccache reuses their objects of the plain build.
set(werror_kernel_settings ${MHA_WERROR})
set(werror_settings ${MHA_WERROR})
if(MHA_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU") # of code that sanitizers add
  set(werror_settings OFF)
endif()
foreach(kind settings kernel_settings)
  add_library(multihead_${kind} INTERFACE)
  target_compile_definitions(multihead_${kind} INTERFACE _POSIX_C_SOURCE=200809L)
  target_compile_options(multihead_${kind} INTERFACE
    # Bits: a*b+c is two roundings unless the source says fma (docs/numerics.md).
    -ffp-contract=off -fno-math-errno
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wundef -Wcast-qual -Wvla -Wwrite-strings -Wformat=2
    $<$<BOOL:${werror_${kind}}>:-Werror>)
endforeach()
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()

if(MHA_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "MHA_FUZZ needs clang: -DCMAKE_C_COMPILER=clang")
  endif()
  set(MHA_SANITIZE fuzzer-no-link,address,undefined)
  set(MHA_SANITIZE_KERNELS ON)
endif()
if(MHA_SANITIZE)
  set(MHA_SANITIZER_OPTIONS -fsanitize=${MHA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(multihead_settings INTERFACE ${MHA_SANITIZER_OPTIONS} -O1 -g1)
  target_link_options(multihead_settings INTERFACE -fsanitize=${MHA_SANITIZE})
endif()

# Mitigations of memory errors. The kernels of src/kernels/isa, whose frames hold tiles of numbers and no untrusted
# bytes, have no canaries and probes.
option(MHA_HARDENING "Stack protector, FORTIFY, RELRO, BIND_NOW, PIE, CET" ON)
include(CheckCCompilerFlag)
# Some compilers and package builds add these by default; code for newer processors would then call baseline functions.
set(MHA_UNHARDENED -fno-stack-protector -U_FORTIFY_SOURCE)
check_c_compiler_flag(-fstack-clash-protection MHA_HAVE_fstack_clash_protection)
if(MHA_HAVE_fstack_clash_protection)
  list(APPEND MHA_UNHARDENED -fno-stack-clash-protection)
endif()
target_compile_options(multihead_kernel_settings INTERFACE ${MHA_UNHARDENED})
if(MHA_HARDENING)
  check_c_compiler_flag(-fcf-protection=full MHA_HAVE_fcf_protection_full)
  if(MHA_HAVE_fcf_protection_full)
    target_compile_options(multihead_kernel_settings INTERFACE -fcf-protection=full)
  endif()
endif()
if(MHA_HARDENING AND NOT MHA_SANITIZE)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES C)
  foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
    string(MAKE_C_IDENTIFIER "MHA_HAVE${flag}" have)
    check_c_compiler_flag(${flag} ${have})
    if(${have})
      target_compile_options(multihead_settings INTERFACE ${flag})
    endif()
  endforeach()
  # Level 3 also checks sizes known at run time only; older compilers warn about it.
  set(fortify 2)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 12
      OR CMAKE_C_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
    set(fortify 3)
  endif()
  # It needs optimisation, which Debug lacks.
  target_compile_options(multihead_settings INTERFACE
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${fortify}>)
  target_link_options(multihead_settings INTERFACE
    -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()
