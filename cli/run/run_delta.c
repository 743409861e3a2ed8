/* `multihead run --example --delta`: from linear attention to the gated delta rule, on four tokens.
 * The library computes every number of a map, a state or an output. */
#include "run/run_trace.h"

#include <multihead/recurrent.h>

#include "common/arena.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 4, SIZE = 2, MAPS = 3 };

/* Tokens 0 and 2 have the same key. Key 3 lies between the two other keys. */
static float queries[TOKENS][SIZE] = {{1, 0}, {1, 0}, {1, 0}, {0, 1}};
static float keys[TOKENS][SIZE] = {{1, 0}, {0, 1}, {1, 0}, {.6f, .8f}};
static float values[TOKENS][SIZE] = {{10, 1}, {20, 2}, {30, 3}, {40, 4}};
static float decays[TOKENS] = {1, .5f, 1, 1};
static float log_decays[TOKENS] = {0, -.6931472f, 0, 0};
static float strengths[TOKENS] = {1, 1, 1, .5f};

typedef struct delta {
    mha_context *context;
    mha_recurrent_state *state;
    mha_tensor q, k, v, log_decay, strength;
    float s[SIZE][SIZE], o[TOKENS][SIZE];
    float maps[MAPS][TOKENS][TOKENS]; /* linear, gated, delta */
} delta;

ARENA_RELEASE(destroy, mha_recurrent_state_destroy)

static mha_tensor batch_of(void *data, int64_t tokens)
{
    return mha_tensor_contiguous(data, MHA_F32, 4, (const int64_t[]){1, 1, tokens, SIZE});
}

static mha_tensor list_of(void *data, int64_t tokens)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (const int64_t[]){1, 1, tokens});
}

static mha_status copy_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    float *to = user;
    (void)b;
    memcpy(to + row * TOKENS, p->data, (size_t)(p->shape[1] * TOKENS) * sizeof *to);
    return MHA_OK;
}

static mha_recurrent_desc desc_of(const delta *x, int map)
{
    return (mha_recurrent_desc){.struct_size = sizeof(mha_recurrent_desc),
                                .flags = MHA_RECURRENT_SCALE_GIVEN |
                                         (map == 2 ? MHA_RECURRENT_DELTA : 0),
                                .scale = 1,
                                .log_decay = map ? &x->log_decay : NULL,
                                .strength = map == 2 ? &x->strength : NULL};
}

static cli_exit make_maps(delta *x)
{
    for (int n = 0; n < MAPS; n++) {
        const mha_recurrent_desc desc = desc_of(x, n);
        CLI_TRY(cli_check(mha_recurrent_visit_rows(x->context, &desc, &x->q, &x->k, 1, 0, copy_rows,
                                                   x->maps[n])));
    }
    return CLI_OK;
}

/* ---- printing ---------------------------------------------------------------------------------- */

static double at(const run_table *table, int64_t row, int64_t column)
{
    return (double)((const float *)table->of)[row * table->column_count + column];
}

/* A dot for later keys. */
static double map_at(const run_table *table, int64_t row, int64_t column)
{
    return column > row ? -(double)INFINITY : at(table, row, column);
}

static void print(char row, char column, int64_t rows, int64_t columns, run_number *number,
                  const void *of)
{
    const run_table table = {.row = row,
                             .column = column,
                             .row_count = rows,
                             .column_count = columns,
                             .at = number,
                             .of = of};
    run_print_table(&table);
}

static void print_map(const delta *x, int map)
{
    print('q', 'k', TOKENS, TOKENS, map_at, x->maps[map]);
}

static void print_pair(const char *name, double a, double b)
{
    cli_print("    %s = (%.4g, %.4g)\n", name, a + 0.0, b + 0.0);
}

/* ---- the steps --------------------------------------------------------------------------------- */

static void show_tokens(void)
{
    cli_print("\n 1. Queries q, keys k and values v: tokens 0 and 2 have the same key\n");
    print('q', 0, TOKENS, SIZE, at, queries);
    cli_print("\n");
    print('k', 0, TOKENS, SIZE, at, keys);
    cli_print("\n");
    print('v', 0, TOKENS, SIZE, at, values);
}

