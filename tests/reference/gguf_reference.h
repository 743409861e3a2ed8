/* Elements of GGUF blocks by their definitions in gguf.h, one at a time. All factors have few bits.
 * Therefore, every operation is exact in double, except the final rounding to float. */
#ifndef TEST_GGUF_REFERENCE_H
#define TEST_GGUF_REFERENCE_H

#include <multihead/gguf.h>

/* Codebooks of the IQ types, elements as integers. */
typedef struct gguf_codebooks {
    int8_t iq1[2048][8], iq2_xxs[256][8], iq2_xs[512][8], iq2_s[1024][8], iq3_xxs[256][4],
        iq3_s[512][4];
} gguf_codebooks;

bool gguf_has_definition(mha_gguf_type type);

/* Element e of a block. */
float gguf_element(mha_gguf_type type, const gguf_codebooks *books, const unsigned char *block,
                   int e);

#endif
