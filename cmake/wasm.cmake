# Cross-compile for WebAssembly with Debian's emscripten, as script/page does, and run programs under node:
#   script/page && cmake --build build/wasm
#   node --no-experimental-fetch build/wasm/examples/example_attention.js
# The vectors of four floats in the portable kernels become the 128-bit vectors of WebAssembly.
set(EMSCRIPTEN_SYSTEM_PROCESSOR wasm32)
include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
set(CMAKE_C_FLAGS_INIT "-msimd128 -Wno-unused-command-line-argument")
# Small code, since a page embeds it. emcc turns -Os into -fno-inline-functions, which would leave a call for each
# vector even at -O3. The SLP vectorizer of clang 14 generates wrong code, as test_kernels norm_strip_backward
# shows; each -O enables it.
set(CMAKE_C_FLAGS_RELEASE "-Os -finline-functions -fno-slp-vectorize -DNDEBUG" CACHE STRING "" FORCE)
# Kernels are written with vectors: -O3 makes a page 11 kB larger and nothing faster.
set(mha_kernel_flags -O2 -fno-slp-vectorize -fno-vectorize -fno-unroll-loops)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-sALLOW_MEMORY_GROWTH=1 -sMAXIMUM_MEMORY=4GB -sNODERAWFS=1")
# Debian's folder of the parser that emscripten's scripts need.
set(CMAKE_C_LINKER_LAUNCHER env NODE_PATH=/usr/share/nodejs)
# Libraries compiled by script/page.
get_filename_component(wasm_prefix ${CMAKE_CURRENT_LIST_DIR}/../build/page/prefix ABSOLUTE)
list(APPEND CMAKE_FIND_ROOT_PATH ${wasm_prefix})
set(ENV{PKG_CONFIG_LIBDIR} ${wasm_prefix}/lib/pkgconfig)
set(MHA_HARDENING OFF CACHE BOOL "")
# Threads cannot be created: contexts compute on the calling thread.
set(CMAKE_HAVE_LIBC_PTHREAD TRUE)
