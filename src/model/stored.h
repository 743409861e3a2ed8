/* Parameters of a transformer that are read from a file with another type, order or scale. */
#ifndef MHAI_STORED_H
#define MHAI_STORED_H

#include "model/arch/family.h"
#include "model/model_weights.h"

/* The location of a parameter, and the conversion of its rows. */
typedef struct mhai_stored_parameter {
    mhai_elements from, further[2]; /* further: of MHAI_CONVOLUTIONS; the scales of
                                     * MHAI_LAYER_SCALED */
    mhai_weight_form form;
    bool transposed;
    int64_t columns;     /* in the library, or with MHAI_LAYER_COLUMNS in the file; 1: a vector */
    int64_t column;      /* of MHAI_LAYER_COLUMNS: the first column in the file */
    int64_t total;       /* columns in the file, if transposed */
    int64_t first;       /* file row (or, if transposed, column) of row 0 */
    int64_t block, step; /* fused rows: `block` consecutive rows every `step` rows of the file.
                          * Of MHAI_CONVOLUTIONS: the rows of q, and of q and k */
    int64_t head_dim, last; /* last: of MHAI_LAST_FIRST, the number of a head's last rows */
    float *made; /* owns the numbers of a table that is not one weight of the file; NULL: it is */
} mhai_stored_parameter;

/* The user data of a mha_transformer_source: parameters and their open files. */
typedef struct mhai_stored {
    mhai_weights weights;
    mhai_stored_parameter *parameters;
    int64_t count;
} mhai_stored;

/* Locate parameter p of a transformer in the file, by the name of its weight. row: its entry in the
 * family's names, or NULL. Errors: those of mhai_weights_check(). */
MHA_NODISCARD mha_status mhai_stored_find(const mhai_weights *weights, const mhai_family_plan *plan,
                                          const mha_transformer_desc *d, const mha_parameter *p,
                                          const mhai_weight_name *row, const char *name,
                                          mhai_stored_parameter *stored);

/* Make the table of positions of mhai_family_plan.sinusoids, and locate it. */
MHA_NODISCARD mha_status mhai_stored_sinusoids(mha_context *context, const mha_parameter *p,
                                               mhai_stored_parameter *to);

/* Change the name of part i - 1 of a weight to that of part i: of q, k and v with
 * MHAI_CONVOLUTIONS, of blocks and scales with MHAI_EXPERT_MXFP4, of a weight and its scales with
 * MHAI_LAYER_SCALED. False: there is no such part. */
bool mhai_stored_part(const mhai_weight_name *row, int i, char name[MHAI_WEIGHT_NAME]);

/* The functions of a mha_transformer_source. */
void mhai_stored_read(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                      int64_t column, int64_t columns, float *to);
bool mhai_stored_read_coded(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                            int64_t column, int64_t columns, mha_coded *to);
const void *mhai_stored_find_rows(const void *stored, int64_t parameter, int64_t row, int64_t rows,
                                  mha_dtype *type, int64_t *stride);
void mhai_stored_release(void *stored);

#endif
