/* The Gram matrix of tokens: a sum of E x E outer products over V rows. Each element is summed by
 * one thread in the order of tokens, so results do not depend on the number of threads. */
#include "circuits/circuits_weights.h"

#include <string.h>

enum { STRIP = 128, BLOCK = 8 }; /* token rows per step; result rows per item */

typedef struct gram_job {
    int64_t E, rows; /* rows in the strip */
    bool symmetric;
    const double *a, *b; /* [STRIP,E] */
    double *gram;
} gram_job;

/* An item is BLOCK rows of the result. Four tokens are added at a time, so that sums stay in
 * registers. */
static void add_rows(void *argument, int64_t item, int worker)
{
    const gram_job *job = argument;
    const int64_t E = job->E, end = (item + 1) * BLOCK < E ? (item + 1) * BLOCK : E;
    (void)worker;
    for (int64_t i = item * BLOCK; i < end; i++) {
        double *row = job->gram + i * E;
        const int64_t columns = job->symmetric ? i + 1 : E;
        for (int64_t s = 0; s < job->rows; s += 4) { /* padded with zeros to a multiple of 4 */
            const double *a = job->a + s * E + i, *b = job->b + s * E;
            const double a0 = a[0], a1 = a[E], a2 = a[2 * E], a3 = a[3 * E];
            for (int64_t j = 0; j < columns; j++)
                row[j] = row[j] + a0 * b[j] + a1 * b[E + j] + a2 * b[2 * E + j] + a3 * b[3 * E + j];
        }
    }
}

static void widen(const mhai_tokens *tokens, const float *rows, int64_t count, int power,
                  double *room, double *to)
{
    const int64_t E = tokens->E;
    memset(to, 0, (size_t)(STRIP * E) * sizeof *to);
    for (int64_t s = 0; s < count; s++) {
        const double weight = power ? mhai_tokens_weight(tokens, rows + s * E, room) : 1;
        const double factor = power == 2 ? weight * weight : weight;
        for (int64_t e = 0; e < E; e++) to[s * E + e] = (double)rows[s * E + e] * factor;
    }
}

static void transpose(double *x, int64_t E)
{
    for (int64_t i = 0; i < E; i++)
        for (int64_t j = 0; j < i; j++) {
            const double kept = x[i * E + j];
            x[i * E + j] = x[j * E + i];
            x[j * E + i] = kept;
        }
}

/* Convert the Gram matrix of table rows to the Gram matrix of tokens: A gram B^T. */
static void map_both(const mhai_tokens *a, const mhai_tokens *b, double *gram)
{
    for (int64_t i = 0; i < a->E; i++) mhai_tokens_map(b, gram + i * a->E);
    transpose(gram, a->E);
    for (int64_t i = 0; i < a->E; i++) mhai_tokens_map(a, gram + i * a->E);
    transpose(gram, a->E);
}

static mha_status add_all(mha_context *context, const mha_transformer *t, const mhai_tokens *a,
                          const mhai_tokens *b, int power, const mha_circuits_desc *desc,
                          gram_job *job)
{
    const int64_t E = a->E;
    float *rows;
    double *left, *right, *room;
    MHA_TRY(mhai_circuits_take(context, STRIP, E, sizeof(float), &rows));
    MHA_TRY(mhai_circuits_take(context, STRIP, E, sizeof(double), &left));
    MHA_TRY(mhai_circuits_take(context, STRIP, E, sizeof(double), &right));
    MHA_TRY(mhai_circuits_take(context, 1, E, sizeof(double), &room));
    job->a = left, job->b = right;
    for (int64_t first = 0; first < a->V; first += STRIP) {
        const int64_t count = a->V - first < STRIP ? a->V - first : STRIP;
        if (desc->progress) MHA_TRY(desc->progress(0, 1, desc->progress_user));
        MHA_TRY(mhai_tokens_read(t, a, first, count, rows));
        widen(a, rows, count, power, room, left);
        if (!job->symmetric) MHA_TRY(mhai_tokens_read(t, b, first, count, rows));
        widen(b, rows, count, 0, room, right);
        job->rows = (count + 3) / 4 * 4;
        mha_parallel_for(context, (E + BLOCK - 1) / BLOCK, add_rows, job);
    }
    return MHA_OK;
}

mha_status mhai_circuits_gram(mha_context *context, const mha_transformer *t, const mhai_tokens *a,
                              const mhai_tokens *b, int power, const mha_circuits_desc *desc,
                              double *gram)
{
    const int64_t E = a->E;
    gram_job job = {.E = E, .symmetric = a->table.offset == b->table.offset, .gram = gram};
    mha_scratch_mark mark = mha_scratch_top(context);
    memset(gram, 0, (size_t)(E * E) * sizeof *gram);
    mha_status status = add_all(context, t, a, b, power, desc, &job);
    mha_scratch_release(context, mark);
    if (status != MHA_OK) return status;
    for (int64_t i = 0; job.symmetric && i < E; i++)
        for (int64_t j = i + 1; j < E; j++) gram[i * E + j] = gram[j * E + i];
    map_both(a, b, gram);
    return MHA_OK;
}
