#define MHAI_GGUF_DECODERS mhai_gguf_decoders_portable
#define MHAI_GGUF_CODERS mhai_gguf_coders_portable
#include "io/tmpl/gguf_decode_tmpl.c"
