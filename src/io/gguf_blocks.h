/* The element types of GGUF, and how blocks of them decode. */
#ifndef MHAI_GGUF_BLOCKS_H
#define MHAI_GGUF_BLOCKS_H

#include <multihead/gguf.h>

enum { MHAI_GGUF_BLOCK = 256 }; /* elements of the longest decoded block */

typedef struct mhai_gguf_kind {
    const char *name;
    int32_t elements, bytes; /* a block */
} mhai_gguf_kind;

/* The type of this number; NULL if the format has none. */
const mhai_gguf_kind *mhai_gguf_find_kind(uint32_t type);

bool mhai_gguf_decodes(mha_gguf_type type);

/* Whether the blocks of a type have a coded form. */
bool mhai_gguf_codes(mha_gguf_type type);

/* A table for each instruction set, with one row for each type. */
typedef struct mhai_gguf_codec {
    /* decode count blocks, aligned or not; NULL: unsupported */
    void (*decode)(const unsigned char *blocks, int64_t count, float *to);
    /* code the blocks of each row, and prefetch `ahead` bytes ahead; NULL: no coded form */
    void (*code)(const unsigned char *const rows[MHA_CODED_ROWS], int64_t blocks, int64_t ahead,
                 mha_coded *to);
} mhai_gguf_codec;
enum { MHAI_GGUF_CODECS_COUNT = MHA_GGUF_BF16 + 1 };
extern const mhai_gguf_codec mhai_gguf_codecs_portable[MHAI_GGUF_CODECS_COUNT],
    mhai_gguf_codecs_avx2[MHAI_GGUF_CODECS_COUNT], mhai_gguf_codecs_avx512[MHAI_GGUF_CODECS_COUNT];

/* Code columns column .. column + count, at most MHA_CODED_COLUMNS, of rows row[0], row[1] ... of a
 * matrix with this many columns. False if they have no coded form. */
bool mhai_gguf_code(mha_gguf_type type, const unsigned char *matrix, int64_t columns,
                    const int64_t row[MHA_CODED_ROWS], int64_t column, int64_t count,
                    mha_coded *to);

/* Elements first .. first + count of blocks of a type that mhai_gguf_decodes(). */
void mhai_gguf_decode(mha_gguf_type type, const unsigned char *blocks, int64_t first, int64_t count,
                      float *to);

#endif
