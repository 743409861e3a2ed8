#define MHAI_GGUF_CODECS mhai_gguf_codecs_avx512
#include "io/tmpl/gguf_decode_tmpl.c"
