/* Attention in int8 arithmetic (docs/numerics.md 13): the walk over chunks, key blocks and strips
 * is that of the tiled path, and so are the masks; a block's keys and values and a chunk's queries
 * become small numbers on the way. What they become depends on the block, or the query, alone. */
#include "attention/attn_tiles.h"
#include "kernels/int8.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <string.h>

/* One worker's memory beside its workspace. */
typedef struct int8_memory {
    int32_t *q, *k, *v; /* [rows][row stride]; packed block */
    float *q_unit;      /* [rows] */
    int32_t *q_start;   /* [rows] */
    float *mean, *k_unit, *v_unit;
    size_t bytes;
} int8_memory;

/* One call; visitors get a worker's part of it. */
typedef struct int8_job {
    mhai_attn_walk walk;
    const mhai_int8_kernels *kernels;
    unsigned char *memory;
    size_t worker_bytes;
} int8_job;

typedef struct int8_worker {
    const int8_job *job;
    int8_memory memory;
} int8_worker;

/* ---- what it takes -------------------------------------------------------------------------- */

const char *mhai_int8_refuses(const mha_context *context, const mhai_attn_problem *p)
{
    const int takes =
        MHAI_MASKS | MHAI_BIASES | MHAI_USES(ragged) | MHAI_USES(sink_logits) | MHAI_USES(gates);
    mhai_attn_named outputs[MHAI_ATTN_OUTPUTS];
    const int count = mhai_attn_list_outputs(p, outputs);
    (void)context;
    if (p->uses & MHAI_USES(softcap)) return "compute int8 does not go with a softcap";
    if (p->uses & MHAI_USES(dropout)) return "compute int8 does not go with dropout";
    if (p->uses & (MHAI_USES(shaw_keys) | MHAI_USES(shaw_values)))
        return "compute int8 does not go with Shaw's relative positions";
    if (p->uses & ~takes) return "compute int8 does not go with an input of the descriptor";
    for (int i = 0; i < count; i++)
        if (outputs[i].tensor != &p->o && outputs[i].tensor != &p->lse)
            return "compute int8 has no outputs but o and lse";
    if (p->D > MHA_TILED_MAX_HEAD_DIM || p->Dv > MHA_TILED_MAX_HEAD_DIM)
        return "compute int8 takes head sizes up to 256";
    return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* `count` dwords on lines of their own; memory NULL: none, only their bytes count. */
static void *dwords_at(unsigned char *memory, size_t *used, int64_t count)
{
    void *part = memory ? memory + *used : NULL;
    *used += (size_t)mhai_round_up(count, 16) * sizeof(int32_t);
    return part;
}

static int8_memory lay_out(const mhai_attn_problem *p, const mhai_attn_tiling *tiling,
                           const mhai_int8_kernels *kernels, unsigned char *memory)
{
    int8_memory m = {0};
    const int64_t rows = tiling->chunk_rows, values = mhai_attn_padded_values(p);
    const int64_t dwords = mhai_ceil_div(p->D, kernels->group);
    m.q = dwords_at(memory, &m.bytes, rows * kernels->row_stride);
    m.k = dwords_at(memory, &m.bytes, MHAI_KEY_BLOCK * dwords);
    m.v = dwords_at(memory, &m.bytes, MHAI_KEY_BLOCK / kernels->group * values);
    m.q_unit = dwords_at(memory, &m.bytes, rows);
    m.q_start = dwords_at(memory, &m.bytes, rows);
    m.mean = dwords_at(memory, &m.bytes, p->D);
    m.k_unit = dwords_at(memory, &m.bytes, MHAI_KEY_BLOCK);
    m.v_unit = dwords_at(memory, &m.bytes, values);
    return m;
}

/* ---- the visitor ----------------------------------------------------------------------------- */

static void start_chunk(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const int8_worker *worker = user;
    const mhai_int8_kernels *kernels = worker->job->kernels;
    const int8_memory *m = &worker->memory;
    const int64_t width = worker->job->walk.p->D;
    memset(w->o, 0,
           (size_t)(c->rows * mhai_attn_padded_values(worker->job->walk.p)) * sizeof(float));
    for (int64_t r = 0; r < c->rows; r++)
        kernels->int8_query(w->q + r * width, width, m->q + r * kernels->row_stride, m->q_unit + r,
                            m->q_start + r);
}

/* All keys of the block that the sequence has, whether this chunk sees them or not, so that what
 * they become does not depend on how rows are divided. */
static void pack_block(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                       mhai_attn_block *block)
{
    const int8_worker *worker = user;
    const mhai_attn_walk *walk = &worker->job->walk;
    const int8_memory *m = &worker->memory;
    mhai_attn_block whole = *block;
    whole.keys = (int)mhai_min_i64(MHAI_KEY_BLOCK, c->seq.S - block->key);
    whole.pack_begin = 0, whole.pack_end = whole.keys;
    mhai_attn_pack_block(walk, c, w, true, &whole);
    worker->job->kernels->int8_keys(&(mhai_int8_keys){.in = w->k,
                                                      .keys = whole.keys,
                                                      .head_dim = walk->p->D,
                                                      .out = m->k,
                                                      .mean = m->mean,
                                                      .unit = m->k_unit,
                                                      .bad = w->bad_key,
                                                      .any_bad = &whole.bad});
    worker->job->kernels->int8_values(
        &(mhai_int8_values){.in = w->v,
                            .keys = whole.keys,
                            .panels = mhai_attn_padded_values(walk->p) / MHAI_PANEL,
                            .out = m->v,
                            .unit = m->v_unit});
    block->packed = whole.packed;
    block->bad = whole.bad;
}

static void forward_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_block *block, mhai_attn_strip *s)
{
    const int8_worker *worker = user;
    const mhai_int8_kernels *kernels = worker->job->kernels;
    const int8_memory *m = &worker->memory;
    (void)c, (void)w, (void)block;
    kernels->int8_forward(&s->tile, &(mhai_int8_tile){.q = m->q + s->first * kernels->row_stride,
                                                      .q_unit = m->q_unit + s->first,
                                                      .q_start = m->q_start + s->first,
                                                      .k = m->k,
                                                      .mean = m->mean,
                                                      .k_unit = m->k_unit,
                                                      .v = m->v,
                                                      .v_unit = m->v_unit});
}

