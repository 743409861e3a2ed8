/* Convert options to a problem: shapes, a descriptor, and tensors without data.
 * mha_attention_explain() reads nothing else. */
#include "common/arena.h"
#include "common/contexts.h"
#include "common/maps.h"
#include "explain/explain.h"

#include <multihead/io.h>
#include <multihead/patterns.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Counting visible pairs takes a step per query, and the count must fit into 63 bits. */
#define MOST_ROWS (INT64_C(1) << 31)
#define MOST_BLOCKS (INT64_C(1) << 24)
#define MOST_STEPS (INT64_C(1) << 27) /* in counting a mask: about a second */
enum { DEFAULT_BLOCK = 64 };

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Read the shape of an array as [B,H,T,D], padded with leading ones. */
static cli_exit read_shape(const char *path, int64_t shape[4])
{
    mha_tensor tensor;
    CLI_TRY(cli_check(mha_npy_peek(path, &tensor)));
    if (tensor.ndim < 2 || tensor.ndim > 4)
        return cli_fail(CLI_BAD_INPUT, "%s: has %d axes; expected [B,H,T,D], [H,T,D] or [T,D]",
                        path, (int)tensor.ndim);
    for (int i = 0; i < 4; i++)
        shape[i] = i < 4 - tensor.ndim ? 1 : tensor.shape[i - (4 - tensor.ndim)];
    return CLI_OK;
}

static void make_arrays(const explain_options *o, explain_problem *p, const int64_t k[4],
                        const int64_t v[4])
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    const mha_dtype type = types[o->dtype];
    p->q = mha_tensor_contiguous(NULL, type, 4, (int64_t[]){p->B, p->H, p->T, p->D});
    p->k = mha_tensor_contiguous(NULL, type, 4, k);
    p->v = mha_tensor_contiguous(NULL, type, 4, v);
    p->o = mha_tensor_contiguous(NULL, type, 4, (int64_t[]){p->B, p->H, p->T, p->Dv});
}

static cli_exit size_from_files(const explain_options *o, explain_problem *p)
{
    int64_t q[4], k[4], v[4];
    if (o->config.like || o->config.model || o->config.embed || o->config.heads ||
        o->config.kv_heads || o->config.head_dim || o->config.batch || o->config.length ||
        o->queries || o->keys || o->value_dim)
        return cli_fail(CLI_USAGE, "--q takes all sizes from files; omit the other sizes");
    CLI_TRY(read_shape(o->q, q));
    CLI_TRY(read_shape(o->k ? o->k : o->q, k));
    CLI_TRY(read_shape(o->v ? o->v : o->k ? o->k : o->q, v));
    *p = (explain_problem){
        .B = q[0], .H = q[1], .T = q[2], .D = q[3], .Hk = k[1], .S = k[2], .Dv = v[3]};
    make_arrays(o, p, k, v);
    p->E = p->H * p->D;
    p->config.shape.heads = p->H;
    p->config.shape.kv_heads = p->Hk;
    char *name;
    CLI_TRY(maps_name_of_path(o->q, &name));
    snprintf(p->config.name, sizeof p->config.name, "%s", name);
    p->config.causal = o->config.causal == 1;
    p->left = -1;
    p->right = p->config.causal ? 0 : -1;
    return o->config.window ? config_window(o->config.window, p->config.causal, &p->left, &p->right)
                            : CLI_OK;
}

static cli_exit size_from_config(const explain_options *o, explain_problem *p)
{
    *p = (explain_problem){0};
    CLI_TRY(config_resolve(&o->config, &p->config));
    const counts_shape *s = &p->config.shape;
    p->B = s->batch;
    p->E = s->embed;
    p->H = s->heads;
    p->Hk = s->kv_heads;
    p->D = s->head_dim;
    p->Dv = o->value_dim ? o->value_dim : p->D;
    p->S = o->keys ? o->keys : o->config.length || !o->queries ? s->length : o->queries;
    p->T = o->queries ? o->queries : o->config.length ? s->length : p->S;
    p->left = s->left;
    p->right = s->right;
    make_arrays(o, p, (int64_t[]){p->B, p->Hk, p->S, p->D}, (int64_t[]){p->B, p->Hk, p->S, p->Dv});
    return CLI_OK;
}

