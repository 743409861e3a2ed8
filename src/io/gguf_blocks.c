/* See gguf_blocks.h. */
#include "io/gguf_blocks.h"

#include <string.h>

const mhai_gguf_kind *mhai_gguf_find_kind(uint32_t type)
{
    static const mhai_gguf_kind kinds[] = {
#define KIND(name, value, elements, bytes) [value] = {#name, elements, bytes},
        MHA_GGUF_TYPE_LIST(KIND)
#undef KIND
    };
    return type < sizeof kinds / sizeof kinds[0] && kinds[type].name ? &kinds[type] : NULL;
}

static const mhai_gguf_kind *kind_of(mha_gguf_type type)
{
    static const mhai_gguf_kind byte = {"F8", 1, 1};
    return (int)type >= MHAI_F8_E4M3 ? &byte : mhai_gguf_find_kind(type);
}

static const mhai_gguf_codec *codec(mha_gguf_type type)
{
#ifdef MHAI_HAVE_X86
    if (mha_isa_available(MHA_ISA_AVX512)) return &mhai_gguf_codecs_avx512[type];
    if (mha_isa_available(MHA_ISA_AVX2)) return &mhai_gguf_codecs_avx2[type];
#endif
    return &mhai_gguf_codecs_portable[type];
}

bool mhai_gguf_code(mha_gguf_type type, const unsigned char *matrix, int64_t columns,
                    const int64_t row[MHA_CODED_ROWS], int64_t column, int64_t count, mha_coded *to)
{
    const mhai_gguf_codec *of = codec(type);
    const mhai_gguf_kind *kind = kind_of(type);
    const int64_t elements = kind->elements, stride = columns / elements * kind->bytes;
    const unsigned char *rows[MHA_CODED_ROWS], *first = matrix + column / elements * kind->bytes;
    if (!of->code || columns % elements || column % elements || count % elements) return false;
    for (int i = 0; i < MHA_CODED_ROWS; i++) rows[i] = first + row[i] * stride;
    of->code(rows, count / elements, MHA_CODED_ROWS * stride, to);
    return true;
}

bool mhai_gguf_decodes(mha_gguf_type type)
{
    return (size_t)type < MHAI_GGUF_CODECS_COUNT && mhai_gguf_codecs_portable[type].decode;
}

bool mhai_gguf_codes(mha_gguf_type type)
{
    return (size_t)type < MHAI_GGUF_CODECS_COUNT && mhai_gguf_codecs_portable[type].code;
}

void mhai_gguf_decode(mha_gguf_type type, const unsigned char *blocks, int64_t first, int64_t count,
                      float *to)
{
    const mhai_gguf_codec *of = codec(type);
    const mhai_gguf_kind *kind = kind_of(type);
    float block[MHAI_GGUF_BLOCK];
    for (int64_t n; count > 0; first += n, count -= n, to += n) {
        const int64_t skip = first % kind->elements;
        const unsigned char *at = blocks + first / kind->elements * kind->bytes;
        n = count - count % kind->elements; /* whole blocks */
        if (skip == 0 && n > 0) {
            of->decode(at, n / kind->elements, to);
            continue;
        }
        of->decode(at, 1, block);
        n = kind->elements - skip < count ? kind->elements - skip : count;
        memcpy(to, block + skip, (size_t)n * sizeof *to);
    }
}

int64_t mhai_gguf_bytes(mha_gguf_type type, int64_t count)
{
    const mhai_gguf_kind *kind = kind_of(type);
    return count / kind->elements * kind->bytes;
}
