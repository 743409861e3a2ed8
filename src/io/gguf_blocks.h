/* The element types of GGUF, and 8-bit floats, which only safetensors files have: their sizes, and
 * the decoding of their blocks. */
#ifndef MHAI_GGUF_BLOCKS_H
#define MHAI_GGUF_BLOCKS_H

#include <multihead/gguf.h>

enum { MHAI_GGUF_BLOCK = 256 }; /* maximum number of elements of a block */

typedef struct mhai_gguf_kind {
    const char *name;
    int32_t elements, bytes; /* per block */
} mhai_gguf_kind;

/* 8-bit floats have the numbers after those of GGUF. */
enum { MHAI_F8_E4M3 = MHA_GGUF_Q1_0 + 1, MHAI_F8_E5M2, MHAI_F8_E8M0 };

/* The type with this number; NULL if the format has none. */
const mhai_gguf_kind *mhai_gguf_find_kind(uint32_t type);

bool mhai_gguf_decodes(mha_gguf_type type);

/* Whether the blocks of a type have a coded form. */
bool mhai_gguf_codes(mha_gguf_type type);

/* Functions of a type. Each instruction set has a table of these functions. */
typedef struct mhai_gguf_codec {
    /* decode count blocks, which may be unaligned; NULL: unsupported */
    void (*decode)(const unsigned char *blocks, int64_t count, float *to);
    /* convert the blocks of each row to coded form, and prefetch `ahead` bytes
     * ahead; NULL: no coded form */
    void (*code)(const unsigned char *const rows[MHA_CODED_ROWS], int64_t blocks, int64_t ahead,
                 mha_coded *to);
} mhai_gguf_codec;
enum { MHAI_GGUF_CODECS_COUNT = MHAI_F8_E8M0 + 1 };
extern const mhai_gguf_codec mhai_gguf_codecs_portable[MHAI_GGUF_CODECS_COUNT],
    mhai_gguf_codecs_avx2[MHAI_GGUF_CODECS_COUNT], mhai_gguf_codecs_avx512[MHAI_GGUF_CODECS_COUNT];

/* Code columns column .. column + count - 1, at most MHA_CODED_COLUMNS, of rows row[0], row[1] ...
 * of a matrix with this many columns. Returns false if they have no coded form. */
bool mhai_gguf_code(mha_gguf_type type, const unsigned char *matrix, int64_t columns,
                    const int64_t row[MHA_CODED_ROWS], int64_t column, int64_t count,
                    mha_coded *to);

/* Decode elements first .. first + count - 1 of blocks whose type satisfies mhai_gguf_decodes(). */
void mhai_gguf_decode(mha_gguf_type type, const unsigned char *blocks, int64_t first, int64_t count,
                      float *to);

/* The size in bytes of `count` elements, which are whole blocks. */
int64_t mhai_gguf_bytes(mha_gguf_type type, int64_t count);

#endif
