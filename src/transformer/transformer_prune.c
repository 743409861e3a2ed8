/* Derived transformers: with heads removed, with key/value heads averaged, or with the same
 * parameters and another description. */
#include "transformer/transformer_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/need.h"
#include "nn/nn_check.h"

#include <string.h>

/* The old heads that make up the heads of a new layer. */
typedef struct heads_plan {
    int64_t q, kv;    /* heads of the new layer */
    int64_t *from_q;  /* [q] */
    int64_t *from_kv; /* [kv], the first of `merged` heads that are averaged */
    int64_t merged;   /* number of heads averaged into one; 1: copied */
} heads_plan;

/* How a parameter changes. Heads own its rows or its columns, `block` per head. */
typedef struct part {
    mha_parameter old;
    const int64_t *rows, *columns; /* the old head of each new head; NULL: all, in order */
    int64_t block, merged;
} part;

/* A derived transformer in progress. It is also the source of the new transformer if
 * the old one has a source. */
typedef struct pruning {
    mha_allocator allocator;
    const mha_transformer *from;
    mha_transformer *shared; /* another owner of `from`, if it must outlive the call */
    heads_plan *plans;       /* [L] */
    int64_t layers;
    const mha_transformer_desc *as; /* the new description, during creation; NULL: that of `from` */
    bool whole;                     /* a copy: keeps all heads, and num_heads */
    int64_t *lists;                 /* memory of the arrays in plans */
    int64_t list_count;
    part *parts; /* [parameters] */
    int64_t part_count;
} pruning;

/* ---- plans --------------------------------------------------------------------------------- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void release(void *user)
{
    pruning *x = user;
    const mha_allocator a = x->allocator;
    mhai_give(&a, x->plans, x->layers, sizeof *x->plans);
    mhai_give(&a, x->lists, x->list_count, sizeof *x->lists);
    mhai_give(&a, x->parts, x->part_count, sizeof *x->parts);
    mha_transformer_destroy(x->shared);
    mhai_give(&a, x, 1, sizeof *x);
}

static mha_status take(const pruning *x, int64_t count, size_t size, void *pointer)
{
    return mhai_take_for("pruning", &x->allocator, count, size, pointer);
}

/* Allocate plans and room for their heads. */
static mha_status take_plans(pruning *x, const mha_transformer_desc *d)
{
    x->layers = d->num_layers;
    MHA_TRY(take(x, x->layers, sizeof *x->plans, &x->plans));
    x->list_count = 2 * x->layers * d->num_heads;
    MHA_TRY(take(x, x->list_count, sizeof *x->lists, &x->lists));
    for (int64_t l = 0; l < x->layers; l++)
        x->plans[l] = (heads_plan){.merged = 1,
                                   .from_q = x->lists + 2 * l * d->num_heads,
                                   .from_kv = x->lists + (2 * l + 1) * d->num_heads};
    return MHA_OK;
}

static mha_status begin(mha_context *context, const mha_transformer *from, pruning **made)
{
    const mha_allocator *a = &context->allocator;
    pruning *x;
    MHA_TRY(mhai_take_for("pruning", a, 1, sizeof *x, &x));
    *x = (pruning){.allocator = *a};
    *made = x;
    return take_plans(x, &from->desc);
}

/* Plan a layer of the heads with keep != 0. If groups then differ in size, divide them into groups
 * whose size is the greatest common divisor. Each new group gets a copy of its key/value head. */
static void plan_kept(const mha_transformer *t, int64_t layer, const float *keep, heads_plan *plan)
{
    const mhai_heads heads = mhai_transformer_heads_of(&t->desc, layer, false);
    const int64_t group = heads.kv > 0 ? heads.q / heads.kv : 1;
    int64_t size = 0;
    for (int64_t g = 0; g < heads.kv; g++) {
        int64_t kept = 0;
        for (int64_t h = g * group; h < (g + 1) * group; h++) kept += keep[h] > 0;
        size = common_divisor(size, kept);
    }
    for (int64_t h = 0; h < heads.q; h++) {
        if (!(keep[h] > 0)) continue;
        if (plan->q % size == 0) plan->from_kv[plan->kv++] = h / group;
        plan->from_q[plan->q++] = h;
    }
}

