# Compiler settings shared by every target of ours: link multihead_settings privately.
add_library(multihead_settings INTERFACE)
target_compile_definitions(multihead_settings INTERFACE _POSIX_C_SOURCE=200809L)
target_compile_options(multihead_settings INTERFACE
  # Bits: a*b+c is two roundings unless the source says fma (docs/numerics.md).
  -ffp-contract=off -fno-math-errno
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  -Wundef -Wcast-qual -Wvla -Wwrite-strings -Wformat=2
  $<$<BOOL:${MHA_WERROR}>:-Werror>)
if(MHA_SANITIZE)
  target_compile_options(multihead_settings INTERFACE
    -fsanitize=${MHA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(multihead_settings INTERFACE -fsanitize=${MHA_SANITIZE})
endif()
