/* See int8_reference.h. */
#include "reference/int8_reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, MOST_DIM = 256 };
static const double u = 0x1p-24;
static const double ln2 = 0.69314718055994531;

static double *doubles(int64_t count)
{
    double *memory = calloc((size_t)(count > 0 ? count : 1), sizeof *memory);
    if (memory) return memory;
    fprintf(stderr, "int8_reference: no memory\n");
    abort();
}

int8_row int8_row_make(int64_t value_dim)
{
    return (int8_row){.value_dim = value_dim,
                      .o = doubles(value_dim),
                      .o_bound = doubles(value_dim),
                      .o_error = doubles(value_dim)};
}

void int8_row_free(int8_row *row)
{
    free(row->o);
    free(row->o_bound);
    free(row->o_error);
    *row = (int8_row){0};
}

/* A row of numbers as 127 steps. */
typedef struct small_row {
    int8_t small[MOST_DIM];
    double step; /* the number is small * step */
    float unit;  /* the same with a power of two that the definition adds; 0: all are 0 */
} small_row;

static small_row quantise(const float *x, int64_t n, float shift)
{
    small_row y = {0};
    float most = 0;
    for (int64_t d = 0; d < n; d++) most = fmaxf(most, fabsf(x[d]));
    if (most < 0x1p-80f) return y;
    const float steps = 127.0f / most;
    y.unit = most / 127.0f * shift;
    y.step = (double)y.unit / (double)shift;
    for (int64_t d = 0; d < n; d++) y.small[d] = (int8_t)lrintf(x[d] * steps);
    return y;
}

/* The row at hand. */
typedef struct query {
    const ref_attention *a;
    int64_t b, h, t, hk, D, Dv;
    kinds_sequence at;
    float q[MOST_DIM];
    small_row small;
    double size; /* sum of |q small step| */
    const kinds_row *exact;
} query;

/* What a block adds. */
typedef struct block_part {
    int64_t first, keys;
    float k[MOST_DIM], mean[MOST_DIM];
    bool seen;
    double top, top_error; /* its largest score, in units of log2 e */
    double sum;            /* of weights / 255 */
    double o[MOST_DIM], size[MOST_DIM], step[MOST_DIM];
    double flushed[MOST_DIM]; /* of all blocks: what factors below 2^-126 lose */
    int weight[BLOCK];
    double key_error[BLOCK]; /* of scores, natural units */
} block_part;

static float element(const query *x, const mha_tensor *tensor, int64_t s, int64_t d)
{
    return (float)ref_element(tensor, (int64_t[]){x->at.batch, x->hk, x->at.k0 + s, d});
}

