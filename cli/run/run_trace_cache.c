/* Decoding with a KV cache: the tokens of a sequence come one by one. Each appends its key and value,
 * and its query looks at all that the cache holds; what it gets is the row that the whole sequence at
 * once had, which is compared here. */
#include "common/arena.h"
#include "common/cache_options.h"
#include "run/run_trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct decoding {
    const run_board *board;
    mha_context *context;
    mha_kv_cache *cache;
    mha_kv_cache_sizes sizes;
    int64_t bytes;                 /* of one position */
    bool exact;                    /* it holds f32 */
    mha_tensor o, scores, weights; /* [B,H,1,..] of one step */
} decoding;

static void destroy(void *cache)
{
    mha_kv_cache_destroy(cache);
}

/* Token t of [B,H,T,D]. */
static mha_tensor token(const mha_tensor *tensor, int64_t t)
{
    mha_tensor one = *tensor;
    one.data =
        (char *)tensor->data + (size_t)(t * tensor->stride[2]) * mha_dtype_size(tensor->dtype);
    one.shape[2] = 1;
    return one;
}

static cli_exit start(decoding *d)
{
    const run_problem *p = d->board->problem;
    mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                              .batch = p->k.shape[0],
                              .kv_heads = p->k.shape[1],
                              .capacity = p->k.shape[2],
                              .head_dim = p->k.shape[3],
                              .value_head_dim = p->v.shape[3]};
    cache_types(d->board->options->cache - 1, &desc.type, &desc.key_scales);
    d->sizes.struct_size = sizeof d->sizes;
    CLI_TRY(cli_check(RUN, mha_kv_cache_count(&desc, &d->sizes)));
    CLI_TRY(cli_check(RUN, mha_kv_cache_create(d->context, &desc, &d->cache)));
    CLI_TRY(arena_keep(RUN, d->cache, destroy));
    d->exact = desc.type == MHA_F32 || desc.type == p->k.dtype;
    int64_t numbers = desc.kv_heads * (desc.head_dim + desc.value_head_dim);
    d->bytes = numbers * (int64_t)mha_dtype_size(desc.type);
    cli_print("\nDecoding with a KV cache of %s: one token at a time\n\n",
              run_caches[d->board->options->cache]);
    cli_print("    One position takes %" PRId64 " key/value head%s * (%" PRId64 " + %" PRId64
              ") numbers * %zu byte%s = %" PRId64 " bytes%s.\n",
              desc.kv_heads, desc.kv_heads == 1 ? "" : "s", desc.head_dim, desc.value_head_dim,
              mha_dtype_size(desc.type), mha_dtype_size(desc.type) == 1 ? "" : "s", d->bytes,
              d->sizes.scale_bytes ? " and its scales" : "");
    cli_print("    Allocated for up to %" PRId64 ": %" PRId64 " bytes, pages of whole runs of 16 "
              "positions%s and tables.\n",
              desc.capacity, d->sizes.total_bytes, d->sizes.scale_bytes ? ", scales" : "");
    return CLI_OK;
}

static cli_exit step(decoding *d, int64_t t)
{
    const run_problem *p = d->board->problem;
    const mha_tensor q = token(&p->q, t), k = token(&p->k, t), v = token(&p->v, t);
    int64_t shape[] = {q.shape[0], q.shape[1], 1, v.shape[3]};
    CLI_TRY(run_array_make(d->board->o.dtype, 4, shape, &d->o));
    shape[3] = t + 1;
    CLI_TRY(run_array_make(MHA_F32, 4, shape, &d->scores));
    CLI_TRY(run_array_make(MHA_F32, 4, shape, &d->weights));
    const mha_attention_outputs wanted = {
        .struct_size = sizeof wanted, .scores = &d->scores, .probabilities = &d->weights};
    mha_status status = mha_kv_cache_append(d->cache, &k, &v, NULL);
    if (status == MHA_OK)
        status = mha_kv_cache_attention(d->context, d->cache, &p->desc, &q, &d->o, &wanted);
    return status == MHA_OK ? CLI_OK : run_fail(d->board->options, p, status);
}

/* How far the step's o is from row t of the whole; *same: not one bit. */
static double difference(const decoding *d, int64_t t, bool *same)
{
    const mha_tensor row = token(&d->board->o, t), *o = &d->o;
    const size_t bytes = (size_t)o->shape[3] * mha_dtype_size(o->dtype);
    double most = 0;
    *same = true;
    for (int64_t i = 0; i < o->shape[0] * o->shape[1]; i++) {
        int64_t b = i / o->shape[1], h = i % o->shape[1];
        const char *one = (const char *)o->data + (size_t)i * bytes;
        const char *whole =
            (const char *)row.data +
            (size_t)(b * row.stride[0] + h * row.stride[1]) * mha_dtype_size(o->dtype);
        *same &= memcmp(one, whole, bytes) == 0;
        for (int64_t j = 0; j < o->shape[3]; j++)
            most = fmax(most, fabs(run_element(o, b, h, 0, j) - run_element(&row, b, h, 0, j)));
    }
    return most;
}

