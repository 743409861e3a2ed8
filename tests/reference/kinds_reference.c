#include "reference/kinds_reference.h"

#include <math.h>
#include <stdlib.h>

kinds_row kinds_row_make(int64_t most_keys, int64_t value_dim)
{
    return (kinds_row){.value_dim = value_dim,
                       .score = ref_doubles(most_keys),
                       .p = ref_doubles(most_keys),
                       .factor = ref_doubles(most_keys),
                       .o = ref_doubles(value_dim),
                       .ungated = ref_doubles(value_dim)};
}

void kinds_row_free(kinds_row *row)
{
    free(row->score);
    free(row->p);
    free(row->factor);
    free(row->o);
    free(row->ungated);
    *row = (kinds_row){0};
}

ref_attention kinds_reference(const kinds_case *c)
{
    return (ref_attention){.desc = &c->desc, .q = &c->q.view, .k = &c->k.view, .v = &c->v.view};
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* An element of a tensor that broadcasts to `count` axes of the given index, aligned at the
 * right. */
static double broadcast(const mha_tensor *x, int count, const int64_t *full)
{
    int64_t at = 0;
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] != 1) at += full[count - x->ndim + i] * x->stride[i];
    if (x->dtype == MHA_I32) return (double)((const int32_t *)x->data)[at];
    if (x->dtype == MHA_U8) return (double)((const uint8_t *)x->data)[at];
    if (x->dtype == MHA_F64) return ((const double *)x->data)[at];
    return (double)((const float *)x->data)[at];
}

static double pair(const mha_tensor *x, int64_t i, int64_t j)
{
    return broadcast(x, 2, (int64_t[]){i, j});
}

static double table_element(const mha_tensor *x, int64_t i, int64_t j)
{
    return ref_element(x, (int64_t[]){i, j});
}

static double element(const mha_tensor *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return ref_element(x, (int64_t[]){b, h, t, d});
}

/* ---- positions ------------------------------------------------------------------------------- */

int64_t kinds_sequences(const ref_attention *a)
{
    return a->desc->query_starts ? a->desc->sequences : a->q->shape[0];
}

kinds_sequence kinds_sequence_at(const ref_attention *a, int64_t b)
{
    const int64_t *queries = a->desc->query_starts, *keys = a->desc->key_starts;
    if (!queries) return (kinds_sequence){b, 0, 0, a->q->shape[2], a->k->shape[2]};
    return (kinds_sequence){0, queries[b], keys[b], queries[b + 1] - queries[b],
                            keys[b + 1] - keys[b]};
}

float *kinds_at(const mha_tensor *x, const ref_attention *a, int64_t b, int64_t h, int64_t t)
{
    kinds_sequence at = kinds_sequence_at(a, b);
    return (float *)x->data + at.batch * x->stride[0] + h * x->stride[1] +
           (at.q0 + t) * x->stride[2];
}

static int64_t offset_of(const mha_attention_desc *desc, int64_t b)
{
    return desc->q_offsets ? desc->q_offsets[b] : desc->q_offset;
}

/* s - (t + offset). */
int64_t kinds_relative(const mha_attention_desc *desc, int64_t b, int64_t t, int64_t s)
{
    return s - t - offset_of(desc, b);
}

int64_t kinds_shaw_row(const ref_attention *a, const mha_tensor *table, int64_t b, int64_t t,
                       int64_t s)
{
    int64_t k = (table->shape[0] - 1) / 2, rel = kinds_relative(a->desc, b, t, s);
    return (rel < -k ? -k : rel > k ? k : rel) + k;
}

int64_t kinds_t5_bucket(int64_t rel, int64_t buckets, int64_t max_distance, bool one_sided)
{
    int64_t first = 0;
    double distance = fabs((double)rel);
    if (one_sided) {
        if (rel > 0) distance = 0;
    } else {
        buckets /= 2;
        if (rel > 0) first = buckets;
    }
    int64_t exact = buckets / 2;
    if (distance < (double)exact) return first + (int64_t)distance;
    /* Bucket exact + j begins where (distance / exact)^(buckets - exact) reaches
     * (max / exact)^j; equality occurs only at integer powers; other differences are far above the
     * tolerance. */
    double steps = (double)(buckets - exact);
    double reach = steps * log(distance / (double)exact) + 1e-10;
    int64_t j = 0;
    while (exact + j + 1 < buckets &&
           (double)(j + 1) * log((double)max_distance / (double)exact) <= reach)
        j++;
    return first + exact + j;
}