/* Sixteen lanes by position, then a tree. */
static float sum_of_lanes(float lanes[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

static void find_mean(const query *x, block_part *p)
{
    const float each = 1.0f / (float)p->keys;
    for (int64_t d = 0; d < x->D; d++) {
        float lanes[16] = {0};
        for (int64_t s = 0; s < p->keys; s++) lanes[s % 16] += element(x, x->a->k, p->first + s, d);
        p->mean[d] = sum_of_lanes(lanes) * each;
        if (!(fabsf(p->mean[d]) < 0x1p126f)) p->mean[d] = 0;
    }
}

/* bias and relative terms, in f32 as they are added; exact: the sum of their sizes. */
static float with_terms(const query *x, int64_t s, float score, double *size)
{
    const mha_attention_desc *desc = x->a->desc;
    const kinds_score parts = kinds_score_at(x->a, x->b, x->h, x->t, s);
    const float log2_e = 0x1.715476p+0f;
    float relative = (float)parts.alibi;
    relative += (float)parts.t5;
    if (desc->bias) score += (float)parts.bias * log2_e;
    if (desc->alibi_slopes || desc->t5_table) score += relative * log2_e;
    *size = fabs(parts.bias) + fabs(parts.alibi) + fabs(parts.t5);
    return score < 0x1p126f ? score : 0x1p126f;
}

static int weight_of(float distance)
{
    if (!(distance > -32768.0f)) distance = -32768.0f;
    const int x = (int)rintf(distance), n = (int)floor(x / 2048.0), f = (x - 2048 * n) * 16;
    int y = (f * 5385 + 16384) / 32768 + 10868;
    y = (f * y + 16384) / 32768 + 16320;
    return n < -9 ? 0 : (y * (1 << (n + 9)) + 16384) / 32768;
}

static void score_block(const query *x, block_part *p)
{
    float score[BLOCK], unit = x->small.unit > 0 ? x->small.unit : 1.0f, top = -INFINITY;
    const mha_attention_desc *desc = x->a->desc;
    const bool terms = desc->bias || desc->alibi_slopes || desc->t5_table;
    double common = 0, common_size = 0;
    for (int64_t d = 0; d < x->D; d++) {
        common += (double)x->q[d] * (double)p->mean[d];
        common_size += fabs((double)x->q[d] * (double)p->mean[d]);
    }
    p->seen = false;
    for (int64_t s = 0; s < p->keys; s++) {
        int sum = 0;
        double rest = 0, size = 0, terms_size = 0;
        score[s] = -INFINITY;
        if (x->exact->score[p->first + s] == -INFINITY) continue;
        p->seen = true;
        for (int64_t d = 0; d < x->D; d++)
            p->k[d] = element(x, x->a->k, p->first + s, d) - p->mean[d];
        const small_row key = quantise(p->k, x->D, 0x1p-24f);
        for (int64_t d = 0; d < x->D; d++) {
            sum += x->small.small[d] * key.small[d];
            rest += fabs((double)p->k[d]);
            size += fabs((double)x->q[d] * (double)p->k[d]);
        }
        score[s] = (float)sum * key.unit;
        if (terms) score[s] = with_terms(x, p->first + s, score[s] * unit, &terms_size);
        top = fmaxf(top, score[s]);
        p->key_error[s] = ln2 * (0.5001 * (x->small.step * rest + key.step * x->size) +
                                 ((double)x->D + 16) * u * (size + common_size)) +
                          4 * u * terms_size + 0x1p-78 * (rest + 1);
    }
    if (!p->seen) return;
    if (terms) unit = 1;
    const float factor = unit * 2048.0f;
    p->top = (double)top * (double)unit + common;
    p->top_error = u * (((double)x->D / 16 + 6) * common_size +
                        2 * fabs((double)top * (double)unit) + fabs(p->top));
    p->sum = 0;
    for (int64_t s = 0; s < p->keys; s++) {
        p->weight[s] = score[s] == -INFINITY ? 0 : weight_of((score[s] - top) * factor);
        p->sum += p->weight[s] / 255.0;
    }
}

static void weigh_block(const query *x, block_part *p)
{
    for (int64_t d = 0; d < x->Dv; d++) {
        float column[BLOCK], most = 0;
        int64_t sum = 0;
        for (int64_t s = 0; s < p->keys; s++) {
            column[s] = element(x, x->a->v, p->first + s, d);
            most = fmaxf(most, fabsf(column[s]));
        }
        p->o[d] = p->size[d] = p->step[d] = 0;
        if (most < 0x1p-80f) continue;
        const float steps = 127.0f / most;
        p->step[d] = (double)(most / 127.0f);
        for (int64_t s = 0; s < p->keys; s++)
            sum += p->weight[s] * (int64_t)lrintf(column[s] * steps);
        p->o[d] = (double)sum * p->step[d] / 255.0;
        p->size[d] = fabs(p->o[d]);
        p->flushed[d] += 0x1p-126 * p->size[d];
    }
}

/* |w^ - w| summed over a block, times |v - o| or times 1; M is the exact row's largest score. */
static void add_error(const query *x, const block_part *p, double M, double *o_error, double *sum)
{
    const double rho = 0.0023, scale = exp(p->top * ln2 - M + ln2 * p->top_error);
    for (int64_t s = 0; s < p->keys; s++) {
        const double score = x->exact->score[p->first + s];
        if (score == -INFINITY) continue;
        const double w = exp(score - M), delta = p->key_error[s] + ln2 * 2 * p->top_error;
        const double change = w * (exp(delta) * (1 + rho) - 1) + 0.502 / 255 * scale;
        *sum += change;
        for (int64_t d = 0; d < x->Dv; d++)
            o_error[d] +=
                change * fabs((double)element(x, x->a->v, p->first + s, d) - x->exact->ungated[d]) +
                p->weight[s] / 255.0 * scale * (0.5001 * p->step[d] + 0x1p-79);
    }
}

static query make_query(const ref_attention *a, int64_t b, int64_t h, int64_t t,
                        const kinds_row *exact)
{
    query x = {.a = a, .b = b, .h = h, .t = t, .exact = exact, .at = kinds_sequence_at(a, b)};
    x.D = a->q->shape[3], x.Dv = a->v->shape[3];
    x.hk = h / (a->q->shape[1] / a->k->shape[1]);
    float scale = a->desc->scale;
    if (scale == 0 && !(a->desc->flags & MHA_ATTENTION_SCALE_GIVEN))
        scale = (float)(1.0 / sqrt((double)x.D));
    const float factor = (float)((double)scale * 1.4426950408889634);
    for (int64_t d = 0; d < x.D; d++)
        x.q[d] = (float)ref_element(a->q, (int64_t[]){x.at.batch, h, x.at.q0 + t, d}) * factor;
    x.small = quantise(x.q, x.D, 0x1p24f);
    for (int64_t d = 0; d < x.D; d++) x.size += abs(x.small.small[d]) * x.small.step;
    return x;
}

/* The online softmax over blocks in double, and the largest distance between maxima. */
static void join(int8_row *row, const block_part *p, double *m, double *l, double *range)
{
    const double top = fmax(*m, p->top), alpha = exp2(*m - top), beta = exp2(p->top - top);
    if (*m != -INFINITY) *range = fmax(*range, fabs(*m - p->top));
    *l = *l * alpha + beta * p->sum;
    for (int64_t d = 0; d < row->value_dim; d++) {
        row->o[d] = row->o[d] * alpha + beta * p->o[d];
        row->o_bound[d] = row->o_bound[d] * alpha + beta * p->size[d];
    }
    *m = top;
}

static void finish(const query *x, int8_row *row, const block_part *p, double m, double l,
                   double eps, double change, double M)
{
    const double gate = kinds_gate(x->a, x->b, x->h), hat = l * exp(m * ln2 - M);
    const double distance = change < hat ? change / (hat - change) : INFINITY;
    row->lse = l > 0 ? m * ln2 + log(l) : -INFINITY;
    row->lse_bound = 2 * eps + 2 * u * fabs(row->lse);
    row->lse_error = distance + row->lse_bound;
    for (int64_t d = 0; d < row->value_dim; d++) {
        const double size = l > 0 ? row->o_bound[d] / l : 0;
        row->o[d] = l > 0 ? row->o[d] / l * gate : 0;
        row->o_bound[d] = fabs(gate) * 2 * eps * size + 2 * u * fabs(row->o[d]) +
                          fabs(gate) * p->flushed[d] + 0x1p-120;
        row->o_error[d] = l > 0 ? row->o_error[d] / hat * fabs(gate) + row->o_bound[d] : 0;
    }
}

void int8_reference_row(const ref_attention *a, int64_t b, int64_t h, int64_t t,
                        const kinds_row *exact, int8_row *row)
{
    const query x = make_query(a, b, h, t, exact);
    const int64_t keys = a->desc->key_lengths ? a->desc->key_lengths[b] : x.at.S;
    double m = exact->sink / ln2, l = exact->sink == -INFINITY ? 0 : 1;
    double error = l > 0 ? 4 * u * fabs(m) : 0, range = 0, change = 0, M = exact->sink;
    int blocks = 2;
    block_part *p = calloc(1, sizeof *p);
    if (!p) abort();
    for (int64_t s = 0; s < exact->keys; s++) M = fmax(M, exact->score[s]);
    for (int64_t d = 0; d < x.Dv; d++) row->o[d] = row->o_bound[d] = row->o_error[d] = 0;
    for (int64_t key = 0; key < keys; key += BLOCK) {
        p->first = key, p->keys = keys - key < BLOCK ? keys - key : BLOCK;
        find_mean(&x, p);
        score_block(&x, p);
        if (!p->seen) continue;
        weigh_block(&x, p);
        join(row, p, &m, &l, &range);
        add_error(&x, p, M, row->o_error, &change);
        error = fmax(error, p->top_error);
        blocks++;
    }
    /* Between the reference and the library: differences of maxima, wrong by 2 error and a
     * rounding; exponentials, two a block, within 5 u; and four operations to join a block. */
    const double eps = ln2 * (2 * error + 2 * u * range) + 15 * u * blocks;
    finish(&x, row, p, m, l, eps, change, M);
    free(p);
}
