/* Recurrent layers, chunk by chunk. Within a chunk the writes u solve a triangular system (the WY
 * form), row by row. S contains all tokens before the chunk.
 *
 * A chunk is processed in strips of MHAI_STRIP rows. All decays are factors of at most one, so
 * strong decays cannot overflow: keys of finished strips are decayed up to the current strip, and a
 * row needs only its own decay since the strip began. Each product of a row has one chain of
 * additions for S, one for the finished strips and one for its own strip. No chain depends on which
 * rows are processed together, so single steps are bit-identical to the full pass. */
#include "attention/recurrent.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/need.h"

#include <multihead/component.h>

/* A worker's memory: rows of queries, then of keys. */
typedef struct workspace {
    float *given;    /* [2 STRIP][D] */
    float *scaled;   /* [2 STRIP][D], decayed since the chunk or the strip began */
    float *sums;     /* [2 STRIP][panels * 32] */
    float *products; /* [2 STRIP][64] with keys of finished strips */
    float *own;      /* [2 STRIP][32] with keys of the strip */
    float *value;    /* [STRIP][panels * 32] */
    double *decays;  /* [D] */
    void *head;      /* a state, used if the call passes none */
} workspace;

typedef struct job {
    const mhai_recurrent *call;
    const mhai_kernels *kernels;
    mha_recurrent_state *state; /* NULL: none */
    unsigned char *memory;
    size_t worker_bytes;
} job;

static workspace carve(const job *x, void *memory, size_t *bytes)
{
    const mhai_recurrent_sizes *s = &x->call->sizes;
    mhai_carver c = {memory, 0};
    workspace w = {.given = mhai_carve(&c, 2 * MHAI_STRIP * s->D, sizeof(float))};
    w.scaled = mhai_carve(&c, 2 * MHAI_STRIP * s->D, sizeof(float));
    w.sums = mhai_carve(&c, 2 * MHAI_STRIP * s->panels * MHAI_PANEL, sizeof(float));
    w.products = mhai_carve(&c, (int64_t)2 * MHAI_STRIP * 2 * MHAI_PANEL, sizeof(float));
    w.own = mhai_carve(&c, (int64_t)2 * MHAI_STRIP * MHAI_PANEL, sizeof(float));
    w.value = mhai_carve(&c, MHAI_STRIP * s->panels * MHAI_PANEL, sizeof(float));
    w.decays = mhai_carve(&c, s->D, sizeof(double));
    w.head = mhai_carve(&c, x->state ? 0 : 1, s->head_bytes);
    *bytes = c.used;
    return w;
}

/* A run of rows within a strip of one head. */
typedef struct run {
    const job *x;
    const workspace *w;
    mhai_recurrent_head head;
    int64_t b, h, t; /* the first row's token */
    int64_t strip;   /* index of the strip in its chunk */
    int64_t first;   /* index of the first row in the strip */
    int64_t count;
    int64_t rows; /* rows of queries; with the delta rule also of keys */
} run;

/* out (+)= rows of x times panels, with one chain per block of inputs. */
static void product(const run *r, const float *x, int64_t stride, int64_t rows, int64_t inner,
                    int64_t block, const float *panels, int64_t cols, int64_t panel_stride,
                    bool first, float *out, int64_t out_stride)
{
    const mhai_kernels *kernels = r->x->kernels;
    for (int64_t i = 0; i < rows; i += kernels->tile_rows)
        for (int64_t k = 0; k < inner && cols > 0; k += block)
            kernels->gemm_strip(
                &(mhai_gemm){.rows = (int)mhai_min_i64(kernels->tile_rows, rows - i),
                             .inner = mhai_min_i64(block, inner - k),
                             .panels = mhai_ceil_div(cols, MHAI_PANEL),
                             .cols = cols,
                             .x = x + i * stride + k,
                             .x_stride = stride,
                             .w = panels + k * MHAI_PANEL,
                             .panel_stride = panel_stride,
                             .first = first && k == 0,
                             .out = out + i * out_stride,
                             .out_stride = out_stride});
}

/* ---- decays and keys ------------------------------------------------------------------------- */

/* Prefetch row t of the inputs into L2, if it exists. In the output of a projection, rows of a head
 * are pages apart, which is too far for hardware prefetchers. */
static void fetch_row(const run *r, int64_t t)
{
    enum { LINE = 64 };
    const mhai_recurrent *call = r->x->call;
    const mha_tensor *const inputs[] = {&call->q, &call->k, &call->v};
    for (int i = 0; i < 3 && t < mhai_recurrent_length(call, r->b); i++) {
        const char *row = mhai_recurrent_row(call, inputs[i], r->b, r->h, t);
        const int64_t bytes = inputs[i]->shape[3] * (int64_t)mha_dtype_size(inputs[i]->dtype);
        for (int64_t k = 0; k < bytes; k += LINE) __builtin_prefetch(row + k, 0, 2);
    }
}