/* ---- masks ----------------------------------------------------------------------------------- */

static bool in_window(const ref_attention *a, kinds_sequence at, int64_t b, int64_t t, int64_t s)
{
    const mha_attention_desc *desc = a->desc;
    if (!(desc->flags & MHA_ATTENTION_WINDOW)) return true;
    if (s < desc->sink_keys + (desc->key_begins ? desc->key_begins[b] : 0)) return true;
    if (desc->global_keys && pair(desc->global_keys, at.batch, at.k0 + s) != 0) return true;
    if (desc->global_queries && pair(desc->global_queries, at.batch, at.q0 + t) != 0) return true;
    int64_t rel = kinds_relative(desc, b, t, s);
    bool left = desc->left_keys == -1 || rel >= -desc->left_keys;
    return left && (desc->right_keys == -1 || rel <= desc->right_keys);
}

static bool called_back(const mha_attention_desc *desc, int64_t b, int64_t h, int64_t t, int64_t s)
{
    uint8_t keep = 0;
    if (!desc->keep_callback) return true;
    desc->keep_callback(desc->keep_callback_user, b, h, t, 1, s, 1, &keep, 1);
    return keep != 0;
}

bool kinds_sees(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const mha_attention_desc *desc = a->desc;
    kinds_sequence at = kinds_sequence_at(a, b);
    const int64_t dense[4] = {at.batch, h, at.q0 + t, s};
    if ((desc->flags & MHA_ATTENTION_CAUSAL) && kinds_relative(desc, b, t, s) > 0) return false;
    if (desc->key_lengths && s >= desc->key_lengths[b]) return false;
    if (desc->key_begins && s < desc->key_begins[b]) return false;
    if (!in_window(a, at, b, t, s)) return false;
    if (desc->key_documents && pair(desc->key_documents, at.batch, at.k0 + s) !=
                                   pair(desc->query_documents, at.batch, at.q0 + t))
        return false;
    if (desc->keep_blocks) {
        const int64_t cell[4] = {at.batch, h, t / desc->block_queries, s / desc->block_keys};
        if (broadcast(desc->keep_blocks, 4, cell) == 0) return false;
    }
    if (desc->keep_mask && broadcast(desc->keep_mask, 4, dense) == 0) return false;
    if (desc->bias && broadcast(desc->bias, 4, dense) == -INFINITY) return false;
    return called_back(desc, b, h, t, s);
}

/* ---- scores ---------------------------------------------------------------------------------- */

kinds_score kinds_score_at(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const mha_attention_desc *desc = a->desc;
    kinds_sequence at = kinds_sequence_at(a, b);
    int64_t hk = h / (a->q->shape[1] / a->k->shape[1]), rel = kinds_relative(desc, b, t, s);
    double scale = ref_scale(desc, a->q->shape[3]);
    kinds_score x = {0};
    for (int64_t d = 0; d < a->q->shape[3]; d++) {
        double q = element(a->q, at.batch, h, at.q0 + t, d);
        x.product += scale * q * element(a->k, at.batch, hk, at.k0 + s, d);
        if (desc->shaw_keys)
            x.shaw +=
                scale * q *
                table_element(desc->shaw_keys, kinds_shaw_row(a, desc->shaw_keys, b, t, s), d);
    }
    x.before_cap = x.capped = x.product + x.shaw;
    if (desc->softcap > 0)
        x.capped = (double)desc->softcap * tanh(x.before_cap / (double)desc->softcap);
    if (desc->bias) x.bias = broadcast(desc->bias, 4, (int64_t[]){at.batch, h, at.q0 + t, s});
    if (desc->alibi_slopes) x.alibi = -pair(desc->alibi_slopes, b, h) * fabs((double)rel);
    if (desc->t5_table) {
        int64_t buckets = desc->t5_table->shape[0];
        int64_t most = desc->t5_max_distance ? desc->t5_max_distance : 128;
        bool one_sided = desc->flags & MHA_ATTENTION_T5_ONE_SIDED;
        x.t5 = table_element(desc->t5_table, kinds_t5_bucket(rel, buckets, most, one_sided), h);
    }
    x.sum = x.capped + x.bias + x.alibi + x.t5;
    return x;
}