/* Plan a layer of all heads. Every `merged` adjacent key/value heads become one. */
static void plan_all(const mha_transformer *t, int64_t layer, int64_t merged, heads_plan *plan)
{
    const mhai_heads heads = mhai_transformer_heads_of(&t->desc, layer, false);
    plan->q = heads.q;
    plan->kv = heads.kv / merged;
    plan->merged = merged;
    for (int64_t h = 0; h < plan->q; h++) plan->from_q[h] = h;
    for (int64_t g = 0; g < plan->kv; g++) plan->from_kv[g] = g * merged;
}

/* ---- parameters ---------------------------------------------------------------------------- */

static bool begins(const char *name, const char *beginning)
{
    return strncmp(name, beginning, strlen(beginning)) == 0;
}

static part find_part(const pruning *x, const mha_transformer *from, const mha_parameter *p,
                      const mha_parameter *old)
{
    const heads_plan *plan = p->layer < 0 ? NULL : &x->plans[p->layer];
    const char *name = plan ? strstr(p->name, ".self_attn.") : NULL;
    part made = {.old = *old, .block = 1, .merged = 1};
    if (!name) return made;
    name += strlen(".self_attn.");
    made.block = mhai_transformer_mix(&from->desc, p->layer).D;
    if (begins(name, "q_proj") || begins(name, "position_q_proj")) made.rows = plan->from_q;
    if (begins(name, "k_proj") || begins(name, "v_proj") || begins(name, "position_k_proj")) {
        made.rows = plan->from_kv;
        made.merged = plan->merged;
    }
    if (strcmp(name, "o_proj.weight") == 0) made.columns = plan->from_q;
    if (strcmp(name, "sinks") != 0 && strcmp(name, "alibi_slopes") != 0 &&
        strcmp(name, "relative_attention_bias.weight") != 0)
        return made;
    made.block = 1;
    *(p->ndim == 1 ? &made.rows : &made.columns) = plan->from_q;
    return made;
}

static int64_t old_place(const int64_t *heads, int64_t block, int64_t i)
{
    return heads ? heads[i / block] * block + i % block : i;
}

/* The number of new elements, starting at i and at most `most`, that are contiguous in the old
 * parameter. */
static int64_t run_of(const int64_t *heads, int64_t block, int64_t i, int64_t most)
{
    if (!heads) return most;
    int64_t n = block - i % block;
    while (n < most && old_place(heads, block, i + n) == old_place(heads, block, i) + n) n += block;
    return n < most ? n : most;
}

/* Copy old rows to [rows, columns] in contiguous runs; in one read if all
 * columns are contiguous. */
static void read_old(const pruning *x, const part *p, int64_t row, int64_t rows, int64_t column,
                     int64_t columns, float *to)
{
    const int64_t cols = p->old.ndim == 2 ? p->old.shape[1] : 1;
    const int64_t together = run_of(p->columns, p->block, column, columns) == columns ? rows : 1;
    for (int64_t r = 0; r < rows; r += together)
        for (int64_t i = 0, n; i < columns; i += n) {
            n = run_of(p->columns, p->block, column + i, columns - i);
            mhai_transformer_read_rows(x->from, p->old.offset, cols, row + r, together,
                                       old_place(p->columns, p->block, column + i), n,
                                       to + r * columns + i);
        }
}

/* Average the rows of merged heads, in double. */
static void read_merged(const pruning *x, const part *p, int64_t row, int64_t column,
                        int64_t columns, float *to)
{
    enum { PIECE = 256 };
    float piece[PIECE];
    double sum[PIECE];
    for (int64_t i = 0; i < columns; i += PIECE) {
        const int64_t n = columns - i < PIECE ? columns - i : PIECE;
        memset(sum, 0, sizeof sum);
        for (int64_t m = 0; m < p->merged; m++) {
            read_old(x, p, row + m * p->block, 1, column + i, n, piece);
            for (int64_t k = 0; k < n; k++) sum[k] += (double)piece[k];
        }
        for (int64_t k = 0; k < n; k++) to[i + k] = (float)(sum[k] / (double)p->merged);
    }
}

/* mha_transformer_source.read */
static void read_pruned(const void *user, int64_t parameter, int64_t row, int64_t rows,
                        int64_t column, int64_t columns, float *to)
{
    const pruning *x = user;
    const part *p = &x->parts[parameter];
    for (int64_t i = 0, n; i < rows; i += n) {
        const int64_t at = old_place(p->rows, p->block, row + i);
        n = p->merged > 1 ? 1 : run_of(p->rows, p->block, row + i, rows - i);
        if (p->merged > 1)
            read_merged(x, p, at, column, columns, to + i * columns);
        else
            read_old(x, p, at, n, column, columns, to + i * columns);
    }
}

