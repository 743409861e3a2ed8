/* The gradient of the dense bias, which may be broadcast over any axis. Each element adds its cells
 * in the order of sequences, heads, queries, keys. */
#include "attention/attn_backward_cells.h"

#include <string.h>

static mhai_attn_range whole(int64_t count)
{
    return (mhai_attn_range){0, count};
}

/* Number of pieces along each axis: sequences, heads, chunks, blocks. For the bias, a ragged batch
 * has one batch entry, which contains the queries of all sequences. */
static void bias_pieces(const mhai_cells_job *job, int64_t pieces[4])
{
    const mhai_attn_problem *p = job->p;
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    bool by_row = bias.shape[2] != 1;
    pieces[0] = (p->query_starts ? by_row : bias.shape[0] != 1) ? p->B : 1;
    pieces[1] = bias.shape[1] != 1 ? p->H : 1;
    pieces[2] = by_row ? job->chunks : 1;
    pieces[3] = bias.shape[3] != 1 ? job->blocks : 1;
}

int64_t mhai_cells_bias_items(const mhai_cells_job *job)
{
    int64_t pieces[4];
    bias_pieces(job, pieces);
    return pieces[0] * pieces[1] * pieces[2] * pieces[3];
}

mhai_bias_item mhai_cells_bias_item(const mhai_cells_job *job, int64_t item)
{
    const int64_t counts[4] = {job->p->B, job->p->H, job->chunks, job->blocks};
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    mhai_attn_range range[4];
    int64_t pieces[4];
    bias_pieces(job, pieces);
    for (int i = 3; i >= 0; i--) {
        int64_t at = item % pieces[i];
        item /= pieces[i];
        /* An axis with one piece is broadcast or has length 1. The piece covers the whole axis. */
        range[i] = pieces[i] == 1 ? whole(counts[i]) : (mhai_attn_range){at, at + 1};
    }
    return (mhai_bias_item){range[0], range[1],           range[2],
                            range[3], bias.shape[2] != 1, bias.shape[3] != 1};
}

static void add_cell(const mhai_cells_chunk *c, const mhai_cells_space *w, const mhai_cell *at,
                     const mhai_bias_item *item, double *sums)
{
    for (int64_t r = 0; r < c->c.rows; r++) {
        const float *x = w->x + r * MHAI_SCORE_STRIDE;
        double *to = sums + (item->by_row ? r * MHAI_CELL_KEYS : 0);
        for (int j = at->begin; j < at->end; j++) to[item->by_key ? j : 0] += (double)x[j];
    }
}

void mhai_cells_add_bias(const mhai_cells_job *job, mhai_cells_space *w, int64_t b, int64_t h,
                         const mhai_bias_item *item, double *sums)
{
    const mhai_attn_sequence seq = mhai_attn_sequence_of(job->p, b);
    for (int64_t i = item->chunk.begin; i < item->chunk.end; i++) {
        if (i * MHAI_CELL_QUERIES >= seq.T) break;
        const mhai_cells_chunk c =
            mhai_cells_load_chunk(job, w, b, h, i * MHAI_CELL_QUERIES, false);
        for (int64_t j = item->block.begin; j < item->block.end; j++) {
            mhai_cell at;
            if (j * MHAI_CELL_KEYS >= c.c.limit.end) break;
            mhai_cells_load_block(job, w, &seq, c.c.hk, j * MHAI_CELL_KEYS, false);
            if (!mhai_cells_run(job, &c, w, j * MHAI_CELL_KEYS, NULL, &at)) continue;
            mhai_cells_clear(&c, w, &at);
            add_cell(&c, w, &at, item, sums);
        }
    }
}

void mhai_cells_write_bias(const mhai_cells_job *job, const mhai_bias_item *item,
                           const double *sums)
{
    mhai_backward_bias bias = mhai_backward_bias_of(job->x);
    mhai_attn_sequence seq = {.T = job->p->T};
    if (job->p->B > 0) seq = mhai_attn_sequence_of(job->p, item->b.begin);
    int64_t t = item->chunk.begin * MHAI_CELL_QUERIES, key = item->block.begin * MHAI_CELL_KEYS;
    int64_t rows = item->by_row ? mhai_min_i64(MHAI_CELL_QUERIES, seq.T - t) : 1;
    int64_t keys = item->by_key ? mhai_min_i64(MHAI_CELL_KEYS, job->p->S - key) : 1;
    int64_t row = item->by_row ? seq.q0 + t : 0;
    float *out = (float *)job->x->bias.data + seq.batch * bias.stride[0] * (bias.shape[0] != 1) +
                 item->h.begin * bias.stride[1] * (bias.shape[1] != 1) + row * bias.stride[2] +
                 (item->by_key ? key : 0) * bias.stride[3];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < keys; j++)
            mhai_backward_write(job->x, out + r * bias.stride[2] + j * bias.stride[3],
                                sums[r * MHAI_CELL_KEYS + j]);
}

void mhai_cells_run_bias(void *argument, int64_t index, int worker)
{
    const mhai_cells_job *job = argument;
    const mhai_bias_item item = mhai_cells_bias_item(job, index);
    mhai_cells_space w = mhai_cells_space_of(job, worker);
    memset(w.bias, 0, MHAI_CELL_QUERIES * MHAI_CELL_KEYS * sizeof(double));
    for (int64_t b = item.b.begin; b < item.b.end; b++)
        for (int64_t h = item.h.begin; h < item.h.end; h++)
            mhai_cells_add_bias(job, &w, b, h, &item, w.bias);
    mhai_cells_write_bias(job, &item, w.bias);
}
