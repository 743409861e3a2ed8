# Cross-compile for WebAssembly with Debian's emscripten, and run what was built under node:
#   cmake -S . -B build-wasm -DCMAKE_TOOLCHAIN_FILE=cmake/wasm.cmake -DMHA_MODEL=OFF -DMHA_RENDER=OFF \
#       -DMHA_CIRCUITS=OFF -DMHA_MPI=OFF -DMHA_PROGRAM=OFF
#   node --no-experimental-fetch build-wasm/examples/example_attention.js
# The portable kernels are written with vectors of four floats, which become the 128-bit vectors of WebAssembly.
set(EMSCRIPTEN_SYSTEM_PROCESSOR wasm32)
include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
set(CMAKE_C_FLAGS_INIT "-msimd128 -Wno-unused-command-line-argument")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-sALLOW_MEMORY_GROWTH=1 -sMAXIMUM_MEMORY=4GB -sNODERAWFS=1")
# Where Debian has the parser that emscripten's scripts need.
set(CMAKE_C_LINKER_LAUNCHER env NODE_PATH=/usr/share/nodejs)
set(MHA_HARDENING OFF CACHE BOOL "")
# No thread can be made: contexts compute with the one that calls them.
set(CMAKE_HAVE_LIBC_PTHREAD TRUE)