/* ---- creation ------------------------------------------------------------------------------ */

/* The description of the new transformer, whose lists are written to heads and kv. */
static mha_transformer_desc describe(const pruning *x, const mha_transformer *from, int64_t *heads,
                                     int64_t *kv)
{
    mha_transformer_desc d = x->as ? *x->as : from->desc;
    const bool keep_num_heads = x->whole || d.flags & MHA_TRANSFORMER_CROSS;
    int64_t most = 1;
    for (int64_t l = 0; l < d.num_layers; l++) {
        heads[l] = x->plans[l].q;
        kv[l] = x->plans[l].kv;
        if (heads[l] > most) most = heads[l];
    }
    d.struct_size = sizeof d;
    d.layer_heads = heads;
    d.layer_kv_heads = kv;
    if (!keep_num_heads) d.num_heads = most;
    for (int64_t l = 0; l < d.num_layers; l++) /* the settings shared by all layers */
        if (!keep_num_heads && heads[l] == most) d.kv_heads = kv[l];
    if (!keep_num_heads && d.num_heads % d.kv_heads != 0) d.kv_heads = d.num_heads;
    return d;
}

/* If `source` is set, the new transformer owns x as its source. */
static mha_status create(mha_context *context, pruning *x, const mha_transformer *from, bool source,
                         mha_transformer **to)
{
    const mha_transformer_source own = {.struct_size = sizeof own,
                                        .flags = from->source.flags,
                                        .read = read_pruned,
                                        .release = release,
                                        .user = x};
    const mha_scratch_mark mark = mha_scratch_top(context);
    int64_t *heads;
    MHA_TRY(mha_scratch_alloc(context, 2 * x->layers, sizeof(int64_t), &heads));
    const mha_transformer_desc d = describe(x, from, heads, heads + x->layers);
    return mha_scratch_end(context, mark,
                           source ? mha_transformer_create_from(context, &d, &own, to)
                                  : mha_transformer_create(context, &d, to));
}

static mha_status find_parts(pruning *x, const mha_transformer *from, const mha_transformer *to)
{
    x->part_count = to->parameter_count;
    MHA_TRY(take(x, x->part_count, sizeof *x->parts, &x->parts));
    for (int64_t i = 0; i < to->parameter_count; i++) {
        mha_parameter old;
        MHA_TRY(mha_transformer_find(from, -1, to->parameters[i].name, &old));
        if (x->as && (old.count != to->parameters[i].count || old.ndim != to->parameters[i].ndim ||
                      old.shape[0] != to->parameters[i].shape[0]))
            return mha_fail(MHA_ERR_SHAPE, "%s: the description needs another shape", old.name);
        x->parts[i] = find_part(x, from, &to->parameters[i], &old);
    }
    return MHA_OK;
}

static mha_status fill(mha_context *context, pruning *x, const mha_transformer *from,
                       mha_transformer *to)
{
    MHA_TRY(find_parts(x, from, to));
    x->from = from;
    x->shared = mhai_transformer_share(from);
    for (int64_t i = 0; to->data && i < to->parameter_count; i++) {
        const mha_parameter *p = &to->parameters[i];
        read_pruned(x, i, 0, p->shape[0], 0, p->ndim == 2 ? p->shape[1] : 1, to->data + p->offset);
    }
    return mha_transformer_update(context, to);
}

/* Make the new transformer from the plans in x, which it then owns or frees. status: the result
 * of the previous steps. */
static mha_status finish(mha_context *context, pruning *x, const mha_transformer *from, bool source,
                         mha_status status, mha_transformer **made)
{
    mha_transformer *to = NULL;
    if (status == MHA_OK) status = create(context, x, from, source, &to);
    const bool taken = to && source;
    if (status == MHA_OK) status = fill(context, x, from, to);
    if (status == MHA_OK)
        *made = to;
    else
        mha_transformer_destroy(to);
    if (x && !taken) release(x);
    return status;
}

/* ---- public -------------------------------------------------------------------------------- */

static mha_status check_keep(const mha_transformer *t, const mha_tensor *keep)
{
    MHA_TRY(mhai_nn_matrix("keep", keep, t->desc.num_layers, t->desc.num_heads));
    for (int64_t l = 0; l < t->desc.num_layers; l++)
        for (int64_t h = 0; h < t->desc.num_heads; h++) {
            const float k = mhai_nn_row(keep, l)[h];
            if (!(k >= 0 && k <= 0) && !(k >= 1 && k <= 1))
                return mha_fail(MHA_ERR_ARGUMENT,
                                "keep[%lld,%lld] is %g, expected 0 (remove) or 1 (keep)",
                                (long long)l, (long long)h, (double)k);
        }
    return MHA_OK;
}

