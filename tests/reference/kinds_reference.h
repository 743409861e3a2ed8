/* The whole formula of multihead/attention.h in double precision: every mask, every term of the
 * scores, sinks, gates, dropout and ragged batches. The code is derived from the header's text.
 * Like reference.h, it uses only the structs of the library. Inputs, including the descriptor's,
 * may be f32 or f64. */
#ifndef TEST_KINDS_REFERENCE_H
#define TEST_KINDS_REFERENCE_H

#include "reference/reference.h"
#include "support/kinds.h"

/* The case as the reference takes it. */
ref_attention kinds_reference(const kinds_case *c);

/* The place of one sequence in the tensors. */
typedef struct kinds_sequence {
    int64_t batch;  /* index on the tensors' first axis */
    int64_t q0, k0; /* its first query and key */
    int64_t T, S;   /* its queries and keys, including those beyond its key length */
} kinds_sequence;

/* The number of sequences, and one of them. */
int64_t kinds_sequences(const ref_attention *a);
kinds_sequence kinds_sequence_at(const ref_attention *a, int64_t b);

/* The row of a 4-d or 3-d f32 result for query t of head h in sequence b. */
float *kinds_at(const mha_tensor *x, const ref_attention *a, int64_t b, int64_t h, int64_t t);

/* One query row of the result. */
typedef struct kinds_row {
    int64_t keys, value_dim, visible;
    double *score;  /* [keys] natural units; -inf for invisible keys */
    double *p;      /* [keys] */
    double *factor; /* [keys] dropout factor of p: 0 or 1 / (1 - dropout) */
    double *o;      /* [Dv] */
    double *ungated;
    double lse, sink, sink_p; /* the sink's logit is -inf if there is none */
} kinds_row;

kinds_row kinds_row_make(int64_t most_keys, int64_t value_dim);
void kinds_row_free(kinds_row *row);

/* Whether query t of head h in sequence b sees key s. */
bool kinds_sees(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s);

/* The parts of a score, before the cap and after. */
typedef struct kinds_score {
    double product, shaw;      /* scale q k, scale q shaw */
    double before_cap, capped; /* equal without a cap */
    double bias, alibi, t5;
    double sum;
} kinds_score;
kinds_score kinds_score_at(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s);

/* s - i, clamped to avoid overflow. */
int64_t kinds_relative(const mha_attention_desc *desc, int64_t b, int64_t t, int64_t s);

/* Row of a Shaw table for a pair. */
int64_t kinds_shaw_row(const ref_attention *a, const mha_tensor *table, int64_t b, int64_t t,
                       int64_t s);

/* Element d of v + shaw_values for a pair. */
double kinds_value(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s, int64_t d);
double kinds_gate(const ref_attention *a, int64_t b, int64_t h);

void kinds_attention_row(const ref_attention *a, int64_t b, int64_t h, int64_t t, kinds_row *row);

/* The bucket of a T5 table: the largest whose first distance does not exceed this one. */
int64_t kinds_t5_bucket(int64_t rel, int64_t buckets, int64_t max_distance, bool one_sided);

/* Philox 4x32-10 (Salmon et al. 2011, section 3.3). */
void kinds_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