/* ---- dropout --------------------------------------------------------------------------------- */

void kinds_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t key0 = key[0] + round * 0x9E3779B9u, key1 = key[1] + round * 0xBB67AE85u;
        uint64_t left = 0xD2511F53ull * x0, right = 0xCD9E8D57ull * x2;
        x0 = (uint32_t)(right >> 32) ^ x1 ^ key0;
        x1 = (uint32_t)right;
        x2 = (uint32_t)(left >> 32) ^ x3 ^ key1;
        x3 = (uint32_t)left;
    }
    out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

/* Word s mod 4 at counter (s / 4, t, h, b), with the seed as key. The weight is dropped if word /
 * 2^32 is below the probability. */
static double dropout_factor(const mha_attention_desc *desc, int64_t b, int64_t h, int64_t t,
                             int64_t s)
{
    double probability = (double)desc->dropout;
    if (probability == 0) return 1;
    const uint32_t counter[4] = {(uint32_t)(s / 4), (uint32_t)t, (uint32_t)h, (uint32_t)b};
    const uint32_t key[2] = {(uint32_t)desc->dropout_seed, (uint32_t)(desc->dropout_seed >> 32)};
    uint32_t word[4];
    kinds_philox(counter, key, word);
    if ((double)word[s % 4] * 0x1p-32 < probability) return 0;
    return 1 / (1 - probability);
}

/* ---- rows ------------------------------------------------------------------------------------ */

double kinds_value(const ref_attention *a, int64_t b, int64_t h, int64_t t, int64_t s, int64_t d)
{
    kinds_sequence at = kinds_sequence_at(a, b);
    int64_t hk = h / (a->q->shape[1] / a->k->shape[1]);
    double value = element(a->v, at.batch, hk, at.k0 + s, d);
    const mha_tensor *table = a->desc->shaw_values;
    return table ? value + table_element(table, kinds_shaw_row(a, table, b, t, s), d) : value;
}

double kinds_gate(const ref_attention *a, int64_t b, int64_t h)
{
    return a->desc->gates ? pair(a->desc->gates, b, h) : 1;
}

static void score_row(const ref_attention *a, int64_t b, int64_t h, int64_t t, kinds_row *row)
{
    const mha_tensor *sinks = a->desc->sink_logits;
    row->sink = sinks ? ref_element(sinks, &h) : -INFINITY;
    row->visible = 0;
    for (int64_t s = 0; s < row->keys; s++) {
        bool sees = kinds_sees(a, b, h, t, s);
        row->visible += sees;
        row->score[s] = sees ? kinds_score_at(a, b, h, t, s).sum : -INFINITY;
        row->factor[s] = sees ? dropout_factor(a->desc, b, h, t, s) : 0;
    }
}

void kinds_attention_row(const ref_attention *a, int64_t b, int64_t h, int64_t t, kinds_row *row)
{
    row->keys = kinds_sequence_at(a, b).S;
    score_row(a, b, h, t, row);
    double max = row->sink, sum = 0;
    for (int64_t s = 0; s < row->keys; s++) max = fmax(max, row->score[s]);
    row->sink_p = row->sink == -INFINITY ? 0 : exp(row->sink - max);
    sum = row->sink_p;
    for (int64_t s = 0; s < row->keys; s++)
        sum += row->p[s] = row->score[s] == -INFINITY ? 0 : exp(row->score[s] - max);
    for (int64_t d = 0; d < row->value_dim; d++) row->ungated[d] = 0;
    for (int64_t s = 0; s < row->keys; s++) {
        if (row->score[s] == -INFINITY) continue;
        row->p[s] /= sum;
        for (int64_t d = 0; d < row->value_dim; d++)
            row->ungated[d] += row->p[s] * row->factor[s] * kinds_value(a, b, h, t, s, d);
    }
    if (sum > 0) row->sink_p /= sum;
    for (int64_t d = 0; d < row->value_dim; d++) row->o[d] = row->ungated[d] * kinds_gate(a, b, h);
    row->lse = sum > 0 ? max + log(sum) : -INFINITY;
}