/* ---- the call -------------------------------------------------------------------------------- */

static void run_item(void *argument, int64_t item, int worker)
{
    const int8_job *job = argument;
    const mhai_attn_walk *walk = &job->walk;
    int8_worker part = {.job = job,
                        .memory = lay_out(walk->p, &walk->tiling, job->kernels,
                                          job->memory + (size_t)worker * job->worker_bytes)};
    const mhai_attn_visitor visitor = {
        .user = &part, .chunk = start_chunk, .pack = pack_block, .strip = forward_strip};
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(walk, item);
    mhai_attn_walk_chunk(walk, &c, &w, &visitor);
    mhai_attn_write_rows(walk, &c, &w);
}

mha_status mhai_int8_run(mha_context *context, const mhai_attn_plan *plan)
{
    int8_job job = {.kernels = mhai_int8_kernels_for(context->isa),
                    .worker_bytes = plan->scratch.int8_worker};
    void *memory;
    MHA_TRY(mhai_attn_walk_begin(context, plan, &job.walk));
    MHA_TRY(mha_scratch_alloc(context, plan->threads, job.worker_bytes, &memory));
    job.memory = memory;
    if (plan->tiling.alone)
        for (int64_t item = 0; item < plan->tiling.items; item++) run_item(&job, item, 0);
    else
        mha_parallel_for(context, plan->tiling.items, run_item, &job);
    return MHA_OK;
}

/* ---- the back end ---------------------------------------------------------------------------- */

mha_status mhai_int8_plan(const mha_context *context, mhai_attn_plan *plan)
{
    const mhai_int8_kernels *kernels = mhai_int8_kernels_for(context->isa);
    MHA_TRY(mhai_attn_divide(context, plan));
    plan->account.row_block =
        mhai_attn_strip_rows(&plan->p, plan->tiling.chunk_rows, plan->kernels->tile_rows);
    plan->account.reason = kernels->reason;
    plan->scratch.int8_worker = lay_out(&plan->p, &plan->tiling, kernels, NULL).bytes;
    return MHA_OK;
}