static cli_exit check_sizes(const explain_problem *p)
{
    int64_t rows, heads, pairs;
    if (__builtin_mul_overflow(p->B, p->T, &rows) || rows > MOST_ROWS)
        return cli_fail(CLI_USAGE,
                        "--batch %" PRId64 " by %" PRId64
                        " queries are more than 2^31 rows; choose a smaller --batch or --length",
                        p->B, p->T);
    if (__builtin_mul_overflow(rows, p->H, &heads) || __builtin_mul_overflow(heads, p->S, &pairs))
        return cli_fail(
            CLI_USAGE,
            "these sizes have more than 2^63 query-key pairs; choose a smaller --length");
    return CLI_OK;
}

/* ---- Block patterns -------------------------------------------------------------------------- */

/* Parse one part up to a comma, such as "local=1". */
static cli_exit take_part(const char *all, const char *part, mha_pattern_desc *d)
{
    static const char wanted[] = "local=N, global=N, stride=N, fixed=N, random=N, joined by commas";
    const struct {
        const char *name;
        int64_t *field, *second; /* or NULL */
    } parts[] = {{"local=", &d->left_blocks, &d->right_blocks},
                 {"global=", &d->global_rows, &d->global_cols},
                 {"stride=", &d->stride, NULL},
                 {"fixed=", &d->fixed, NULL},
                 {"random=", &d->random_blocks, NULL}};
    const size_t length = strcspn(part, "=,");
    const char *end;
    int64_t n;
    if (part[length] != '=' || !args_whole(part + length + 1, ",", &n, &end) || n < 0 ||
        n > INT32_MAX)
        return cli_fail(CLI_USAGE, "--blocks %s: expected %s", all, wanted);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strncmp(part, parts[i].name, length + 1) != 0 || parts[i].name[length + 1]) continue;
        *parts[i].field = n;
        if (parts[i].second) *parts[i].second = n;
        if (i == 0) d->flags |= MHA_PATTERN_LOCAL;
        if (d->flags & MHA_PATTERN_CAUSAL) d->right_blocks = 0;
        d->fixed_summary = d->fixed ? 1 : 0;
        return CLI_OK;
    }
    return cli_fail(CLI_USAGE, "--blocks %s: '%.*s' is not part of a pattern; expected %s", all,
                    (int)length, part, wanted);
}

static cli_exit make_blocks(const explain_options *o, explain_problem *p)
{
    int64_t size = o->block_size ? o->block_size : DEFAULT_BLOCK;
    if (!o->blocks) return CLI_OK;
    mha_pattern_desc desc = {.struct_size = sizeof desc};
    if (p->config.causal) desc.flags = MHA_PATTERN_CAUSAL;
    for (const char *part = o->blocks; part; part = strchr(part, ',')) {
        if (*part == ',') part++;
        CLI_TRY(take_part(o->blocks, part, &desc));
    }
    p->block_rows = p->T / size + (p->T % size != 0);
    p->block_cols = p->S / size + (p->S % size != 0);
    if (p->block_cols && p->block_rows > MOST_BLOCKS / p->block_cols)
        return cli_fail(CLI_USAGE,
                        "--blocks: %" PRId64 " x %" PRId64
                        " blocks are more than 2^24; choose a larger --block-size",
                        p->block_rows, p->block_cols);
    CLI_TRY(ARENA_ALLOC(p->block_rows * p->block_cols, &p->kept));
    p->blocks =
        mha_tensor_contiguous(p->kept, MHA_U8, 2, (int64_t[]){p->block_rows, p->block_cols});
    CLI_TRY(cli_check(mha_pattern_fill(&desc, &p->blocks, &p->kept_blocks)));
    p->desc.keep_blocks = &p->blocks;
    p->desc.block_queries = p->desc.block_keys = size;
    return CLI_OK;
}

