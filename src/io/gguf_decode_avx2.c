#define MHAI_GGUF_CODECS mhai_gguf_codecs_avx2
#include "io/tmpl/gguf_decode_tmpl.c"
