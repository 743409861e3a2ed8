#include "support/extras.h"

#include <string.h>

static const struct {
    const char *name;
    size_t offset; /* offset of the field */
    mha_dtype dtype;
} fields[EXTRAS_COUNT] = {
#define EXTRAS_FIELD(name, field, dtype) {#field, offsetof(mha_attention_outputs, field), dtype},
    EXTRAS_LIST(EXTRAS_FIELD)
#undef EXTRAS_FIELD
};

const char *extras_name(int i)
{
    return i < EXTRAS_COUNT ? fields[i].name : "o";
}

extras_request extras_some(rng *r, const kinds_case *c)
{
    extras_request x = {.heads_count = -1, .rows_count = -1};
    const int64_t H = c->result.H, rows = c->result.T;
    if (rng_chance(r, 0.6)) {
        x.heads_count = H > 0 ? rng_between(r, 0, EXTRAS_MOST_HEADS) : 0;
        for (int64_t i = 0; i < x.heads_count; i++) x.heads[i] = rng_between(r, 0, H - 1);
    }
    if (rng_chance(r, 0.6)) {
        int64_t most = rng_chance(r, 0.2) ? EXTRAS_MOST_ROWS : 9;
        bool run = rng_chance(r, 0.4); /* neighbours */
        x.rows_count = rows > 0 ? rng_between(r, 0, most) : 0;
        for (int64_t i = 0; i < x.rows_count; i++)
            x.rows[i] = run && i > 0 ? (x.rows[i - 1] + 1) % rows : rng_between(r, 0, rows - 1);
    }
    x.offsets_count = rng_between(r, 0, EXTRAS_MOST_OFFSETS);
    for (int64_t i = 0; i < x.offsets_count; i++)
        x.offsets[i] = rng_chance(r, 0.1) ? (rng_chance(r, 0.5) ? INT64_MAX : INT64_MIN)
                                          : rng_between(r, -c->result.S, 3);
    x.top = rng_chance(r, 0.1) ? c->result.S + 3 : rng_between(r, 1, 7);
    x.stage = (mha_score_stage)rng_between(r, 0, 2);
    x.dropped = rng_chance(r, 0.4);
    return x;
}

static int shape_of(int i, const kinds_case *c, const extras_request *q, int64_t shape[4])
{
    const problem_shape *n = &c->result;
    const int64_t row[4] = {n->B, n->H, n->T, 0};
    memcpy(shape, row, sizeof row);
    switch (i) {
    case EXTRA_P:
    case EXTRA_SCORES:
        if (q->heads_count >= 0) shape[1] = q->heads_count;
        if (q->rows_count >= 0) shape[2] = q->rows_count;
        shape[3] = n->S;
        return 4;
    case EXTRA_AVERAGE: shape[1] = n->T, shape[2] = n->S; return 3;
    case EXTRA_COLUMNS: shape[2] = c->k.view.shape[2]; return 3;
    case EXTRA_OFFSETS: shape[3] = q->offsets_count; return 4;
    case EXTRA_TOP_KEYS:
    case EXTRA_TOP_WEIGHTS: shape[3] = q->top; return 4;
    default: return 3;
    }
}

static void request(extras *x)
{
    mha_attention_outputs *out = &x->outputs;
    const extras_request *q = &x->request;
    out->struct_size = sizeof *out;
    out->flags = q->dropped ? MHA_OUTPUT_DROPPED_PROBABILITIES : 0;
    out->score_stage = q->stage;
    if (q->heads_count >= 0) out->heads = q->heads, out->heads_count = q->heads_count;
    if (q->rows_count >= 0) out->rows = q->rows, out->rows_count = q->rows_count;
    if (x->has & 1 << EXTRA_OFFSETS)
        out->offsets = q->offsets, out->offsets_count = q->offsets_count;
}

void extras_make(extras *x, rng *r, const kinds_case *c, const extras_request *wanted,
                 unsigned which, unsigned layout)
{
    memset(x, 0, sizeof *x);
    x->has = which;
    x->request = *wanted;
    request(x);
    const problem_shape *n = &c->result;
    x->o = guarded_make(r, MHA_F32, 4, (int64_t[]){n->B, n->H, n->T, n->Dv}, layout);
    for (int i = 0; i < EXTRAS_COUNT; i++) {
        int64_t shape[4];
        int ndim = shape_of(i, c, wanted, shape);
        if (!(which & 1u << i)) continue;
        x->each[i] = guarded_make(r, fields[i].dtype, ndim, shape, layout);
        const mha_tensor *view = &x->each[i].view;
        memcpy((char *)&x->outputs + fields[i].offset, &view, sizeof view);
    }
}

void extras_free(extras *x)
{
    guarded_free(&x->o);
    for (int i = 0; i < EXTRAS_COUNT; i++)
        if (x->has & 1u << i) guarded_free(&x->each[i]);
}

mha_status extras_run(mha_context *context, const kinds_case *c, mha_path path, extras *x)
{
    mha_attention_desc desc = c->desc;
    desc.path = path;
    return mha_attention_forward(context, &desc, &c->q.view, &c->k.view, &c->v.view, &x->o.view,
                                 &x->outputs);
}

bool extras_intact(const extras *x)
{
    bool intact = guarded_gaps_intact(&x->o);
    for (int i = 0; i < EXTRAS_COUNT; i++)
        if (x->has & 1u << i) intact = intact && guarded_gaps_intact(&x->each[i]);
    return intact;
}

int extras_differ(const extras *a, const extras *b, bool nan_alike)
{
    for (int i = 0; i < EXTRAS_COUNT; i++)
        if ((a->has & b->has & 1u << i) &&
            !guarded_same_bits(&a->each[i].view, &b->each[i].view, nan_alike))
            return i;
    return guarded_same_bits(&a->o.view, &b->o.view, nan_alike) ? -1 : EXTRAS_COUNT;
}