/* ---- The descriptor -------------------------------------------------------------------------- */

/* Describe the requested inputs and outputs as tensors without data. */
static void describe_tensors(const explain_options *o, explain_problem *p)
{
    mha_attention_desc *d = &p->desc;
    mha_attention_outputs *out = &p->outputs;
    const struct {
        bool wanted;
        const mha_tensor **field;
        mha_dtype dtype;
        int ndim;
        int64_t shape[4];
    } all[EXPLAIN_TENSORS] = {
        {o->dense_mask, &d->keep_mask, MHA_U8, 4, {1, 1, p->T, p->S}},
        {o->dense_bias, &d->bias, MHA_F32, 4, {1, 1, p->T, p->S}},
        {o->alibi, &d->alibi_slopes, MHA_F32, 1, {p->H}},
        {o->sink_logits, &d->sink_logits, MHA_F32, 1, {p->H}},
        {o->gates, &d->gates, MHA_F32, 1, {p->H}},
        {o->t5, &d->t5_table, MHA_F32, 2, {o->t5, p->H}},
        {o->shaw, &d->shaw_keys, MHA_F32, 2, {2 * o->shaw + 1, p->D}},
        {o->shaw, &d->shaw_values, MHA_F32, 2, {2 * o->shaw + 1, p->Dv}},
        {o->lse, &out->lse, MHA_F32, 3, {p->B, p->H, p->T}},
        {o->probabilities, &out->probabilities, MHA_F32, 4, {p->B, p->H, p->T, p->S}},
        {o->average, &out->average_probabilities, MHA_F32, 3, {p->B, p->T, p->S}},
        {o->scores, &out->scores, MHA_F32, 4, {p->B, p->H, p->T, p->S}},
        {o->column_sums, &out->column_sums, MHA_F32, 3, {p->B, p->H, p->S}},
        {o->statistics, &out->entropy, MHA_F32, 3, {p->B, p->H, p->T}},
        {o->statistics, &out->largest_weight, MHA_F32, 3, {p->B, p->H, p->T}},
        {o->statistics, &out->first_token, MHA_F32, 3, {p->B, p->H, p->T}},
        {o->statistics, &out->diagonal, MHA_F32, 3, {p->B, p->H, p->T}},
        {o->statistics, &out->largest_key, MHA_I64, 3, {p->B, p->H, p->T}},
    };
    for (int i = 0; i < EXPLAIN_TENSORS; i++) {
        if (!all[i].wanted) continue;
        p->tensors[i] = mha_tensor_contiguous(NULL, all[i].dtype, all[i].ndim, all[i].shape);
        *all[i].field = &p->tensors[i];
    }
}

static void describe(const explain_options *o, explain_problem *p)
{
    mha_attention_desc *d = &p->desc;
    const bool causal = p->config.causal;
    d->struct_size = sizeof *d;
    p->outputs.struct_size = sizeof p->outputs;
    d->path = (mha_path)o->path;
    d->compute = o->compute ? MHA_COMPUTE_BF16 : MHA_COMPUTE_F32;
    d->softcap = (float)o->softcap.value;
    d->dropout = (float)o->dropout.value;
    d->q_offset = o->offset == EXPLAIN_NO_OFFSET ? 0 : o->offset;
    if (o->strict) d->flags |= MHA_ATTENTION_STRICT;
    if (causal) d->flags |= MHA_ATTENTION_CAUSAL;
    if (o->t5 && causal) d->flags |= MHA_ATTENTION_T5_ONE_SIDED;
    if (p->left >= 0 || (p->right >= 0 && !causal) || o->sink_keys) {
        d->flags |= MHA_ATTENTION_WINDOW;
        d->left_keys = p->left;
        d->right_keys = causal ? 0 : p->right;
        d->sink_keys = o->sink_keys;
    }
    describe_tensors(o, p);
}

