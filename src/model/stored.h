/* The parameters of a transformer as a file has them: of another type, order or scale. */
#ifndef MHAI_STORED_H
#define MHAI_STORED_H

#include "model/arch/family.h"
#include "model/model_weights.h"

/* Where one parameter is, and how its rows become ours. */
typedef struct mhai_stored_parameter {
    mhai_elements from;
    mhai_weight_form form;
    bool transposed;
    int64_t columns;     /* of ours; 1 of a vector */
    int64_t total;       /* columns there, if transposed */
    int64_t first;       /* row there of our row 0; or column */
    int64_t block, step; /* of fused rows: `block` of ours follow each other every `step` there */
    int64_t head_dim;
} mhai_stored_parameter;

/* A source (mha_transformer_source.user): what it reads, and the files that are open for it. */
typedef struct mhai_stored {
    mhai_weights weights;
    mhai_stored_parameter *parameters;
} mhai_stored;

/* Where a parameter p of a transformer is, whose weight is called name there. row: of the family's
 * names; NULL: none. Errors: as mhai_weights_check(). */
MHA_NODISCARD mha_status mhai_stored_find(const mhai_weights *weights, const mhai_family_plan *plan,
                                          const mha_transformer_desc *d, const mha_parameter *p,
                                          const mhai_weight_name *row, const char *name,
                                          mhai_stored_parameter *stored);

/* mha_transformer_source.read, .read_coded, .find_rows and .release. */
void mhai_stored_read(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, float *to);
bool mhai_stored_read_coded(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                            int64_t column, int64_t columns, mha_coded *to);
const void *mhai_stored_find_rows(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                                  mha_dtype *type, int64_t *stride);
void mhai_stored_release(void *stored);

#endif