static void load_rows(const run *r)
{
    const mhai_recurrent *call = r->x->call;
    const int64_t D = call->sizes.D;
    for (int64_t i = 0; i < r->count; i++) {
        fetch_row(r, r->t + r->count + i);
        float *q = r->w->given + i * D, *k = r->w->given + (r->count + i) * D;
        mhai_widen(call->q.dtype, mhai_recurrent_row(call, &call->q, r->b, r->h, r->t + i), D, q);
        for (int64_t d = 0; d < D; d++) q[d] *= call->scale;
        mhai_widen(call->k.dtype, mhai_recurrent_row(call, &call->k, r->b, r->h, r->t + i), D, k);
        memcpy(r->head.keys + (r->strip * MHAI_STRIP + r->first + i) * D, k, (size_t)D * sizeof *k);
    }
}

/* Add the keys of all rows to the panel of the strip. */
static void add_keys(const run *r)
{
    const int64_t D = r->x->call->sizes.D;
    const float *keys = r->head.keys + (r->strip * MHAI_STRIP + r->first) * D;
    if (r->count == MHAI_STRIP) {
        r->x->kernels->pack_panels(&(mhai_pack){.out = r->head.own,
                                                .in = keys,
                                                .stride = D,
                                                .rows = r->count,
                                                .cols = D,
                                                .half = true});
        return;
    }
    for (int64_t i = 0; i < r->count; i++)
        for (int64_t d = 0; d < D; d++)
            r->head.own[d * MHAI_PANEL + r->first + i] = keys[i * D + d];
}

/* Decay the panel of the strip per channel, and add the key of row i. */
static void decay_keys(const run *r, int64_t i)
{
    const int64_t D = r->x->call->sizes.D, row = r->first + i;
    const float *key = r->head.keys + (r->strip * MHAI_STRIP + row) * D;
    const double *decays = r->w->decays;
    float *own = r->head.own;
    for (int64_t d = 0; d < D; d++, own += MHAI_PANEL) {
        const float decay = (float)decays[d];
        for (int64_t j = 0; j < MHAI_STRIP; j++) own[j] *= decay;
        own[row] = key[d];
    }
}

/* Compute the products of `count` rows with the keys of their strip: of all rows, or of one. */
static void own_products(const run *r, int64_t first, int64_t count)
{
    const bool all = count == r->count;
    const int64_t D = r->x->call->sizes.D, step = all ? 1 : r->count;
    product(r, r->w->given + first * D, step * D, all ? r->rows : r->rows / r->count, D,
            MHAI_GEMM_BLOCK, r->head.own, MHAI_STRIP, 0, true, r->w->own + first * MHAI_PANEL,
            step * MHAI_PANEL);
}

/* Decay the products of row i from key to row. */
static void decay_products(const run *r, int64_t i, double decay)
{
    double *weight = r->head.weight;
    const int64_t row = r->first + i;
    for (int64_t j = 0; j < row; j++) weight[j] *= decay;
    weight[row] = 1;
    for (int64_t half = 0; half < r->rows; half += r->count) {
        float *p = r->w->own + (half + i) * MHAI_PANEL;
        for (int64_t j = 0; j <= row; j++) p[j] = (float)((double)p[j] * weight[j]);
    }
}

/* Decay row i since the chunk began and since the strip began. */
static void decay_row(const run *r, int64_t i)
{
    const mhai_recurrent *call = r->x->call;
    const mhai_kernels *kernels = r->x->kernels;
    const int64_t D = call->sizes.D, each = call->channels ? D : 1;
    double *chunk = r->head.chunk, *strip = r->head.strip;
    mhai_recurrent_decays(call, r->b, r->h, r->t + i, r->w->decays);
    for (int64_t d = 0; d < each; d++) chunk[d] *= r->w->decays[d], strip[d] *= r->w->decays[d];
    if (call->channels) {
        decay_keys(r, i);
        own_products(r, i, 1);
    } else {
        decay_products(r, i, r->w->decays[0]);
    }
    for (int64_t row = i; row < r->rows; row += r->count) {
        float *given = r->w->given + row * D;
        kernels->scale_double(r->w->scaled + row * D, given, D, chunk, call->channels);
        if (r->strip) kernels->scale_double(given, given, D, strip, call->channels);
    }
}

/* Compute the products of all rows with the keys of the strip, with S, and with the finished
 * strips. */