static cli_exit ask(const explain_options *o, explain_problem *p)
{
    mha_context *context;
    CLI_TRY(context_make((mha_isa)o->isa, o->threads, &context));
    p->threads = mha_context_threads(context);
    p->l2_bytes = mha_context_l2(context);
    return cli_check(mha_attention_explain(context, &p->desc, &p->q, &p->k, &p->v, &p->o,
                                           &p->outputs, &p->plan));
}

/* ---- What a query sees ----------------------------------------------------------------------- */

static int64_t overlap(int64_t a0, int64_t a1, int64_t b0, int64_t b1)
{
    int64_t begin = a0 > b0 ? a0 : b0, end = a1 < b1 ? a1 : b1;
    return end > begin ? end - begin : 0;
}

/* Whether the block pattern keeps a pair. */
static bool block_keeps(const explain_problem *p, int64_t t, int64_t s)
{
    int64_t size = p->desc.block_keys;
    return !p->kept || p->kept[t / size * p->block_cols + s / size];
}

/* Without blocks: the window's keys in s0 .. s1, and the exempt keys outside the window. */
static explain_seen interval_seen(const explain_problem *p, int64_t t, int64_t s0, int64_t s1)
{
    const mha_attention_desc *d = &p->desc;
    bool causal = d->flags & MHA_ATTENTION_CAUSAL, window = d->flags & MHA_ATTENTION_WINDOW;
    int64_t far = INT64_MAX / 8, i = t + (d->q_offset > far    ? far
                                          : d->q_offset < -far ? -far
                                                               : d->q_offset);
    int64_t limit = causal && i + 1 < p->S ? i + 1 : p->S;
    int64_t begin = window && d->left_keys >= 0 ? i - d->left_keys : 0;
    int64_t end = window && d->right_keys >= 0 && i + d->right_keys + 1 < limit
                      ? i + d->right_keys + 1
                      : limit;
    explain_seen seen = {.seen = overlap(s0, s1, begin, end)};
    int64_t sinks = window && d->sink_keys < limit ? d->sink_keys : window ? limit : 0;
    seen.exempt = overlap(s0, s1, 0, sinks);
    if (end > begin) seen.exempt -= overlap(s0 > 0 ? s0 : 0, s1 < sinks ? s1 : sinks, begin, end);
    seen.seen += seen.exempt;
    return seen;
}

explain_seen explain_visible(const explain_problem *p, int64_t t, int64_t s0, int64_t s1)
{
    if (!p->kept) return interval_seen(p, t, s0, s1);
    explain_seen all = {0};
    int64_t size = p->desc.block_keys;
    for (int64_t s = s0, next; s < s1; s = next) {
        next = (s / size + 1) * size < s1 ? (s / size + 1) * size : s1;
        if (!block_keeps(p, t, s)) continue;
        explain_seen part = interval_seen(p, t, s, next);
        all.seen += part.seen;
        all.exempt += part.exempt;
    }
    return all;
}

/* ---- The problem ----------------------------------------------------------------------------- */

/* The plan counts the pairs that causal, lengths and the window with its first keys allow. Blocks
 * then remove pairs.
 */
static void count_mask(explain_problem *p)
{
    int64_t steps = p->kept ? p->block_cols : 1, seen = 0;
    p->mask_pairs = p->plan.visible_pairs;
    if (!p->kept && !p->desc.sink_keys) return;
    p->mask_pairs = -1;
    if (p->T > MOST_STEPS / steps) return;
    for (int64_t t = 0; t < p->T; t++) seen += explain_visible(p, t, 0, p->S).seen;
    p->mask_pairs = seen * p->B * p->H;
}

cli_exit explain_make(const explain_options *o, explain_problem *p)
{
    CLI_TRY(o->q ? size_from_files(o, p) : size_from_config(o, p));
    CLI_TRY(check_sizes(p));
    CLI_TRY(make_blocks(o, p));
    describe(o, p);
    CLI_TRY(ask(o, p));
    p->pairs = (double)p->B * (double)p->H * (double)p->T * (double)p->S;
    p->matrix_bytes = 4 * p->pairs;
    count_mask(p);
    return CLI_OK;
}