/* One row over the keys 0 .. t, of the sequence that is shown. */
static void print_over_keys(const decoding *d, const mha_tensor *tensor, int64_t h, int64_t t)
{
    const run_board *board = d->board;
    double numbers[1000]; /* --trace-limit is at most that */
    int64_t most = run_limit(board), count = t + 1 < most ? t + 1 : most;
    for (int64_t s = 0; s < count; s++) {
        double number = run_element(tensor, board->batch, h, 0, s);
        bool hidden =
            tensor == &d->weights && isinf(run_element(&d->scores, board->batch, h, 0, s));
        numbers[s] = hidden ? -(double)INFINITY : number;
    }
    const run_table table = {.row = 'q',
                             .column = 'k',
                             .rows = &t,
                             .row_count = 1,
                             .column_count = count,
                             .numbers = numbers,
                             .cut = count < t + 1};
    run_print_table(&table);
}

static cli_exit show_head(const decoding *d, int64_t h, int64_t t, int *number)
{
    const run_board *board = d->board;
    const run_problem *p = board->problem;
    int64_t hk = h / (p->q.shape[1] / p->k.shape[1]), most = run_limit(board);
    int64_t held = t + 1 < most ? t + 1 : most;
    char text[256], of[64] = "";
    mha_tensor keys = board->columns, row = {0};
    keys.shape[0] = 0;
    for (int64_t c = 0; c < board->columns.shape[0] && keys.shape[0] < held; c++)
        if (((const int64_t *)board->columns.data)[c] <= t) keys.shape[0] = c + 1;
    if (p->q.shape[1] > 1) snprintf(of, sizeof of, ", head %" PRId64, h);
    snprintf(text, sizeof text,
             "Token %" PRId64 "%s: k%" PRId64 " and v%" PRId64 " join, k and v are %" PRId64
             " bytes now; q%" PRId64 " looks at all of them",
             t, of, t, t, (t + 1) * d->bytes * p->k.shape[0], t);
    run_print_heading(number, text);
    CLI_TRY(run_print_rows(board, 'k', &p->k, hk, 0, &keys));
    cli_print("\n");
    CLI_TRY(run_print_rows(board, 'v', &p->v, hk, 0, &keys));
    cli_print("\n    scores   [1, %" PRId64 "]\n", t + 1);
    print_over_keys(d, &d->scores, h, t);
    cli_print("    weights\n");
    print_over_keys(d, &d->weights, h, t);
    int64_t count = 1;
    CLI_TRY(run_array_make(MHA_I64, 1, &count, &row));
    ((int64_t *)row.data)[0] = t;
    cli_print("    output   [1, %" PRId64 "]\n", d->o.shape[3]);
    return run_print_rows(board, 'o', &d->o, h, -t, &row);
}

static void say_difference(const decoding *d, int64_t t)
{
    bool same;
    double most = difference(d, t, &same);
    if (same)
        cli_print("    the same bits as row %" PRId64 " of the whole sequence at once%s\n", t,
                  d->board->problem->q.shape[1] > 1 ? ", in every head" : "");
    else
        cli_print("    at most %.3g from row %" PRId64 " of the whole: %s\n", most, t,
                  d->exact ? "a difference that should not be" : "the cache has rounded k and v");
}

static bool is_shown(const run_board *board, int64_t t)
{
    for (int64_t r = 0; r < board->rows.shape[0]; r++)
        if (((const int64_t *)board->rows.data)[r] == t) return true;
    return false;
}

cli_exit run_trace_cache(const run_board *board, mha_context *context)
{
    decoding d = {.board = board, .context = context};
    int number = 0;
    CLI_TRY(start(&d));
    for (int64_t t = 0; t < board->queries; t++) {
        const size_t mark = arena_mark();
        CLI_TRY(step(&d, t));
        for (int64_t h = 0; h < board->heads.shape[0] && is_shown(board, t); h++)
            CLI_TRY(show_head(&d, ((const int64_t *)board->heads.data)[h], t, &number));
        if (is_shown(board, t)) say_difference(&d, t);
        arena_release(mark);
    }
    return CLI_OK;
}