static void multiply_rows(const run *r)
{
    const mhai_recurrent *call = r->x->call;
    const int64_t D = call->sizes.D, wide = call->sizes.panels * MHAI_PANEL;
    const int64_t finished = r->strip * MHAI_STRIP;
    if (!call->channels) {
        add_keys(r);
        own_products(r, 0, r->count);
    }
    for (int64_t i = 0; i < r->count; i++) decay_row(r, i);
    product(r, r->w->scaled, D, r->rows, D, MHAI_GEMM_BLOCK, r->head.s, wide, D * MHAI_PANEL, true,
            r->w->sums, wide);
    if (finished == 0) return;
    product(r, r->w->given, D, r->rows, D, MHAI_GEMM_BLOCK, r->head.before, finished,
            D * MHAI_PANEL, true, r->w->products, 2 * MHAI_PANEL);
    product(r, r->w->products, 2 * MHAI_PANEL, r->rows, finished, finished, r->head.u, wide,
            MHA_RECURRENT_CHUNK * MHAI_PANEL, false, r->w->sums, wide);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Write u and o of all rows. */
static void write_rows(const run *r)
{
    const mhai_recurrent *call = r->x->call;
    const int64_t Dv = call->sizes.Dv, wide = call->sizes.panels * MHAI_PANEL;
    double strength[MHAI_STRIP];
    for (int64_t i = 0; i < r->count; i++) {
        strength[i] = mhai_recurrent_number(&call->strength, r->b, r->h, r->t + i, 1);
        mhai_widen(call->v.dtype, mhai_recurrent_row(call, &call->v, r->b, r->h, r->t + i), Dv,
                   r->w->value + i * wide);
    }
    r->x->kernels->recurrent_strip(
        &(mhai_recurrent_strip){.first = (int)r->first,
                                .rows = (int)r->count,
                                .cols = wide,
                                .erase = call->delta ? r->w->own + r->count * MHAI_PANEL : NULL,
                                .read = r->w->own,
                                .value = r->w->value,
                                .strength = strength,
                                .erased = r->w->sums + r->count * wide,
                                .out = r->w->sums,
                                .u = r->head.u + r->strip * MHAI_STRIP * MHAI_PANEL,
                                .u_stride = MHA_RECURRENT_CHUNK * MHAI_PANEL});
    for (int64_t i = 0; i < r->count; i++) {
        float *sums = r->w->sums + i * wide;
        const double skip = mhai_recurrent_number(&call->skip, r->b, r->h, r->t + i, 0);
        for (int64_t c = 0; call->skip.ndim > 0 && c < Dv; c++)
            sums[c] = (float)((double)sums[c] + skip * (double)r->w->value[i * wide + c]);
        mhai_narrow(call->o.dtype, mhai_recurrent_row(call, &call->o, r->b, r->h, r->t + i), sums,
                    Dv);
    }
}

/* ---- ends of strips and chunks --------------------------------------------------------------- */

/* Decay keys up to the end of the strip, and pack all keys of the chunk so far into panels. */
static void end_strip(const run *r)
{
    const mhai_recurrent *call = r->x->call;
    const int64_t D = call->sizes.D, begin = r->strip * MHAI_STRIP, end = begin + MHAI_STRIP;
    for (int64_t j = 0; j < end; j++) {
        float *key = r->head.keys + j * D;
        if (j >= begin && call->channels)
            for (int64_t d = 0; d < D; d++) key[d] = r->head.own[d * MHAI_PANEL + j - begin];
        else
            r->x->kernels->scale_double(key, key, D,
                                        j >= begin ? &r->head.weight[j - begin] : r->head.strip,
                                        call->channels);
    }
    for (int64_t d = 0; d < D; d++) r->head.strip[d] = 1;
    memset(r->head.own, 0, (size_t)(D * MHAI_PANEL) * sizeof(float));
    if (end == MHA_RECURRENT_CHUNK) return;
    r->x->kernels->pack_panels(&(mhai_pack){
        .out = r->head.before, .in = r->head.keys, .stride = D, .rows = end, .cols = D});
}

/* S = chunk S + keys^T u */
static void end_chunk(const run *r)
{
    const mhai_recurrent *call = r->x->call;
    const int64_t D = call->sizes.D, strip = r->x->kernels->tile_rows;
    const int64_t count = MHAI_PANEL * (call->channels ? 1 : D); /* with one decay */
    for (int64_t p = 0; p < call->sizes.panels; p++) {
        float *s = r->head.s + p * D * MHAI_PANEL;
        for (int64_t d = 0; d * count < D * MHAI_PANEL; d++)
            r->x->kernels->scale_double(s + d * count, s + d * count, count, r->head.chunk + d,
                                        false);
        for (int64_t d = 0; d < D; d += strip)
            r->x->kernels->gemm_strip(
                &(mhai_gemm){.rows = (int)mhai_min_i64(strip, D - d),
                             .inner = MHA_RECURRENT_CHUNK,
                             .panels = 1,
                             .cols = MHAI_PANEL,
                             .x = r->head.keys + d,
                             .x_stride = D,
                             .transposed = true,
                             .w = r->head.u + p * MHA_RECURRENT_CHUNK * MHAI_PANEL,
                             .out = s + d * MHAI_PANEL,
                             .out_stride = MHAI_PANEL});
    }
    for (int64_t d = 0; d < D; d++) r->head.chunk[d] = 1;
}

/* ---- the call -------------------------------------------------------------------------------- */

static void run_head(void *argument, int64_t item, int worker)
{
    const job *x = argument;
    const mhai_recurrent *call = x->call;
    size_t bytes;
    const workspace w = carve(x, x->memory + (size_t)worker * x->worker_bytes, &bytes);
    const int64_t b = item / call->H, length = mhai_recurrent_length(call, b);
    int64_t at = x->state ? x->state->lengths[b] % MHA_RECURRENT_CHUNK : 0;
    void *memory = x->state ? x->state->memory + (size_t)item * call->sizes.head_bytes : w.head;
    if (!x->state) {
        memset(memory, 0, call->sizes.head_bytes);
        mhai_recurrent_begin(&call->sizes, memory);
    }
    memset(w.value, 0, (size_t)(MHAI_STRIP * call->sizes.panels * MHAI_PANEL) * sizeof(float));
    run r = {.x = x, .w = &w, .head = mhai_recurrent_parts(&call->sizes, memory), .b = b};
    r.h = item % call->H;
    for (; r.t < length; r.t += r.count) {
        r.strip = at / MHAI_STRIP;
        r.first = at % MHAI_STRIP;
        r.count = mhai_min_i64(MHAI_STRIP - r.first, length - r.t);
        r.rows = call->delta ? 2 * r.count : r.count;
        load_rows(&r);
        multiply_rows(&r);
        write_rows(&r);
        at = (at + r.count) % MHA_RECURRENT_CHUNK;
        if (r.first + r.count == MHAI_STRIP) end_strip(&r);
        if (at == 0) end_chunk(&r);
    }
    memset(w.value, 0, (size_t)(call->sizes.panels * MHAI_PANEL) * sizeof(float));
    for (int64_t t = length; t < call->T; t++)
        mhai_narrow(call->o.dtype, mhai_recurrent_row(call, &call->o, b, r.h, t), w.value,
                    call->sizes.Dv);
}

static mha_status check_state(const mha_recurrent_state *x, const mhai_recurrent *call)
{
    if (!x) return MHA_OK;
    if (x->B != call->B || x->H != call->H || x->sizes.D != call->sizes.D ||
        x->sizes.Dv != call->sizes.Dv)
        return mha_fail(MHA_ERR_SHAPE,
                        "state: [%lld,%lld,%lld,%lld], expected [%lld,%lld,%lld,%lld]",
                        (long long)x->B, (long long)x->H, (long long)x->sizes.D,
                        (long long)x->sizes.Dv, (long long)call->B, (long long)call->H,
                        (long long)call->sizes.D, (long long)call->sizes.Dv);
    for (int64_t b = 0; b < call->B; b++)
        if (mhai_recurrent_length(call, b) != 0 && x->lengths[b] % MHA_RECURRENT_CHUNK != 0 &&
            x->channels[b] != call->channels)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "log_decay: is %s, expected %s as in the calls that began the chunk "
                            "of %d tokens at token %lld",
                            call->channels ? "per channel" : "per head or NULL",
                            call->channels ? "per head or NULL" : "per channel",
                            MHA_RECURRENT_CHUNK,
                            (long long)(x->lengths[b] / MHA_RECURRENT_CHUNK * MHA_RECURRENT_CHUNK));
    return MHA_OK;
}

