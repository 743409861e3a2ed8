/* Decoding with a KV cache, one token of a sequence at a time. Each step appends a key and a value,
 * and its query attends to the whole cache. Its result is compared with the row of the full
 * pass. */
#include "common/arena.h"
#include "common/cache_options.h"
#include "common/words.h"
#include "run/run_trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct decoding {
    run_board *board;
    mha_kv_cache *cache;
    int64_t bytes;                 /* bytes of one position */
    bool exact;                    /* the cache stores f32 */
    mha_tensor o, scores, weights; /* [B,H,1,..] of one step */
} decoding;

ARENA_RELEASE(destroy, mha_kv_cache_destroy)

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
    const int cache = p->options->cache;
    mha_kv_cache_sizes sizes = {.struct_size = sizeof sizes};
    mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                              .batch = p->k.shape[0],
                              .kv_heads = p->k.shape[1],
                              .capacity = p->k.shape[2],
                              .head_dim = p->k.shape[3],
                              .value_head_dim = p->v.shape[3]};
    cache_types(cache - 1, &desc.type, &desc.key_scales);
    CLI_TRY(cli_check(mha_kv_cache_count(&desc, &sizes)));
    CLI_TRY(cli_check(mha_kv_cache_create(p->context, &desc, &d->cache)));
    CLI_TRY(arena_keep(d->cache, destroy));
    const size_t size = mha_dtype_size(desc.type);
    d->exact = desc.type == MHA_F32 || desc.type == p->k.dtype;
    d->bytes = desc.kv_heads * (desc.head_dim + desc.value_head_dim) * (int64_t)size;
    cli_print("\nDecoding with a KV cache of %s: one token at a time\n\n", run_caches[cache]);
    cli_print("    One position takes %" PRId64 " key/value head%s * (%" PRId64 " + %" PRId64
              ") numbers * %zu byte%s = %" PRId64 " bytes%s.\n",
              desc.kv_heads, words_s(desc.kv_heads), desc.head_dim, desc.value_head_dim, size,
              words_s((int64_t)size), d->bytes, sizes.scale_bytes ? " and its scales" : "");
    cli_print("    Allocated for up to %" PRId64 ": %" PRId64 " bytes, pages of whole runs of 16 "
              "positions%s and tables.\n",
              desc.capacity, sizes.total_bytes, sizes.scale_bytes ? ", scales" : "");
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
    CLI_TRY(run_check(p, mha_kv_cache_append(d->cache, &k, &v, NULL)));
    return run_check(p, mha_kv_cache_attention(p->context, d->cache, &p->desc, &q, &d->o, &wanted));
}

/* The largest difference between the step's o and row t of the full pass; *same: bit-identical. */
static double difference(const decoding *d, int64_t t, bool *same)
{
    const mha_tensor row = token(&d->board->o, t), *o = &d->o;
    double most = 0;
    *same = true;
    for (int64_t i = 0; i < o->shape[0] * o->shape[1]; i++) {
        const mha_tensor one = run_view(o, i / o->shape[1], i % o->shape[1], 0);
        const mha_tensor whole = run_view(&row, i / o->shape[1], i % o->shape[1], 0);
        *same &= memcmp(one.data, whole.data, (size_t)o->shape[3] * mha_dtype_size(o->dtype)) == 0;
        for (int64_t j = 0; j < o->shape[3]; j++)
            most = fmax(most, fabs(run_at(&one, 0, j) - run_at(&whole, 0, j)));
    }
    return most;
}

/* Print one row over the keys 0 .. t of the shown sequence. */
static void print_over_keys(const decoding *d, const mha_tensor *tensor, const mha_tensor *hide,
                            const run_board *keys)
{
    const run_board *board = d->board;
    const mha_tensor view = run_view(tensor, board->batch, board->head, 0);
    const mha_tensor hidden = run_view(hide, board->batch, board->head, 0);
    run_print_scores(keys, &view, tensor == hide ? NULL : &hidden, 0);
}

static cli_exit show_head(decoding *d, int64_t t)
{
    run_board *board = d->board;
    const run_problem *p = board->problem;
    const int64_t held = t + 1 < board->limit ? t + 1 : board->limit;
    const mha_tensor k = run_view(&p->k, board->batch, board->kv_head, 0);
    const mha_tensor v = run_view(&p->v, board->batch, board->kv_head, 0);
    mha_tensor columns = board->columns, o = run_view(&d->o, board->batch, board->head, 0);
    run_board keys = {.keys = t + 1};
    char of[64] = "";
    columns.shape[0] = 0;
    for (int64_t c = 0; c < board->columns.shape[0] && columns.shape[0] < held; c++)
        if (run_entry(&board->columns, c) <= t) columns.shape[0] = c + 1;
    if (p->q.shape[1] > 1) snprintf(of, sizeof of, ", head %" PRId64, board->head);
    run_title(board, -1, 0,
              "Token %" PRId64 "%s: k%" PRId64 " and v%" PRId64
              " are appended; the cache holds %" PRId64 " bytes; q%" PRId64
              " attends to all of them",
              t, of, t, t, (t + 1) * d->bytes * p->k.shape[0], t);
    run_print_rows(board, 'k', &k, &columns);
    cli_print("\n");
    run_print_rows(board, 'v', &v, &columns);
    CLI_TRY(run_array_count(held, &keys.columns));
    CLI_TRY(run_array_count(1, &keys.rows));
    *(int64_t *)keys.rows.data = t;
    cli_print("\n    scores   [1, %" PRId64 "]\n", t + 1);
    print_over_keys(d, &d->scores, &d->scores, &keys);
    cli_print("    weights\n");
    print_over_keys(d, &d->weights, &d->scores, &keys);
    cli_print("    output   [1, %" PRId64 "]\n", d->o.shape[3]);
    o.stride[0] = 0; /* its only row is labelled t */
    run_print_rows(board, 'o', &o, &keys.rows);
    return CLI_OK;
}

static void say_difference(const decoding *d, int64_t t)
{
    bool same;
    double most = difference(d, t, &same);
    if (same)
        cli_print("    bit-identical to row %" PRId64 " of the full pass%s\n", t,
                  d->board->problem->q.shape[1] > 1 ? ", in every head" : "");
    else
        cli_print("    within %.3g of row %" PRId64 " of the full pass: %s\n", most, t,
                  d->exact ? "an unexpected difference" : "the cache rounds k and v");
}

cli_exit run_trace_cache(run_board *board)
{
    decoding d = {.board = board};
    int title = 0;
    CLI_TRY(start(&d));
    for (int64_t t = 0; t < board->queries; t++) {
        const size_t mark = arena_mark();
        bool shown = false;
        CLI_TRY(step(&d, t));
        for (int64_t r = 0; r < board->rows.shape[0]; r++) shown |= run_entry(&board->rows, r) == t;
        for (int64_t h = 0; h < board->heads.shape[0] && shown; h++) {
            run_board_turn(board, h);
            board->title = title++;
            CLI_TRY(show_head(&d, t));
        }
        if (shown) say_difference(&d, t);
        arena_release(mark);
    }
    return CLI_OK;
}
