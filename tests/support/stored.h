/* Transformers that read the parameters of another transformer (mha_transformer_create_from()). */
#ifndef TEST_STORED_H
#define TEST_STORED_H

#include <multihead/transformer.h>

typedef struct stored {
    const mha_transformer *like; /* owns the parameters */
    int released;
    _Atomic int64_t *reads; /* counts the calls of read, or NULL */
    uint16_t *halves;       /* the same numbers as f16 or bf16, or NULL */
    mha_dtype type;
} stored;

/* mha_transformer_source.read and .release; rows of at most 4,096 numbers. */
void stored_read(const void *user, int64_t parameter, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float *to);
void stored_release(void *user);

/* A transformer with the parameters of `like`, updated. `like` and s must outlive it. */
mha_transformer *stored_transformer(mha_context *context, const mha_transformer *like,
                                    uint32_t flags, stored *s);

/* The same with rows in f16 or bf16. The parameters of `like` are rounded first. */
mha_transformer *stored_as_halves(mha_context *context, mha_transformer *like, mha_dtype type,
                                  stored *s);

#endif
