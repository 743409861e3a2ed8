/* Measures on the attention of heads built from weights: inputs x have one-hot features, W_q and
 * W_k are set by hand, q = x W_q, and k = x W_k. Features of a token are its position, its id, the
 * previous id (like the output of a previous-token head in an earlier layer), its segment, and a
 * flag for separators.
 *
 * Head h gives its target keys the score BETA. With scale 1, at most n exp(-BETA) of a row's weight
 * goes to other keys: 48 e^-20 = 1e-7. */
#include "support/expect.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/heads.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N = 48,
    TOKENS = 24,
    SEGMENTS = 2,
    AT_POSITION = 0,
    AT_TOKEN = AT_POSITION + N,
    AT_BEFORE = AT_TOKEN + TOKENS,
    AT_SEGMENT = AT_BEFORE + TOKENS,
    AT_SEPARATOR = AT_SEGMENT + SEGMENTS,
    AT_ONE = AT_SEPARATOR + 1, /* always 1 */
    WIDTH = AT_ONE + 1,
    D = TOKENS + N
};
static const float BETA = 20;

enum { PREVIOUS, SELF, FIRST, SEPARATOR, DUPLICATE, INDUCTION, UNIFORM, BLOCK, HEADS };

typedef struct weights {
    float q[HEADS][WIDTH][D], k[HEADS][WIDTH][D];
} weights;

/* In head h, a query with feature `asks` matches keys with feature `has`, through channel d. */
static void connect(weights *w, int h, int asks, int has, int d)
{
    w->q[h][asks][d] = BETA;
    w->k[h][has][d] = 1;
}

static void set_weights(weights *w)
{
    memset(w, 0, sizeof *w);
    for (int i = 0; i < N; i++) {
        if (i > 0) connect(w, PREVIOUS, AT_POSITION + i, AT_POSITION + i - 1, i - 1);
        connect(w, SELF, AT_POSITION + i, AT_POSITION + i, i);
    }
    connect(w, FIRST, AT_ONE, AT_POSITION, 0);
    connect(w, SEPARATOR, AT_ONE, AT_SEPARATOR, 0);
    for (int v = 0; v < TOKENS; v++) {
        connect(w, DUPLICATE, AT_TOKEN + v, AT_TOKEN + v, v);
        connect(w, INDUCTION, AT_TOKEN + v, AT_BEFORE + v, v);
    }
    for (int s = 0; s < SEGMENTS; s++) connect(w, BLOCK, AT_SEGMENT + s, AT_SEGMENT + s, s);
    /* A token is its own nearest copy. A head for other copies must exclude it, by a score of -2
     * BETA at i. */
    for (int i = 0; i < N; i++) {
        w->q[DUPLICATE][AT_POSITION + i][TOKENS + i] = -2 * BETA;
        w->k[DUPLICATE][AT_POSITION + i][TOKENS + i] = 1;
    }
}

/* x W of one head */
static void project(float x[N][WIDTH], float w[WIDTH][D], float out[N][D])
{
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) {
            out[i][d] = 0;
            for (int c = 0; c < WIDTH; c++) out[i][d] += x[i][c] * w[c][d];
        }
}

/* Two runs of the same 24 tokens. The second has groups of four in a different order, so that most
 * followers are equal and distances are not. */
static void make_tokens(int64_t ids[N])
{
    for (int i = 0; i < TOKENS; i++) ids[i] = i;
    for (int i = 0; i < TOKENS; i++) ids[TOKENS + i] = (i / 4 * 8 + i % 4) % TOKENS + (i >= 12) * 4;
}

static mha_head_measures *measure(mha_context *context, const int64_t ids[N])
{
    static weights w;
    static float x[N][WIDTH], q[HEADS][N][D], k[HEADS][N][D];
    int64_t segments[N];
    uint8_t separators[N];
    memset(x, 0, sizeof x);
    for (int i = 0; i < N; i++) {
        segments[i] = i * SEGMENTS / N;
        separators[i] = i % 12 == 5;
        x[i][AT_POSITION + i] = x[i][AT_TOKEN + ids[i]] = x[i][AT_SEGMENT + segments[i]] = 1;
        if (i > 0) x[i][AT_BEFORE + ids[i - 1]] = 1;
        x[i][AT_SEPARATOR] = separators[i];
        x[i][AT_ONE] = 1;
    }
    set_weights(&w);
    for (int h = 0; h < HEADS; h++) {
        project(x, w.q[h], q[h]);
        project(x, w.k[h], k[h]);
    }
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_SCALE_GIVEN,
                                     .scale = 1};
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .flags = MHA_HEADS_CAUSAL,
                                 .queries = N,
                                 .keys = N,
                                 .ids = ids,
                                 .segments = segments,
                                 .separators = separators};
    const int64_t heads = HEADS, shape[] = {1, HEADS, N, D};
    const mha_head_measures_desc what = {.struct_size = sizeof what, .layers = 1, .heads = &heads};
    const mha_tensor queries = mha_tensor_contiguous(q, MHA_F32, 4, shape);
    const mha_tensor keys = mha_tensor_contiguous(k, MHA_F32, 4, shape);
    mha_head_measures *m = NULL;
    expect_ok(mha_head_measures_create(context, &what, &m));
    expect_ok(mha_head_measures_begin(m, &text));
    if (mha_head_measures_attention(m, 0, &desc, &queries, &keys) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    expect_ok(mha_head_measures_end(m));
    return m;
}

static void test_weights(void)
{
    const struct {
        int head;
        mha_head_measure own;
        mha_role role;
    } heads[] = {{PREVIOUS, MHA_MEASURE_PREVIOUS, MHA_ROLE_PREVIOUS},
                 {SELF, MHA_MEASURE_SELF, MHA_ROLE_SELF},
                 {FIRST, MHA_MEASURE_FIRST, MHA_ROLE_SINK},
                 {SEPARATOR, MHA_MEASURE_SEPARATOR, MHA_ROLE_SEPARATOR},
                 {DUPLICATE, MHA_MEASURE_DUPLICATE, MHA_ROLE_DUPLICATE},
                 {INDUCTION, MHA_MEASURE_INDUCTION, MHA_ROLE_INDUCTION},
                 {UNIFORM, MHA_MEASURE_BROAD, MHA_ROLE_BROAD},
                 {BLOCK, MHA_MEASURE_BLOCK, MHA_ROLE_BLOCK}};
    const size_t count = sizeof heads / sizeof heads[0];
    mha_context *context = context_with(0);
    int64_t ids[N];
    make_tokens(ids);
    mha_head_measures *m = measure(context, ids);
    for (size_t a = 0; a < count; a++) {
        mha_head_role roles[MHA_ROLES];
        const int64_t found = mha_head_measures_roles(m, 0, heads[a].head, roles, MHA_ROLES);
        bool has = false;
        for (int64_t n = 0; n < found; n++) has = has || roles[n].role == heads[a].role;
        if (!has) fail_msg("head %zu lacks %s", a, mha_role_describe(heads[a].role).name);
        for (size_t b = 0; b < count; b++) {
            const mha_head_score s = mha_head_measures_score(m, 0, heads[a].head, heads[b].own);
            if (heads[b].own == MHA_MEASURE_BROAD && a != b) continue; /* short rows */
            if (a == b ? s.value < 0.95 : s.value > s.chance + 0.1)
                fail_msg("head %zu: %s is %.3f, chance %.3f, %lld rows", a,
                         mha_measure_describe(heads[b].own).name, s.value, s.chance,
                         (long long)s.rows);
        }
    }
    mha_head_measures_destroy(m);
}

RUN_TESTS(TEST(test_weights))
