#define MHAI_GGUF_DECODERS mhai_gguf_decoders_avx512
#define MHAI_GGUF_CODERS mhai_gguf_coders_avx512
#include "io/tmpl/gguf_decode_tmpl.c"