static void show_sums(const delta *x)
{
    cli_print("\n 2. Linear attention: S = S + k v^T, o = S^T q. As a map: q.k without softmax\n");
    print_map(x, 0);
    cli_print("    o2 = v0 + v2 = (40, 4): the sum of both values of the key is returned\n");
    cli_print("\n 3. Gated: S = a S + k v^T. Weights are multiplied by every later decay a\n");
    print('a', 0, TOKENS, 1, at, decays);
    cli_print("\n");
    print_map(x, 1);
    cli_print("    q2 to k0: 1 * a1 * a2 = 0.5. All of S is forgotten equally\n");
}

/* Print one token: the value that its key retrieves, the value written, and the state S. */
static cli_exit step(delta *x, int t)
{
    const mha_tensor q = batch_of(queries[t], 1), k = batch_of(keys[t], 1),
                     v = batch_of(values[t], 1), o = batch_of(x->o[t], 1),
                     log_decay = list_of(&log_decays[t], 1), strength = list_of(&strengths[t], 1),
                     s = batch_of(x->s, SIZE);
    mha_recurrent_desc desc = desc_of(x, 2);
    double old[SIZE] = {0};
    desc.log_decay = &log_decay;
    desc.strength = &strength;
    for (int c = 0; c < SIZE; c++)
        for (int d = 0; d < SIZE; d++)
            old[c] += (double)decays[t] * (double)x->s[d][c] * (double)keys[t][d];
    CLI_TRY(cli_check(mha_recurrent_forward(x->context, &desc, &q, &k, &v, x->state, &o)));
    CLI_TRY(cli_check(mha_recurrent_state_read(x->state, &s)));
    cli_print("\n    Token %d: a = %g, b = %g\n", t, (double)decays[t], (double)strengths[t]);
    print_pair("old = (a S)^T k ", old[0], old[1]);
    print_pair("u = b (v - old) ", (double)strengths[t] * ((double)values[t][0] - old[0]),
               (double)strengths[t] * ((double)values[t][1] - old[1]));
    cli_print("    S = a S + k u^T, a row for each number of a key\n");
    print('s', 0, SIZE, SIZE, at, x->s);
    return CLI_OK;
}

static cli_exit show_steps(delta *x)
{
    const mha_recurrent_state_desc size = {
        .struct_size = sizeof size, .batch = 1, .heads = 1, .head_dim = SIZE};
    CLI_TRY(cli_check(mha_recurrent_state_create(x->context, &size, &x->state)));
    CLI_TRY(arena_keep(x->state, destroy));
    cli_print(
        "\n 4. Delta rule: erase what the key retrieves, write the difference by strength b\n");
    for (int t = 0; t < TOKENS; t++) CLI_TRY(step(x, t));
    return CLI_OK;
}

static void show_map(const delta *x)
{
    cli_print("\n 5. The same as a map, o = M v exactly; weights can be negative\n");
    print_map(x, 2);
    cli_print("    q2 to k0: 0, because the write with k2 = k0 and b = 1 replaced v0. q3 to k2: "
              "%.4g, because key 3 overlaps key 2\n",
              (double)x->maps[2][3][2]);
    cli_print("\n 6. Output o = S^T q = M v\n");
    print('o', 0, TOKENS, SIZE, at, x->o);
    cli_print("    o3 =");
    for (int j = 1; j < TOKENS; j++) /* the weight of k0 is 0 */
        cli_print("%s%.4g v%d",
                  x->maps[2][3][j] < 0 ? " - "
                  : j > 1              ? " + "
                                       : " ",
                  fabs((double)x->maps[2][3][j]), j);
    cli_print("\n");
}

cli_exit run_delta(mha_context *context)
{
    static delta x;
    x = (delta){.context = context};
    x.q = batch_of(queries, TOKENS), x.k = batch_of(keys, TOKENS), x.v = batch_of(values, TOKENS);
    x.log_decay = list_of(log_decays, TOKENS), x.strength = list_of(strengths, TOKENS);
    CLI_TRY(make_maps(&x));
    cli_print("From linear attention to the gated delta rule\n");
    cli_print("1 head, 4 tokens, head size 2, values of 2\n");
    show_tokens();
    show_sums(&x);
    CLI_TRY(show_steps(&x));
    show_map(&x);
    return CLI_OK;
}