static mha_status check_layers(const char *function, const mha_transformer *t)
{
    return mhai_transformer_reject(function, t, mha_layer_keeps_heads,
                                   ", so its heads can be neither removed nor merged");
}

mha_status mha_transformer_prune(mha_context *context, const mha_transformer *transformer,
                                 const mha_tensor *keep, mha_transformer **pruned)
{
    MHA_NEED("mha_transformer_prune", context, transformer, pruned);
    MHA_TRY(check_layers("mha_transformer_prune", transformer));
    MHA_TRY(check_keep(transformer, keep));
    pruning *x = NULL;
    const mha_status status = begin(context, transformer, &x);
    for (int64_t l = 0; status == MHA_OK && l < transformer->desc.num_layers; l++)
        plan_kept(transformer, l, mhai_nn_row(keep, l), &x->plans[l]);
    return finish(context, x, transformer, transformer->source.read, status, pruned);
}

mha_status mha_transformer_copy(mha_context *context, const mha_transformer *transformer,
                                mha_transformer **copy)
{
    MHA_NEED("mha_transformer_copy", context, transformer, copy);
    MHA_TRY(mhai_transformer_dense("mha_transformer_copy", transformer));
    pruning *x = NULL;
    const mha_status status = begin(context, transformer, &x);
    for (int64_t l = 0; status == MHA_OK && l < transformer->desc.num_layers; l++)
        plan_all(transformer, l, 1, &x->plans[l]);
    if (x) x->whole = true;
    return finish(context, x, transformer, false, status, copy);
}

/* Plan a layer that keeps all heads and has kv_heads key/value heads. */
static mha_status plan_shared(const mha_transformer *t, int64_t layer, int64_t kv_heads,
                              heads_plan *plan)
{
    const mhai_heads heads = mhai_transformer_heads_of(&t->desc, layer, false);
    if (heads.q == 0) return MHA_OK;
    if (kv_heads < 1 || heads.kv % kv_heads != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "layer %lld has %lld key/value heads; they cannot become %lld, choose a "
                        "divisor",
                        (long long)layer, (long long)heads.kv, (long long)kv_heads);
    plan_all(t, layer, heads.kv / kv_heads, plan);
    return MHA_OK;
}

mha_status mha_transformer_share_kv(mha_context *context, const mha_transformer *transformer,
                                    int64_t kv_heads, mha_transformer **shared)
{
    MHA_NEED("mha_transformer_share_kv", context, transformer, shared);
    MHA_TRY(check_layers("mha_transformer_share_kv", transformer));
    pruning *x = NULL;
    mha_status status = begin(context, transformer, &x);
    for (int64_t l = 0; status == MHA_OK && l < transformer->desc.num_layers; l++)
        status = plan_shared(transformer, l, kv_heads, &x->plans[l]);
    return finish(context, x, transformer, transformer->source.read, status, shared);
}

static mha_status check_as(const mha_transformer *t, const mha_transformer_desc *d)
{
    MHA_TRY(mha_struct_check_size("mha_transformer_desc", d->struct_size, sizeof *d));
    if (d->num_layers == t->desc.num_layers && d->num_heads == t->desc.num_heads &&
        d->head_dim == t->desc.head_dim && d->layer_heads == t->desc.layer_heads &&
        d->kv_heads == t->desc.kv_heads && d->layer_kv_heads == t->desc.layer_kv_heads)
        return MHA_OK;
    return mha_fail(MHA_ERR_SHAPE, "desc: layers and heads differ from the transformer's; start "
                                   "from mha_transformer_describe()");
}

mha_status mha_transformer_vary(mha_context *context, const mha_transformer *transformer,
                                const mha_transformer_desc *desc, mha_transformer **varied)
{
    MHA_NEED("mha_transformer_vary", context, transformer, desc, varied);
    pruning *x = NULL;
    MHA_TRY(check_as(transformer, desc));
    const mha_status status = begin(context, transformer, &x);
    for (int64_t l = 0; status == MHA_OK && l < transformer->desc.num_layers; l++)
        plan_all(transformer, l, 1, &x->plans[l]);
    if (x) {
        x->whole = true;
        x->as = desc;
    }
    return finish(context, x, transformer, transformer->source.read, status, varied);
}