mha_status mha_recurrent_forward(mha_context *context, const mha_recurrent_desc *desc,
                                 const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                                 mha_recurrent_state *state, const mha_tensor *o)
{
    mhai_recurrent call;
    MHA_NEED("mha_recurrent_forward", context, q, k, v, o);
    MHA_TRY(mhai_recurrent_check(desc, q, k, v, o, 0, &call));
    MHA_TRY(mhai_recurrent_check_output("o", o, &call));
    MHA_TRY(check_state(state, &call));
    if (call.B == 0 || call.H == 0 || call.T == 0 || call.sizes.Dv == 0)
        return MHA_OK; /* other axes of a tensor without elements may have any length */
    job x = {.call = &call, .kernels = mhai_kernels_for(context->isa), .state = state};
    carve(&x, NULL, &x.worker_bytes);
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = mha_scratch_alloc(context, context->num_threads, x.worker_bytes, &x.memory);
    if (!status) {
        mha_parallel_for(context, call.B * call.H, run_head, &x);
        for (int64_t b = 0; state && b < call.B; b++) {
            const int64_t length = mhai_recurrent_length(&call, b);
            state->lengths[b] += length;
            if (length > 0) state->channels[b] = call.channels;
        }
    }
    return mha_scratch_end(context, mark, status);
}
