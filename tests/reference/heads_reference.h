/* Measures of heads as defined in docs/heads.md, from complete maps, in double, by simple loops
 * over all pairs. The reference shares no code with the library. It is slow and meant for texts of
 * a few dozen tokens. */
#ifndef TEST_HEADS_REFERENCE_H
#define TEST_HEADS_REFERENCE_H

#include <multihead/heads.h>

/* Sums of one head over texts. */
typedef struct ref_head_sum {
    double value, chance;
    int64_t rows;
} ref_head_sum;

enum { REF_HEAD_OFFSETS = 8, REF_HEAD_NEAR = 2, REF_HEAD_RELATIONS = 4 };

typedef struct ref_head {
    ref_head_sum sum[MHA_MEASURES]; /* without the two measures of offsets */
    ref_head_sum mass[2 * REF_HEAD_OFFSETS + 1], largest[2 * REF_HEAD_OFFSETS + 1];
    ref_head_sum link[REF_HEAD_RELATIONS][2], link_mass[REF_HEAD_RELATIONS][2];
} ref_head;

/* Adds a text. a [T,S] are the head's weights, x [S,width] are its inputs or NULL, and `window` is
 * the layer's own window or NULL. Stops the process for texts of more than 64 keys, for which the
 * library samples cuts. */
void ref_head_add(ref_head *head, const mha_heads_text *text, const mha_attention_desc *window,
                  const double *a, const float *x, int64_t width);

/* The offset with the best corrected score, by mass or by largest weight. */
int64_t ref_head_best_offset(const ref_head *head, bool largest);

#endif
