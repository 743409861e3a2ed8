/* Measures of heads as defined in docs/heads.md: from complete maps, in double, by plain loops over all pairs. Shares
 * no code with the library; slow, for texts of a few dozen tokens. */
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
    ref_head_sum sum[MHA_MEASURES]; /* all but the two of offsets */
    ref_head_sum mass[2 * REF_HEAD_OFFSETS + 1], largest[2 * REF_HEAD_OFFSETS + 1];
    ref_head_sum link[REF_HEAD_RELATIONS][2], link_mass[REF_HEAD_RELATIONS][2];
} ref_head;

/* Add a text: a [T,S] are the head's weights, x [S,width] its inputs or NULL, window the layer's own or NULL. Stops the
 * process for texts of more than 64 keys, where the library samples cuts. */
void ref_head_add(ref_head *head, const mha_heads_text *text, const mha_attention_desc *window,
                  const double *a, const float *x, int64_t width);

/* The offset with the best corrected score, by mass or by largest weight. */
int64_t ref_head_best_offset(const ref_head *head, bool largest);

#endif
