/* Attention over ranks (threads here) gives the same bits as one call over all rows, for random
 * descriptors, numbers of ranks and divisions. The messages match the plan, errors reach every
 * rank, and a lost rank ends the call on all ranks. */
#include "support/backward_call.h"
#include "support/cuts.h"
#include "support/expect.h"
#include "support/extras.h"
#include "support/failing_alloc.h"
#include "support/rank_contexts.h"
#include "support/suite.h"

#include <multihead/component.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank's data: its rows of every tensor over queries, and its keys. */
typedef struct rank_part {
    mha_context *context;
    mha_attention_desc desc;
    mha_tensor q, k, v, o, inputs[4];
    mha_tensor results[EXTRAS_COUNT];
    mha_attention_outputs outputs;
    mha_sequence_split split;
    mha_distributed_plan plan;
    mha_status status;
    char detail[512];
} rank_part;

typedef struct job {
    kinds_case c;
    mha_tensor bias; /* for cases without a bias */
    cuts queries, keys;
    rank_part parts[MOST_RANKS];
} job;

/* The query axis of an output, or the key axis of column sums, and its division. */
static int axis_of(int extra)
{
    return extra == EXTRA_AVERAGE ? 1 : 2;
}

static const cuts *cuts_of(const job *j, int extra)
{
    return extra == EXTRA_COLUMNS ? &j->keys : &j->queries;
}

/* Doubles the strides. */
static void stretch(mha_tensor *x)
{
    const size_t size = mha_dtype_size(x->dtype);
    int64_t count = 1;
    for (int i = 0; i < x->ndim; i++) count *= x->shape[i], x->stride[i] *= 2;
    char *from = x->data, *to = malloc((size_t)count * 2 * size + 1);
    assert_non_null(to);
    for (int64_t i = 0; i < count; i++)
        memcpy(to + (size_t)i * 2 * size, from + (size_t)i * size, size);
    free(from);
    x->data = to;
}

/* Fills an output before the call; `apart` doubles its strides. */
static void blank(mha_tensor *x, bool apart)
{
    size_t bytes = mha_dtype_size(x->dtype) * (apart ? 2 : 1);
    for (int i = 0; i < x->ndim; i++) bytes *= (size_t)x->shape[i];
    for (int i = 0; apart && i + 1 < x->ndim; i++) x->stride[i] *= 2;
    free(x->data);
    x->data = malloc(bytes + 1);
    assert_non_null(x->data);
    memset(x->data, 0xEE, bytes + 1);
}

static void cut_input(rank_part *p, const cuts *c, int rank, const mha_tensor **x, int from_last,
                      int i)
{
    const int axis = *x ? (*x)->ndim - 1 - from_last : -1;
    if (axis < 0) return;
    p->inputs[i] = cuts_copy(c, rank, *x, (*x)->shape[axis] == 1 ? -1 : axis);
    if (rank % 3 == 1) stretch(&p->inputs[i]);
    *x = &p->inputs[i];
}

static const mha_tensor **output_at(mha_attention_outputs *o, int extra)
{
    const mha_tensor **all[] = {
#define FIELD(name, field, dtype) &o->field,
        EXTRAS_LIST(FIELD)
#undef FIELD
    };
    return all[extra];
}

static void make_part(job *j, int rank, mha_path path, const mha_attention_outputs *wanted)
{
    rank_part *p = &j->parts[rank];
    const cuts *q = &j->queries, *k = &j->keys;
    p->desc = j->c.desc;
    p->desc.path = path;
    p->q = cuts_copy(q, rank, &j->c.q.view, 2);
    p->k = cuts_copy(k, rank, &j->c.k.view, 2);
    p->v = cuts_copy(k, rank, &j->c.v.view, 2);
    const int64_t o[] = {p->q.shape[0], p->q.shape[1], p->q.shape[2], p->v.shape[3]};
    p->o = mha_tensor_contiguous(malloc((size_t)(o[0] * o[1] * o[2] * o[3] + 1) * sizeof(float)),
                                 MHA_F32, 4, o);
    cut_input(p, q, rank, &p->desc.keep_mask, 1, 0);
    cut_input(p, q, rank, &p->desc.bias, 1, 1);
    cut_input(p, q, rank, &p->desc.global_queries, 0, 2);
    cut_input(p, q, rank, &p->desc.query_documents, 0, 3);
    p->outputs = *wanted;
    for (int i = 0; i < EXTRAS_COUNT; i++) {
        const mha_tensor **x = output_at(&p->outputs, i);
        if (!*x) continue;
        p->results[i] = cuts_copy(cuts_of(j, i), rank, *x, axis_of(i));
        blank(&p->results[i], rank % 3 == 2);
        *x = &p->results[i];
    }
    p->split = (mha_sequence_split){.struct_size = sizeof p->split,
                                    .queries = j->c.q.view.shape[2],
                                    .keys = j->c.k.view.shape[2],
                                    .query_pieces = q->pieces[rank],
                                    .key_pieces = k->pieces[rank],
                                    .query_piece_count = q->count[rank],
                                    .key_piece_count = k->count[rank]};
}

static void free_part(rank_part *p)
{
    const mha_tensor *all[] = {&p->q,         &p->k,         &p->v,         &p->o,
                               &p->inputs[0], &p->inputs[1], &p->inputs[2], &p->inputs[3]};
    if (p->o.data == p->k.data) p->o.data = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
    for (int i = 0; i < EXTRAS_COUNT; i++) free(p->results[i].data);
}

static void explain_rank(void *user, const mha_transport *t)
{
    job *j = user;
    rank_part *p = &j->parts[t->rank];
    p->split.transport = t;
    p->plan = (mha_distributed_plan){.messages_sent = -1};
    p->status = mha_distributed_explain(p->context, &p->split, &p->desc, &p->q, &p->k, &p->v,
                                        &p->outputs, &p->plan);
    if (p->status != MHA_OK) snprintf(p->detail, sizeof p->detail, "%s", mha_error_detail());
}

static void run_rank(void *user, const mha_transport *t)
{
    job *j = user;
    rank_part *p = &j->parts[t->rank];
    p->split.transport = t;
    p->status = mha_distributed_forward(p->context, &p->split, &p->desc, &p->q, &p->k, &p->v, &p->o,
                                        &p->outputs);
    if (p->status != MHA_OK) snprintf(p->detail, sizeof p->detail, "%s", mha_error_detail());
}

/* Memory for all whole outputs that ranks support. */
static mha_attention_outputs make_outputs(const job *j, unsigned wanted, mha_tensor *tensors,
                                          int64_t *offsets)
{
    const mha_tensor *q = &j->c.q.view;
    const int64_t longest = j->c.shape.kinds & KIND_RAGGED ? 0 : j->c.k.view.shape[2];
    int64_t S = longest;
    for (int64_t b = 0; longest == 0 && b < j->c.desc.sequences; b++)
        if (j->c.key_starts[b + 1] - j->c.key_starts[b] > S)
            S = j->c.key_starts[b + 1] - j->c.key_starts[b];
    mha_attention_outputs made = {.struct_size = sizeof made};
    offsets[0] = -1, offsets[1] = 3;
    for (int i = 0; i < EXTRAS_COUNT; i++) {
        if (!(wanted >> i & 1)) continue;
        const int64_t last = i == EXTRA_OFFSETS                              ? 2
                             : i == EXTRA_TOP_KEYS || i == EXTRA_TOP_WEIGHTS ? 3
                                                                             : S;
        const int64_t row[] = {q->shape[0], q->shape[1], q->shape[2], last};
        const int64_t mean[] = {q->shape[0], q->shape[2], S};
        const int64_t columns[] = {q->shape[0], q->shape[1], j->c.k.view.shape[2]};
        const bool four = i == EXTRA_P || i == EXTRA_SCORES || i == EXTRA_OFFSETS ||
                          i == EXTRA_TOP_KEYS || i == EXTRA_TOP_WEIGHTS;
        const bool wide = i == EXTRA_LARGEST_KEY || i == EXTRA_TOP_KEYS;
        const int64_t *shape = i == EXTRA_AVERAGE ? mean : i == EXTRA_COLUMNS ? columns : row;
        tensors[i] = mha_tensor_contiguous(NULL, wide ? MHA_I64 : MHA_F32, four ? 4 : 3, shape);
        blank(&tensors[i], false);
        *output_at(&made, i) = &tensors[i];
    }
    if (made.offset_mass) made.offsets = offsets, made.offsets_count = 2;
    if (!made.top_keys || !made.top_weights) made.top_keys = made.top_weights = NULL;
    return made;
}

static void check_count(int64_t messages, double bytes, thread_ranks_count explaining,
                        thread_ranks_count calling)
{
    assert_int_equal(messages, calling.messages - explaining.messages);
    assert_int_equal((int64_t)bytes, calling.bytes - explaining.bytes);
}

/* Each rank's explained messages equal those that the call sends and receives. */
static void check_counts(const job *j, int ranks, const thread_ranks_counts *explaining,
                         const thread_ranks_counts *calling)
{
    for (int r = 0; r < ranks; r++) {
        const mha_distributed_plan *p = &j->parts[r].plan;
        check_count(p->messages_sent, p->bytes_sent, explaining->sent[r], calling->sent[r]);
        check_count(p->messages_received, p->bytes_received, explaining->received[r],
                    calling->received[r]);
    }
}

/* The pairs of the ranks sum to the pairs of one call. */
static void check_pairs(const job *j, int ranks, const mha_context *context,
                        const mha_attention_desc *desc)
{
    mha_attention_plan whole;
    double pairs = 0;
    for (int r = 0; r < ranks; r++) pairs += j->parts[r].plan.pairs;
    expect_ok(mha_attention_explain(context, desc, &j->c.q.view, &j->c.k.view, &j->c.v.view, NULL,
                                    NULL, &whole));
    assert_int_equal((int64_t)pairs, whole.visible_pairs);
}

static void expect_all(const job *j, int ranks, const char *what, int number, const char *where)
{
    for (int rank = 0; rank < ranks; rank++)
        if (j->parts[rank].status != MHA_OK)
            fail_msg("case %d, %s, rank %d of %d, %s: %s\n%s", number, where, rank, ranks, what,
                     j->parts[rank].detail, j->c.text);
}

/* A shape whose heads the ranks exchange, if there are two or more ranks and their number divides
 * the heads. */
static kinds_shape some_exchange(rng *r, int *ranks)
{
    static const int64_t counts[] = {2, 3, 4, 6, 8}, kv_heads[] = {1, 2, 3, 4, 8},
                         groups[] = {1, 1, 2, 3, 4};
    kinds_shape n = kinds_some_shape(r);
    *ranks = (int)RNG_PICK(r, counts);
    n.Hk = RNG_PICK(r, kv_heads), n.H = n.Hk * RNG_PICK(r, groups);
    if (rng_chance(r, 0.5)) n.S = rng_between(r, 1, 2200), n.T = rng_between(r, 1, 300);
    return n;
}

/* Stores [B,H,T,D] in the order [B,T,H,D]. */
static void interleave(mha_tensor *x)
{
    const int64_t *n = x->shape;
    const size_t row = (size_t)n[3] * mha_dtype_size(x->dtype);
    char *to = malloc((size_t)(n[0] * n[1] * n[2]) * row + 1);
    const char *from = x->data;
    assert_non_null(to);
    for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++) {
        const int64_t b = i / n[2] / n[1], h = i / n[2] % n[1], t = i % n[2];
        memcpy(to + (size_t)((b * n[2] + t) * n[1] + h) * row, from + (size_t)i * row, row);
    }
    free(x->data);
    x->data = to;
    x->stride[0] = n[1] * n[2] * n[3], x->stride[1] = n[3], x->stride[2] = n[1] * n[3];
}

/* Gives the ranks different layouts. */
static void vary_parts(rng *r, job *j, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        rank_part *p = &j->parts[rank];
        mha_tensor *each[] = {&p->q, &p->k, &p->v, &p->o};
        for (int i = 0; i < 4; i++)
            if (rng_chance(r, 0.4)) interleave(each[i]);
    }
}

/* Loses a rank at a random message; no rank may wait for it. */
static void lose_one(rng *r, job *j, int ranks)
{
    thread_ranks_run(ranks, run_rank, j, (int)rng_between(r, 0, ranks - 1),
                     rng_between(r, 0, rng_chance(r, 0.5) ? 60 : 400));
    for (int rank = 0; rank < ranks; rank++) {
        const mha_status status = j->parts[rank].status;
        assert_true(status == MHA_OK || status == MHA_ERR_RANK);
    }
}

static int64_t exchanged; /* cases whose ranks exchanged heads */

static void check_case(int number, unsigned wanted, bool exchange)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number + 1000);
    const machines all = machines_make(1);
    const int at = number % all.count;
    int ranks = (int)rng_between(&r, 1, MOST_RANKS);
    const machine *m = &all.each[at];
    job *j = calloc(1, sizeof *j);
    mha_tensor tensors[EXTRAS_COUNT] = {{0}};
    int64_t offsets[2];
    assert_non_null(j);
    kinds_shape shape = kinds_some_shape(&r);
    if (rng_chance(&r, 0.5)) shape.S = rng_between(&r, 1, 2200), shape.T = rng_between(&r, 1, 300);
    if (exchange) shape = some_exchange(&r, &ranks);
    kinds_make(&j->c, &r, &shape);
    outcome whole = kinds_outcome(&j->c, &r, LAYOUT_CONTIGUOUS);
    mha_attention_outputs outputs = make_outputs(j, wanted, tensors, offsets);
    mha_attention_desc desc = j->c.desc;
    desc.path = m->path;
    expect_ok(mha_attention_forward(m->context, &desc, &j->c.q.view, &j->c.k.view, &j->c.v.view,
                                    &whole.o.view, &outputs));
    j->queries = cuts_make(&r, j->c.q.view.shape[2], ranks);
    j->keys = cuts_make(&r, j->c.k.view.shape[2], ranks);
    for (int rank = 0; rank < ranks; rank++) {
        j->parts[rank].context = rank_contexts_of(m, at, rank);
        make_part(j, rank, m->path, &outputs);
    }
    if (exchange) vary_parts(&r, j, ranks);
    const thread_ranks_counts explaining = thread_ranks_run(ranks, explain_rank, j, -1, 0);
    expect_all(j, ranks, "explain", number, m->name);
    const thread_ranks_counts calling = thread_ranks_run(ranks, run_rank, j, -1, 0);
    expect_all(j, ranks, "forward", number, m->name);
    for (int rank = 0; rank < ranks; rank++) {
        rank_part *p = &j->parts[rank];
        if (!cuts_same(&j->queries, rank, &whole.o.view, &p->o, 2))
            fail_msg("case %d, %s, rank %d of %d: other bits\n%s", number, m->name, rank, ranks,
                     j->c.text);
        for (int i = 0; i < EXTRAS_COUNT; i++)
            if (*output_at(&p->outputs, i) &&
                !cuts_same(cuts_of(j, i), rank, *output_at(&outputs, i), &p->results[i],
                           axis_of(i)))
                fail_msg("case %d, %s, rank %d of %d: output %d has other bits\n%s", number,
                         m->name, rank, ranks, i, j->c.text);
    }
    check_counts(j, ranks, &explaining, &calling);
    check_pairs(j, ranks, m->context, &desc);
    exchanged += j->parts[0].plan.head_parts > 1;
    if (exchange && rng_chance(&r, 0.5)) lose_one(&r, j, ranks);
    for (int rank = 0; rank < ranks; rank++) free_part(&j->parts[rank]);
    for (int i = 0; i < EXTRAS_COUNT; i++) free(tensors[i].data);
    outcome_free(&whole);
    kinds_free(&j->c);
    free(j);
}

static void the_bits_of_one_call(void)
{
    int first, end;
    for (rng_range(20, 2000, &first, &end); first < end; first++)
        check_case(first, 1u << EXTRA_LSE, false);
}

static void heads_are_exchanged(void)
{
    int first, end;
    exchanged = 0;
    for (rng_range(20, 2000, &first, &end); first < end; first++)
        check_case(first + 10000, first % 4 ? 1u << EXTRA_LSE : 0, true);
    if (rng_whole_sample()) assert_true(exchanged > 0);
    printf("heads were exchanged %lld times\n", (long long)exchanged);
}

/* ---- plans
 * ------------------------------------------------------------------------------------- */

enum { PLANNED = 4 };

/* A call written by hand: each rank's rows of queries and keys, and its expected plan. */
typedef struct planned {
    int ranks;
    int64_t H, Hk, D, Dv, queries[PLANNED], keys[PLANNED];
    uint32_t flags;
    bool entropy;
    int64_t parts; /* parts of heads */
    int64_t sent[PLANNED], received[PLANNED];
    double bytes_sent[PLANNED], bytes_received[PLANNED], pairs[PLANNED];
} planned;

enum { KEY = (8 + 24) * 4, QUERY = 8 * 4, RESULT = 24 * 4 }; /* bytes of a row of one head */

static const planned plans[] = {
    /* Three ranks do not divide two heads: every rank sends its keys to all others. */
    {.ranks = 3,
     .H = 2,
     .Hk = 1,
     .D = 8,
     .Dv = 24,
     .queries = {100, 30, 7},
     .keys = {512, 512, 100},
     .flags = MHA_ATTENTION_CAUSAL,
     .parts = 1,
     .sent = {2, 2, 2},
     .received = {2, 2, 2},
     .bytes_sent = {1024 * KEY, 1024 * KEY, 200 * KEY},
     .bytes_received = {612 * KEY, 612 * KEY, 1024 * KEY},
     .pairs = {100 * 101, 2 * (30 * 100 + 15 * 31), 2 * (7 * 130 + 28)}},
    /* All ranks need the one key/value head. An exchange of queries would cost more. */
    {.ranks = 2,
     .H = 2,
     .Hk = 1,
     .D = 8,
     .Dv = 24,
     .queries = {100, 200},
     .keys = {200, 100},
     .parts = 1,
     .sent = {1, 1},
     .received = {1, 1},
     .bytes_sent = {200 * KEY, 100 * KEY},
     .bytes_received = {100 * KEY, 200 * KEY},
     .pairs = {2 * 100 * 300, 2 * 200 * 300}},
    /* Ranks exchange heads for rows: each sends q, k and v of the other's head, then o and entropy
     * of the other's rows. */
    {.ranks = 2,
     .H = 2,
     .Hk = 2,
     .D = 8,
     .Dv = 24,
     .queries = {300, 724},
     .keys = {700, 324},
     .entropy = true,
     .parts = 2,
     .sent = {2, 2},
     .received = {2, 2},
     .bytes_sent = {300 * QUERY + 700 * KEY + 724 * (RESULT + 4),
                    724 * QUERY + 324 * KEY + 300 * (RESULT + 4)},
     .bytes_received = {724 * QUERY + 324 * KEY + 300 * (RESULT + 4),
                        300 * QUERY + 700 * KEY + 724 * (RESULT + 4)},
     .pairs = {1024 * 1024, 1024 * 1024}},
    /* The same with all rows on one rank. */
    {.ranks = 2,
     .H = 2,
     .Hk = 2,
     .D = 8,
     .Dv = 24,
     .queries = {1024, 0},
     .keys = {2048, 0},
     .parts = 2,
     .sent = {1, 1},
     .received = {1, 1},
     .bytes_sent = {1024 * QUERY + 2048 * KEY, 1024 * RESULT},
     .bytes_received = {1024 * RESULT, 1024 * QUERY + 2048 * KEY},
     .pairs = {1024 * 2048, 1024 * 2048}},
    /* Two groups of two ranks: queries and results go to one rank, and the keys of each head go to
     * two or three. */
    {.ranks = 4,
     .H = 2,
     .Hk = 2,
     .D = 8,
     .Dv = 24,
     .queries = {256, 256, 256, 256},
     .keys = {256, 256, 256, 256},
     .parts = 2,
     .sent = {4, 4, 4, 4},
     .received = {4, 4, 4, 4},
     .bytes_sent = {256 * (QUERY + 3 * KEY + RESULT), 256 * (QUERY + 3 * KEY + RESULT),
                    256 * (QUERY + 3 * KEY + RESULT), 256 * (QUERY + 3 * KEY + RESULT)},
     .bytes_received = {256 * (QUERY + 3 * KEY + RESULT), 256 * (QUERY + 3 * KEY + RESULT),
                        256 * (QUERY + 3 * KEY + RESULT), 256 * (QUERY + 3 * KEY + RESULT)},
     .pairs = {512 * 1024, 512 * 1024, 512 * 1024, 512 * 1024}},
    /* One rank sends nothing. */
    {.ranks = 1,
     .H = 2,
     .Hk = 1,
     .D = 8,
     .Dv = 24,
     .queries = {3},
     .keys = {5},
     .flags = MHA_ATTENTION_CAUSAL,
     .parts = 1,
     .pairs = {2 * 6}},
};

typedef struct planning {
    const planned *p;
    mha_context *contexts[PLANNED];
    mha_distributed_plan plans[PLANNED];
    char detail[PLANNED][512];
} planning;

static int64_t rows_before(const int64_t *rows, int rank)
{
    int64_t sum = 0;
    for (int r = 0; r < rank; r++) sum += rows[r];
    return sum;
}

static void plan_rank(void *user, const mha_transport *t)
{
    planning *x = user;
    const planned *p = x->p;
    const int64_t T = p->queries[t->rank], S = p->keys[t->rank];
    const int64_t row = rows_before(p->queries, t->rank), key = rows_before(p->keys, t->rank);
    const mha_piece queries = {row, row + T}, keys = {key, key + S};
    const mha_tensor q = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, p->H, T, p->D});
    const mha_tensor k = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, p->Hk, S, p->D});
    const mha_tensor v = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, p->Hk, S, p->Dv});
    const mha_tensor entropy = mha_tensor_contiguous(NULL, MHA_F32, 3, q.shape);
    const mha_attention_desc desc = {.struct_size = sizeof desc, .flags = p->flags};
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .entropy = p->entropy ? &entropy : NULL};
    const mha_sequence_split split = {.struct_size = sizeof split,
                                      .transport = t,
                                      .queries = rows_before(p->queries, p->ranks),
                                      .keys = rows_before(p->keys, p->ranks),
                                      .query_pieces = &queries,
                                      .key_pieces = &keys,
                                      .query_piece_count = 1,
                                      .key_piece_count = 1};
    const mha_status status = mha_distributed_explain(x->contexts[t->rank], &split, &desc, &q, &k,
                                                      &v, &outputs, &x->plans[t->rank]);
    snprintf(x->detail[t->rank], sizeof *x->detail, "%s", status ? mha_error_detail() : "");
}

static void plans_by_hand(void)
{
    const machines all = machines_make(1);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        planning x = {.p = &plans[i]};
        for (int r = 0; r < x.p->ranks; r++) x.contexts[r] = rank_contexts_of(&all.each[0], 0, r);
        thread_ranks_run(x.p->ranks, plan_rank, &x, -1, 0);
        for (int r = 0; r < x.p->ranks; r++) {
            const mha_distributed_plan *got = &x.plans[r];
            assert_string_equal(x.detail[r], "");
            assert_true(got->reason && *got->reason);
            const struct {
                const char *name;
                double got, expected;
            } each[] = {
                {"head_parts", (double)got->head_parts, (double)x.p->parts},
                {"messages_sent", (double)got->messages_sent, (double)x.p->sent[r]},
                {"messages_received", (double)got->messages_received, (double)x.p->received[r]},
                {"bytes_sent", got->bytes_sent, x.p->bytes_sent[r]},
                {"bytes_received", got->bytes_received, x.p->bytes_received[r]},
                {"pairs", got->pairs, x.p->pairs[r]}};
            for (size_t n = 0; n < sizeof each / sizeof *each; n++)
                if (each[n].got != each[n].expected)
                    fail_msg("plan %zu, rank %d: %s is %g, expected %g", i, r, each[n].name,
                             each[n].got, each[n].expected);
        }
    }
}

static void all_outputs(void)
{
    int first, end;
    for (rng_range(12, 500, &first, &end); first < end; first++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)first);
        check_case(first, (unsigned)rng_between(&r, 1, EXTRAS_ALL), false);
    }
}

/* Only column sums, or column sums after the passes of other outputs. */
static void column_sums(void)
{
    int first, end;
    for (rng_range(12, 1000, &first, &end); first < end; first++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)first + 5000);
        const unsigned others = rng_chance(&r, 0.3) ? (unsigned)rng_between(&r, 0, EXTRAS_ALL) : 0;
        check_case(first + 5000, others | 1u << EXTRA_COLUMNS, false);
    }
}

/* ---- backward --------------------------------------------------------------------------------- */

enum {
    GRAD_Q,
    GRAD_K,
    GRAD_V,
    GRAD_BIAS,
    GRAD_ALIBI,
    GRAD_T5,
    GRAD_SHAW_KEYS,
    GRAD_SHAW_VALUES,
    GRAD_SINKS,
    GRAD_GATES,
    GRAD_SCALE,
    GRADS
};

/* The kinds that have gradients, besides q, k and v. */
enum {
    PARAMETERS = KIND_BIAS | KIND_ALIBI | KIND_T5 | KIND_SHAW_KEYS | KIND_SHAW_VALUES |
                 KIND_SINK_LOGITS | KIND_GATES
};

/* The input of each gradient, or NULL if there is none. */
static const mha_tensor *input_of(const kinds_case *c, int grad)
{
    static const mha_tensor scale = {.ndim = 2, .shape = {1, 1}};
    const mha_attention_desc *d = &c->desc;
    const mha_tensor *all[GRADS] = {&c->q.view,      &c->k.view,  &c->v.view,   d->bias,
                                    d->alibi_slopes, d->t5_table, d->shaw_keys, d->shaw_values,
                                    d->sink_logits,  d->gates,    &scale};
    return all[grad];
}

/* The axis of query or key rows that is divided over ranks, or -1 if every rank has all rows. */
static int axis_of_grad(const mha_tensor *whole, int grad)
{
    if (grad <= GRAD_V) return 2;
    const int axis = grad == GRAD_BIAS ? whole->ndim - 2 : -1;
    return axis < 0 || whole->shape[axis] == 1 ? -1 : axis;
}

static const cuts *cuts_of_grad(const job *j, int grad)
{
    return grad == GRAD_K || grad == GRAD_V ? &j->keys : &j->queries;
}

/* Whether each rank has one query: a bias with one row may then be shared by all queries. */
static bool is_ambiguous(const job *j, int ranks)
{
    bool one = true;
    for (int rank = 0; rank < ranks; rank++) one &= cuts_rows(&j->queries, rank) == 1;
    return one && ranks > 1;
}

/* Additional arguments of the backward pass, for one process or for a rank. */
typedef struct back_part {
    mha_tensor o, lse, g, lse_gradient, p_gradient, mean_gradient, grads[GRADS];
    mha_attention_gradients gradients;
    mha_status status;
} back_part;

typedef struct back_job {
    job *j;
    back_part whole, parts[MOST_RANKS];
} back_job;

static mha_tensor random_like(rng *r, int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    float *memory = malloc((size_t)count * sizeof *memory + 1);
    assert_non_null(memory);
    for (int64_t i = 0; i < count; i++) memory[i] = rng_normal(r);
    return mha_tensor_contiguous(memory, MHA_F32, ndim, shape);
}

/* Bits: further outputs in the loss, and options of the gradients. */
enum { OF_LSE = 1, OF_WEIGHTS = 2, OF_MEAN = 4, OF_DROPPED = 8, ADDED = 16, LOSSES = 32 };

static void point_at_gradients(back_part *p, unsigned wanted, int loss)
{
    mha_attention_gradients *g = &p->gradients;
    const mha_tensor **all[GRADS] = {
        &g->q,         &g->k,           &g->v,           &g->bias,  &g->alibi_slopes, &g->t5_table,
        &g->shaw_keys, &g->shaw_values, &g->sink_logits, &g->gates, &g->scale};
    *g = (mha_attention_gradients){.struct_size = sizeof *g};
    for (int i = 0; i < GRADS; i++)
        if (wanted >> i & 1) *all[i] = &p->grads[i];
    if (loss & OF_LSE) g->lse_gradient = &p->lse_gradient;
    if (loss & OF_WEIGHTS) g->probabilities_gradient = &p->p_gradient;
    if (loss & OF_MEAN) g->average_probabilities_gradient = &p->mean_gradient;
    if (loss & OF_DROPPED) g->flags |= MHA_GRADIENTS_DROPPED_PROBABILITIES;
    if (loss & ADDED) g->flags |= MHA_GRADIENTS_ACCUMULATE;
}

static void free_back(back_part *p)
{
    free(p->o.data), free(p->lse.data), free(p->g.data), free(p->lse_gradient.data);
    free(p->p_gradient.data), free(p->mean_gradient.data);
    for (int i = 0; i < GRADS; i++) free(p->grads[i].data);
}

/* Makes gradients of probabilities. */
static void make_weights(rng *r, const kinds_case *c, back_part *w)
{
    const int64_t *q = c->q.view.shape, S = c->shape.S;
    w->p_gradient = random_like(r, 4, (int64_t[]){q[0], q[1], q[2], S});
    w->mean_gradient = random_like(r, 3, (int64_t[]){q[0], q[2], S});
}

static void run_back(void *user, const mha_transport *t)
{
    back_job *x = user;
    rank_part *p = &x->j->parts[t->rank];
    back_part *b = &x->parts[t->rank];
    p->split.transport = t;
    b->status = mha_distributed_backward(
        p->context, &p->split,
        BACKWARD_CALL(&p->desc, &p->q, &p->k, &p->v, &b->o, &b->lse, &b->g, &b->gradients));
    if (b->status != MHA_OK) snprintf(p->detail, sizeof p->detail, "%s", mha_error_detail());
}

static void make_back(back_job *x, int rank)
{
    const cuts *q = &x->j->queries;
    back_part *p = &x->parts[rank];
    const back_part *w = &x->whole;
    p->o = cuts_copy(q, rank, &w->o, 2);
    p->lse = cuts_copy(q, rank, &w->lse, 2);
    p->g = cuts_copy(q, rank, &w->g, 2);
    p->lse_gradient = cuts_copy(q, rank, &w->lse_gradient, 2);
    p->p_gradient = cuts_copy(q, rank, &w->p_gradient, 2);
    p->mean_gradient = cuts_copy(q, rank, &w->mean_gradient, 1);
    for (int i = 0; i < GRADS; i++) {
        if (!w->grads[i].data) continue;
        p->grads[i] =
            cuts_copy(cuts_of_grad(x->j, i), rank, &w->grads[i], axis_of_grad(&w->grads[i], i));
        if (i > GRAD_V && rank % 3 == 2) stretch(&p->grads[i]);
    }
}

/* Divides at whole chunks of each sequence. */
static cuts cut_chunks(rng *r, const kinds_case *c, int ranks)
{
    int64_t rows[2048], count = 0;
    const int64_t T = c->q.view.shape[2], whole[] = {0, T};
    const bool ragged = c->desc.query_starts;
    const int64_t *starts = ragged ? c->desc.query_starts : whole;
    for (int64_t b = 0; b < (ragged ? c->desc.sequences : 1); b++)
        for (int64_t t = starts[b]; t < starts[b + 1]; t += MHA_SPLIT_ROWS) rows[count++] = t;
    rows[count] = T;
    cuts made = cuts_make(r, count, ranks);
    for (int rank = 0; rank < ranks; rank++)
        for (int64_t i = 0; i < made.count[rank]; i++) {
            mha_piece *p = &made.pieces[rank][i];
            *p = (mha_piece){rows[p->begin], rows[p->end]};
        }
    return made;
}

/* Adding a large number to sums and subtracting it again exposes their rounding: nearly all bits of
 * a sum in double become visible. */
static void start_from_rounded(const machine *m, const job *j, const mha_attention_desc *desc,
                               unsigned wanted, int loss, back_part *w)
{
    wanted &= ~(1u << GRAD_Q | 1u << GRAD_K | 1u << GRAD_V);
    if (wanted == 0) return;
    point_at_gradients(w, wanted, loss & ~ADDED);
    expect_ok(mha_attention_backward(m->context,
                                     BACKWARD_CALL(desc, &j->c.q.view, &j->c.k.view, &j->c.v.view,
                                                   &w->o, &w->lse, &w->g, &w->gradients)));
    for (int i = 0; i < GRADS; i++) {
        int64_t count = wanted >> i & 1;
        for (int d = 0; d < w->grads[i].ndim; d++) count *= w->grads[i].shape[d];
        for (int64_t e = 0; e < count; e++) ((float *)w->grads[i].data)[e] *= -1;
    }
}

/* Makes later rows equal to earlier ones, with o's gradient negated. The sums of chunks with equal
 * rows cancel, and only the rounding of their order remains. */
static void mirror(const mha_tensor *q, const mha_tensor *g)
{
    const mha_tensor *both[] = {q, g};
    const int64_t T = q->shape[2], half = (T / MHA_SPLIT_ROWS + 1) / 2 * MHA_SPLIT_ROWS;
    for (int i = 0; half > 0 && i < 2; i++)
        for (int64_t n = 0; n < q->shape[0] * q->shape[1] * (T - half); n++) {
            const mha_tensor *x = both[i];
            const int64_t head = n / (T - half), t = half + n % (T - half);
            float *row = (float *)x->data + head / x->shape[1] * x->stride[0] +
                         head % x->shape[1] * x->stride[1] + t * x->stride[2];
            for (int64_t d = 0; t < 2 * half && d < x->shape[3]; d++)
                row[d] = row[d - half * x->stride[2]] * (i == 0 ? 1 : -1);
        }
}

static void check_back_case(int number)
{
    rng r = rng_make(rng_run_seed(), (uint64_t)number + 77000);
    const machines all = machines_make(1);
    const int ranks = (int)rng_between(&r, 1, MOST_RANKS);
    int at = number % all.count;
    if (all.each[at].path == MHA_PATH_PLAIN) at = 0;
    const machine *m = &all.each[at];
    back_job *x = calloc(1, sizeof *x);
    assert_non_null(x);
    job *j = x->j = calloc(1, sizeof *j);
    assert_non_null(j);
    kinds_shape shape = kinds_some_shape(&r);
    if (rng_chance(&r, 0.5)) shape.kinds |= (unsigned)rng_next(&r) & PARAMETERS;
    if (shape.D > MHA_TILED_MAX_HEAD_DIM) shape.D = 64;
    if (shape.Dv > MHA_TILED_MAX_HEAD_DIM) shape.Dv = 72;
    if (rng_chance(&r, 0.5)) shape.S = rng_between(&r, 1, 1500), shape.T = rng_between(&r, 1, 400);
    kinds_make(&j->c, &r, &shape);
    mha_attention_desc desc = j->c.desc;
    desc.path = m->path;
    const mha_tensor *q = &j->c.q.view, *k = &j->c.k.view, *v = &j->c.v.view;
    const int64_t o[] = {q->shape[0], q->shape[1], q->shape[2], v->shape[3]};
    unsigned wanted = (unsigned)rng_between(&r, 1, (1 << GRADS) - 1);
    const int loss = rng_chance(&r, 0.7) ? (int)rng_between(&r, 0, 1) * ADDED
                                         : (int)rng_between(&r, 0, LOSSES - 1);
    back_part *w = &x->whole;
    w->o = random_like(&r, 4, o), w->g = random_like(&r, 4, o);
    w->lse = random_like(&r, 3, o), w->lse_gradient = random_like(&r, 3, o);
    make_weights(&r, &j->c, w);
    if (rng_chance(&r, 0.5)) mirror(q, &w->g);
    for (int i = 0; i < GRADS; i++) {
        const mha_tensor *input = input_of(&j->c, i);
        if (!input) wanted &= ~(1u << i);
        if (input) w->grads[i] = random_like(&r, input->ndim, input->shape);
    }
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &w->lse};
    expect_ok(mha_attention_forward(m->context, &desc, q, k, v, &w->o, &outputs));
    j->queries = rng_chance(&r, 0.3) ? cut_chunks(&r, &j->c, ranks) : cuts_make(&r, o[2], ranks);
    j->keys = cuts_make(&r, k->shape[2], ranks);
    if (is_ambiguous(j, ranks)) wanted &= ~(1u << GRAD_BIAS);
    if (loss & ADDED) start_from_rounded(m, j, &desc, wanted, loss, w);
    const mha_attention_outputs none = {.struct_size = sizeof none};
    for (int rank = 0; rank < ranks; rank++) {
        j->parts[rank].context = rank_contexts_of(m, at, rank);
        make_part(j, rank, m->path, &none);
        make_back(x, rank);
        point_at_gradients(&x->parts[rank], wanted, loss);
    }
    point_at_gradients(w, wanted, loss);
    expect_ok(mha_attention_backward(
        m->context, BACKWARD_CALL(&desc, q, k, v, &w->o, &w->lse, &w->g, &w->gradients)));
    thread_ranks_run(ranks, run_back, x, -1, 0);
    for (int rank = 0; rank < ranks; rank++) {
        back_part *b = &x->parts[rank];
        if (b->status != MHA_OK)
            fail_msg("case %d, %s, rank %d of %d: %s\n%s", number, m->name, rank, ranks,
                     j->parts[rank].detail, j->c.text);
        for (int i = 0; i < GRADS; i++)
            if ((wanted >> i & 1) && !cuts_same(cuts_of_grad(j, i), rank, &w->grads[i],
                                                &b->grads[i], axis_of_grad(&w->grads[i], i)))
                fail_msg("case %d, %s, rank %d of %d: gradient %d has other bits\n%s", number,
                         m->name, rank, ranks, i, j->c.text);
    }
    for (int rank = 0; rank < ranks; rank++) free_part(&j->parts[rank]), free_back(&x->parts[rank]);
    free_back(w);
    kinds_free(&j->c);
    free(j);
    free(x);
}

static void gradients_have_the_bits_of_one_call(void)
{
    int first, end;
    for (rng_range(16, 1500, &first, &end); first < end; first++) check_back_case(first);
}

enum { PLAIN_RANKS = 3 };

/* A problem for three ranks in even pieces. Pieces of queries end `later` rows later; if `later` is
 * not zero, a bias has a row for each query. */
static job *make_even(int64_t T, int64_t S, int64_t Hk, unsigned kinds, int64_t later)
{
    rng r = rng_make(1, 1);
    job *j = calloc(1, sizeof *j);
    const machines all = machines_make(1);
    const kinds_shape shape = {.B = 1,
                               .H = Hk > 2 ? Hk : 2,
                               .Hk = Hk,
                               .T = T,
                               .S = S,
                               .D = 8,
                               .Dv = 8,
                               .kinds = kinds & ~(unsigned)KIND_BIAS};
    const mha_attention_outputs none = {.struct_size = sizeof none};
    assert_non_null(j);
    kinds_make(&j->c, &r, &shape);
    if (kinds & KIND_BIAS) {
        j->bias = random_like(&r, 4, (int64_t[]){1, 1, later > 0 ? T : 1, S});
        j->c.desc.bias = &j->bias;
    }
    j->queries = j->keys = (cuts){.ranks = PLAIN_RANKS};
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        cuts *c[] = {&j->queries, &j->keys};
        for (int i = 0; i < 2; i++)
            expect_ok(mha_split_pieces(i ? S : T, rank, PLAIN_RANKS, 0, c[i]->pieces[rank],
                                       &c[i]->count[rank]));
        mha_piece *p = j->queries.pieces[rank];
        if (rank > 0) p->begin += later;
        if (rank < PLAIN_RANKS - 1) p->end += later;
    }
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        j->parts[rank].context = rank_contexts_of(&all.each[0], 0, rank);
        make_part(j, rank, MHA_PATH_AUTO, &none);
        memset(j->parts[rank].o.data, 0xEE, sizeof(float));
    }
    return j;
}

static job *make_plain(int64_t T, int64_t S)
{
    return make_even(T, S, 1, 0, 0);
}

/* Requests column sums on all ranks. */
static void want_columns(job *j)
{
    const mha_tensor *q = &j->c.q.view;
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        rank_part *p = &j->parts[rank];
        mha_tensor *x = &p->results[EXTRA_COLUMNS];
        const int64_t shape[] = {q->shape[0], q->shape[1], p->k.shape[2]};
        *x = mha_tensor_contiguous(NULL, MHA_F32, 3, shape);
        blank(x, false);
        p->outputs.column_sums = x;
    }
}

static bool is_marked(const mha_tensor *x)
{
    const unsigned char mark[] = {0xEE, 0xEE, 0xEE, 0xEE};
    return memcmp(x->data, mark, sizeof mark) == 0;
}

static void free_plain(job *j)
{
    for (int rank = 0; rank < PLAIN_RANKS; rank++) free_part(&j->parts[rank]);
    kinds_free(&j->c);
    free(j->bias.data);
    free(j);
}

static void expect_parts(job *j, int64_t parts, const char *what, int number)
{
    thread_ranks_run(PLAIN_RANKS, explain_rank, j, -1, 0);
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        if (j->parts[rank].status != MHA_OK) fail_msg("%s", j->parts[rank].detail);
        if (j->parts[rank].plan.head_parts != parts)
            fail_msg("%s %d: rank %d chose %lld parts, expected %lld", what, number, rank,
                     (long long)j->parts[rank].plan.head_parts, (long long)parts);
    }
}

/* Heads are not exchanged if an output has pairs of queries and keys. */
static void rows_of_pairs_stay(void)
{
    for (int i = 0; i < EXTRAS_COUNT; i++) {
        const bool top = i == EXTRA_TOP_KEYS || i == EXTRA_TOP_WEIGHTS;
        const bool pairs = i == EXTRA_P || i == EXTRA_AVERAGE || i == EXTRA_SCORES;
        const unsigned wanted = top ? 1u << EXTRA_TOP_KEYS | 1u << EXTRA_TOP_WEIGHTS : 1u << i;
        mha_tensor tensors[EXTRAS_COUNT] = {{0}};
        int64_t offsets[2];
        job *j = make_even(400, 1200, PLAIN_RANKS, 0, 0);
        const mha_attention_outputs outputs = make_outputs(j, wanted, tensors, offsets);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            free_part(&j->parts[rank]);
            make_part(j, rank, MHA_PATH_AUTO, &outputs);
        }
        expect_parts(j, pairs ? 1 : PLAIN_RANKS, "output", i);
        for (int k = 0; k < EXTRAS_COUNT; k++) free(tensors[k].data);
        free_plain(j);
    }
}

/* Makes a job with every gradient. */
static back_job *make_back_of(int64_t T, int64_t S, int64_t later)
{
    rng r = rng_make(2, 2);
    back_job *x = calloc(1, sizeof *x);
    assert_non_null(x);
    job *j = x->j = make_even(T, S, 1, PARAMETERS, later);
    const mha_tensor *q = &j->c.q.view;
    x->whole.o = random_like(&r, 4, q->shape), x->whole.g = random_like(&r, 4, q->shape);
    x->whole.lse = random_like(&r, 3, q->shape);
    x->whole.lse_gradient = random_like(&r, 3, q->shape);
    make_weights(&r, &j->c, &x->whole);
    for (int i = 0; i < GRADS; i++) {
        const mha_tensor *input = input_of(&j->c, i);
        x->whole.grads[i] = random_like(&r, input->ndim, input->shape);
    }
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        make_back(x, rank);
        point_at_gradients(&x->parts[rank], (1 << GRADS) - 1, LOSSES - 1);
    }
    return x;
}

static back_job *make_even_back(int64_t later)
{
    return make_back_of(384, 1100, later);
}

static void free_even_back(back_job *x)
{
    for (int rank = 0; rank < PLAIN_RANKS; rank++) free_back(&x->parts[rank]);
    free_back(&x->whole);
    free_plain(x->j);
    free(x);
}

/* For every message at which one of three ranks can be lost, all ranks return. */
static void a_lost_rank_ends_the_backward(void)
{
    for (int i = 0; i < 2 * PLAIN_RANKS; i++)
        for (int64_t after = 0, failed = 1; failed > 0; after++) {
            if (!rng_takes(1000 * i + after, 25) && after % 64) continue;
            back_job *x = make_even_back(i % 2 * 50);
            thread_ranks_run(PLAIN_RANKS, run_back, x, i / 2, after);
            failed = 0;
            for (int rank = 0; rank < PLAIN_RANKS; rank++) {
                const mha_status status = x->parts[rank].status;
                assert_true(status == MHA_OK || status == MHA_ERR_RANK);
                failed += status != MHA_OK;
            }
            free_even_back(x);
        }
}

/* Allocation fails on rank 1: the call fails on all ranks, unless the memory is for a block in flight. */
static mha_status run_short_of_memory(mha_context *context, failing_alloc *memory, void *user)
{
    back_job *x = user;
    rank_part *p = &x->j->parts[1];
    mha_context *own = p->context;
    p->context = context;
    failing_from_here(memory);
    thread_ranks_run(PLAIN_RANKS, run_back, x, 1, INT64_MAX);
    p->context = own;
    const mha_status status = x->parts[1].status;
    const bool early = status == MHA_OK || !strstr(p->detail, "bytes for a block");
    for (int rank = 0; early && rank < PLAIN_RANKS; rank++)
        assert_int_equal(x->parts[rank].status, status);
    return status;
}

static void the_backward_is_short_of_memory(void)
{
    for (int later = 0; later < 100; later += 50) {
        back_job *x = make_even_back(later);
        assert_true(failing_each(run_short_of_memory, x) > 0);
        free_even_back(x);
    }
}

/* ---- errors
 * ----------------------------------------------------------------------------------- */

/* Allocation fails on rank 1: the call fails on all ranks and writes nothing. */
static mha_status run_forward_short_of_memory(mha_context *context, failing_alloc *memory,
                                              void *user)
{
    const int kind = *(const int *)user;
    const bool columns = kind == 1;
    job *j = kind == 2 ? make_even(400, 1200, PLAIN_RANKS, 0, 0) : make_plain(400, 1200);
    rank_part *p = &j->parts[1];
    if (columns) want_columns(j);
    p->context = context;
    failing_from_here(memory);
    thread_ranks_run(PLAIN_RANKS, run_rank, j, -1, 0);
    const mha_status status = p->status;
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        p = &j->parts[rank];
        assert_int_equal(p->status, status);
        assert_int_equal(is_marked(&p->o), status != MHA_OK);
        if (columns) assert_int_equal(is_marked(p->outputs.column_sums), status != MHA_OK);
    }
    free_plain(j);
    return status;
}

static void the_forward_is_short_of_memory(void)
{
    for (int kind = 0; kind < 3; kind++)
        assert_true(failing_each(run_forward_short_of_memory, &kind) > 0);
}

/* The scratch reported by plans, plus room for lists of pieces and blocks, suffices; three quarters of it do not. */
static void scratch_is_what_plans_say(void)
{
    enum { LISTS = 16384, WAYS = 3 }; /* rows stay, heads exchanged, column sums */
    for (int i = 0; i < 2 * WAYS; i++) {
        const int way = i / 2, enough = i % 2;
        job *j = way == 1 ? make_even(700, 5000, PLAIN_RANKS, 0, 0) : make_plain(700, 5000);
        failing_alloc memory[PLAIN_RANKS];
        if (way == 2) want_columns(j);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            memory[rank] = failing_alloc_make();
            expect_ok(failing_context(&memory[rank], 1 + rank % 2, MHA_ISA_AUTO,
                                      &j->parts[rank].context));
        }
        thread_ranks_run(PLAIN_RANKS, explain_rank, j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            const mha_distributed_plan *plan = &j->parts[rank].plan;
            const size_t bytes = plan->scratch_bytes;
            assert_int_equal(plan->head_parts, way == 1 ? PLAIN_RANKS : 1);
            expect_ok(mha_context_reserve(j->parts[rank].context,
                                          enough ? bytes + LISTS : bytes - bytes / 4));
            memory[rank].number = memory[rank].calls;
        }
        thread_ranks_run(PLAIN_RANKS, run_rank, j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            expect_ok(j->parts[rank].status);
            assert_int_equal(memory[rank].calls == memory[rank].number, enough);
            mha_context_destroy(j->parts[rank].context);
        }
        free_plain(j);
    }
}

/* All ranks return the same error, which names the rank and the cause, and write nothing. */
static void expect_refusal(job *j, mha_status status, const char *words)
{
    thread_rank_fn *const calls[] = {explain_rank, run_rank};
    for (int i = 0; i < 2; i++) {
        thread_ranks_run(PLAIN_RANKS, calls[i], j, -1, 0);
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            rank_part *p = &j->parts[rank];
            /* The call that explains takes no o. */
            if (i == 0 && status == MHA_ERR_OVERLAP) continue;
            assert_int_equal(p->status, status);
            if (!strstr(p->detail, words))
                fail_msg("rank %d: '%s', expected '%s'", rank, p->detail, words);
            assert_true(is_marked(&p->o));
        }
    }
    free_plain(j);
}

#define REFUSED(status, words, ...)       \
    do {                                  \
        job *j = make_plain(400, 1200);   \
        rank_part *p = &j->parts[1];      \
        (void)p;                          \
        __VA_ARGS__;                      \
        expect_refusal(j, status, words); \
    } while (0)

static void refusals_reach_every_rank(void)
{
    static mha_tensor lying;
    REFUSED(MHA_ERR_UNSUPPORTED, "rank 0: mha_attention_desc: flags", p->desc.flags = 1u << 30,
            j->parts[0].desc.flags = j->parts[2].desc.flags = 1u << 30, p = &j->parts[0]);
    REFUSED(MHA_ERR_SHAPE, "rank 1: column_sums: dim 2 is 6", want_columns(j),
            p->results[EXTRA_COLUMNS].shape[2] = 6);
    REFUSED(MHA_ERR_STRIDE, "rank 1: column_sums", want_columns(j),
            p->results[EXTRA_COLUMNS].stride[2] = 2);
    REFUSED(MHA_ERR_OVERLAP, "rank 1: column_sums overlaps v", want_columns(j),
            lying = p->results[EXTRA_COLUMNS], lying.data = p->v.data,
            p->outputs.column_sums = &lying);
    REFUSED(MHA_ERR_OVERLAP, "rank 1: o overlaps column_sums", want_columns(j),
            lying = p->results[EXTRA_COLUMNS], lying.data = p->o.data,
            p->outputs.column_sums = &lying);
    REFUSED(MHA_ERR_UNSUPPORTED, "flags 0x4", p->split.flags = 4);
    REFUSED(MHA_ERR_SHAPE, "rank 1: q: dim 2", p->q.shape[2]--);
    REFUSED(MHA_ERR_SHAPE, "rank 1: v: dim 2", p->v.shape[2]--);
    REFUSED(MHA_ERR_SHAPE, "rank 1: k: dim 3", p->k.shape[3]--);
    REFUSED(MHA_ERR_DTYPE, "rank 1: q", p->q.dtype = MHA_I32);
    REFUSED(MHA_ERR_OVERLAP, "rank 1: o overlaps k", free(p->o.data), p->o.data = p->k.data,
            memset(p->o.data, 0xEE, sizeof(float)));
    REFUSED(MHA_ERR_ARGUMENT, "belong to no rank", j->keys.pieces[2][0].end -= 5,
            j->parts[2].k.shape[2] -= 5, j->parts[2].v.shape[2] -= 5);
    REFUSED(MHA_ERR_ARGUMENT, "belong to two ranks", j->queries.pieces[1][0].begin -= 1,
            j->queries.pieces[1][0].end -= 1);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_sequence_split: query_pieces[0]",
            j->queries.pieces[1][0].end = 401);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_sequence_split: key_pieces[0]",
            j->keys.pieces[1][0].begin = -1);
    REFUSED(MHA_ERR_ARGUMENT, "rank 1: mha_sequence_split", p->split.key_piece_count = -1);
}

/* Every part of a description that only one rank has, or that differs between ranks. For large
 * inputs and inputs over queries, only their presence is compared. */
static void every_field_is_compared(void)
{
    static const int64_t one[] = {1}, two[] = {2}, queries[][3] = {{0, 5, 20}, {0, 6, 20}},
                         keys[][3] = {{0, 5, 600}, {0, 6, 600}};
    /* Add new fields below. */
    assert_int_equal(offsetof(mha_attention_desc, first_head) + sizeof(int64_t),
                     sizeof(mha_attention_desc));
#define DIFFERS(...)                                                                        \
    do {                                                                                    \
        job *j = make_plain(20, 600);                                                       \
        rank_part *p = &j->parts[1];                                                        \
        (void)p;                                                                            \
        __VA_ARGS__;                                                                        \
        expect_refusal(j, MHA_ERR_ARGUMENT, "rank 1: has another description than rank 0"); \
    } while (0)
#define GIVEN(name, ...) DIFFERS(p->desc.name = &p->q);
    MHA_ATTENTION_INPUTS(GIVEN)
#undef GIVEN
    DIFFERS(p->desc.flags = MHA_ATTENTION_STRICT);
    DIFFERS(p->desc.path = MHA_PATH_PLAIN);
    DIFFERS(p->desc.scale = 0.5f);
    DIFFERS(p->desc.q_offset = 1);
    DIFFERS(p->desc.q_offsets = one);
    DIFFERS(j->parts[0].desc.q_offsets = j->parts[2].desc.q_offsets = one, p->desc.q_offsets = two);
    DIFFERS(p->desc.key_lengths = one);
    DIFFERS(j->parts[0].desc.key_lengths = j->parts[2].desc.key_lengths = one,
            p->desc.key_lengths = two);
    DIFFERS(p->desc.key_begins = one);
    DIFFERS(j->parts[0].desc.key_begins = one, j->parts[2].desc.key_begins = one,
            p->desc.key_begins = two);
    DIFFERS(j->parts[0].desc.q_offsets = one, j->parts[2].desc.q_offsets = one,
            p->desc.key_lengths = one);
    DIFFERS(p->desc.left_keys = 1);
    DIFFERS(p->desc.right_keys = 1);
    DIFFERS(p->desc.sink_keys = 1);
    DIFFERS(p->desc.block_queries = 1);
    DIFFERS(p->desc.block_keys = 1);
    DIFFERS(p->desc.keep_callback = kinds_callback);
    DIFFERS(p->desc.softcap = 1);
    DIFFERS(p->desc.dropout = 0.5f);
    DIFFERS(p->desc.dropout_seed = UINT64_C(1) << 40);
    DIFFERS(p->desc.t5_max_distance = 1);
    DIFFERS(p->desc.compute = MHA_COMPUTE_BF16);
    DIFFERS(p->desc.first_head = 1);
    for (int field = 0; field < 3; field++)
        DIFFERS(for (int rank = 0; rank < PLAIN_RANKS; rank++) {
            mha_attention_desc *d = &j->parts[rank].desc;
            d->query_starts = queries[rank == 1 && field == 0];
            d->key_starts = keys[rank == 1 && field == 1];
            d->sequences = 2;
            if (rank == 1 && field == 2) d->query_starts = d->key_starts = NULL, d->sequences = 0;
        });
    DIFFERS(p->split.queries++);
    DIFFERS(p->split.keys++);
    DIFFERS(p->q.shape[0]++);
    DIFFERS(p->q.shape[1]++);
    DIFFERS(p->q.shape[3]++);
    DIFFERS(p->k.shape[1]++);
    DIFFERS(p->v.shape[3]++);
    DIFFERS(p->k.dtype = MHA_BF16);
    DIFFERS(p->v.dtype = MHA_BF16);
    DIFFERS(p->outputs.scores = &p->q);
    DIFFERS(p->outputs.column_sums = &p->q);
#undef DIFFERS
}

/* A rank without queries. */
static void a_rank_without_queries_refuses(void)
{
    job *j = make_even(100, 1200, PLAIN_RANKS, KIND_SINK_LOGITS, 0);
    int rank = 0;
    while (cuts_rows(&j->queries, rank) > 0) rank++;
    mha_tensor wrong = *j->parts[rank].desc.sink_logits;
    wrong.shape[0] = 1;
    j->parts[rank].split.query_piece_count = 0;
    j->parts[rank].desc.sink_logits = &wrong;
    expect_refusal(j, MHA_ERR_SHAPE, "sink_logits: dim 0 is 1, expected 3");
}

#define BACK_REFUSED_OF(made, status_, words, ...)                         \
    do {                                                                   \
        back_job *x = made;                                                \
        rank_part *p = &x->j->parts[1];                                    \
        back_part *b = &x->parts[1];                                       \
        (void)p, (void)b;                                                  \
        __VA_ARGS__;                                                       \
        thread_ranks_run(PLAIN_RANKS, run_back, x, -1, 0);                 \
        for (int rank = 0; rank < PLAIN_RANKS; rank++) {                   \
            assert_int_equal(x->parts[rank].status, status_);              \
            assert_non_null(strstr(x->j->parts[rank].detail, "rank 1: ")); \
            assert_non_null(strstr(x->j->parts[rank].detail, words));      \
        }                                                                  \
        free_even_back(x);                                                 \
    } while (0)

#define BACK_REFUSED(...) BACK_REFUSED_OF(make_even_back(50), __VA_ARGS__)

static void refusals_of_the_backward(void)
{
    static mha_tensor other;
    BACK_REFUSED(MHA_ERR_SHAPE, "lse", b->lse.shape[2]--);
    BACK_REFUSED(MHA_ERR_SHAPE, "o_gradient", b->g.shape[1]--);
    BACK_REFUSED(MHA_ERR_OVERLAP, "gradients.q overlaps", free(b->grads[GRAD_Q].data),
                 b->grads[GRAD_Q].data = NULL, b->gradients.q = &p->q);
    BACK_REFUSED(MHA_ERR_SHAPE, "gradients.bias", b->gradients.bias = &p->q);
    BACK_REFUSED(MHA_ERR_ARGUMENT, "bias: has one row for all queries", p->inputs[1].shape[2] = 1,
                 b->grads[GRAD_BIAS].shape[2] = 1);
    BACK_REFUSED(MHA_ERR_SHAPE, "average_probabilities_gradient", b->mean_gradient.shape[1]--);
    BACK_REFUSED(MHA_ERR_UNSUPPORTED, "flags 0x8", b->gradients.flags |= 8);
    BACK_REFUSED(MHA_ERR_SHAPE, "gradients.gates", b->grads[GRAD_GATES].ndim = 3);
    BACK_REFUSED(MHA_ERR_OVERLAP, "gradients.gates overlaps k", other = b->grads[GRAD_GATES],
                 other.data = p->k.data, b->gradients.gates = &other);
    BACK_REFUSED(MHA_ERR_OVERLAP, "gradients.scale overlaps gradients.gates",
                 other = b->grads[GRAD_SCALE], other.data = b->grads[GRAD_GATES].data,
                 b->gradients.scale = &other);
    BACK_REFUSED(MHA_ERR_NULL, "gradients.q", free(b->grads[GRAD_Q].data),
                 b->grads[GRAD_Q].data = NULL);
}

/* The same for gradients: each requested or given gradient, the options, the types, and the sizes
 * used by sums over ranks. */
static void every_field_of_the_backward_is_compared(void)
{
    assert_int_equal(offsetof(mha_attention_gradients, average_probabilities_gradient) +
                         sizeof(void *),
                     sizeof(mha_attention_gradients));
#define DIFFERS(...)                                           \
    BACK_REFUSED_OF(make_back_of(20, 30, 0), MHA_ERR_ARGUMENT, \
                    "has another description than rank 0", __VA_ARGS__)
    for (int i = 0; i < GRADS + 3; i++) {
        const int of_loss[] = {OF_LSE, OF_WEIGHTS, OF_MEAN};
        const unsigned wanted = ((1u << GRADS) - 1) & ~(i < GRADS ? 1u << i : 0);
        const int loss = (LOSSES - 1) & ~(i < GRADS ? 0 : of_loss[i - GRADS]);
        DIFFERS(point_at_gradients(b, wanted, loss));
    }
    DIFFERS(b->gradients.flags &= ~(uint32_t)MHA_GRADIENTS_ACCUMULATE);
    DIFFERS(b->gradients.flags &= ~(uint32_t)MHA_GRADIENTS_DROPPED_PROBABILITIES);
    DIFFERS(p->q.dtype = MHA_BF16);
    DIFFERS(b->o.dtype = MHA_BF16);
    DIFFERS(b->g.dtype = MHA_BF16);
    DIFFERS(p->inputs[1].dtype = MHA_BF16);
    for (int axis = 0; axis < 4; axis++) {
        if (axis == 2) continue; /* the axis of queries */
        DIFFERS(p->inputs[1].shape[axis] = p->inputs[1].shape[axis] == 1 ? 2 : 1);
    }
    static mha_tensor table;
#define TABLE(name) DIFFERS(table = *p->desc.name, table.shape[0] += 2, p->desc.name = &table)
    TABLE(t5_table);
    TABLE(shaw_keys);
    TABLE(shaw_values);
#undef TABLE
#undef DIFFERS
}

static void run_bare(void *user, const mha_transport *t)
{
    rank_part *p = &((job *)user)->parts[t->rank];
    p->split.transport = t;
    p->status =
        mha_distributed_forward(p->context, &p->split, NULL, &p->q, &p->k, &p->v, &p->o, NULL);
}

/* Like a call on one rank, a distributed call accepts no description and no outputs. */
static void without_a_description(void)
{
    job *j = make_plain(10, 700);
    const mha_tensor *q = &j->c.q.view;
    rng r = rng_make(3, 3);
    mha_tensor o = random_like(&r, 4, q->shape);
    expect_ok(
        mha_attention_forward(j->parts[0].context, NULL, q, &j->c.k.view, &j->c.v.view, &o, NULL));
    thread_ranks_run(PLAIN_RANKS, run_bare, j, -1, 0);
    for (int rank = 0; rank < PLAIN_RANKS; rank++) {
        expect_ok(j->parts[rank].status);
        assert_true(cuts_same(&j->queries, rank, &o, &j->parts[rank].o, 2));
    }
    free(o.data);
    free_plain(j);
}

/* At any message where a rank is lost, the others return, and a failing rank has written nothing. */
static void a_lost_rank_ends_the_call(void)
{
    for (int lost = 0; lost < PLAIN_RANKS; lost++)
        for (int64_t after = 0, failed = 1; failed > 0; after += rng_long_run() ? 1 : 3) {
            job *j = make_plain(400, 5000);
            thread_ranks_run(PLAIN_RANKS, run_rank, j, lost, after);
            failed = 0;
            for (int rank = 0; rank < PLAIN_RANKS; rank++) {
                const rank_part *p = &j->parts[rank];
                assert_true(p->status == MHA_OK || p->status == MHA_ERR_RANK);
                failed += p->status != MHA_OK;
                if (p->status != MHA_OK) assert_true(is_marked(&p->o));
            }
            free_plain(j);
        }
}

/* The same while heads are exchanged, where a failing rank may have written some rows. */
static void a_lost_rank_ends_an_exchange(void)
{
    for (int lost = 0; lost < PLAIN_RANKS; lost++)
        for (int64_t after = 0, failed = 1; failed > 0; after++) {
            job *j = make_even(400, 700, PLAIN_RANKS, 0, 0);
            thread_ranks_run(PLAIN_RANKS, run_rank, j, lost, after);
            failed = 0;
            for (int rank = 0; rank < PLAIN_RANKS; rank++) {
                const mha_status status = j->parts[rank].status;
                assert_true(status == MHA_OK || status == MHA_ERR_RANK);
                failed += status != MHA_OK;
            }
            free_plain(j);
        }
}

/* The same between passes. */
static void a_lost_rank_ends_column_sums(void)
{
    for (int lost = 0; lost < PLAIN_RANKS; lost++)
        for (int64_t after = 0, failed = 1; failed > 0; after++) {
            job *j = make_even(400, 1200, 2, 0, 0);
            want_columns(j);
            thread_ranks_run(PLAIN_RANKS, run_rank, j, lost, after);
            failed = 0;
            for (int rank = 0; rank < PLAIN_RANKS; rank++) {
                const rank_part *p = &j->parts[rank];
                assert_true(p->status == MHA_OK || p->status == MHA_ERR_RANK);
                failed += p->status != MHA_OK;
            }
            free_plain(j);
        }
}

/* Even splits: whole blocks if there are enough, no overlap, no gaps. */
static void pieces_cover(void)
{
    for (int64_t length = 0; length < 20000; length += 1 + length / 7)
        for (int32_t size = 1; size < 9; size++)
            for (int64_t folds = 0; folds < 4; folds++) {
                uint8_t seen[20000] = {0};
                for (int32_t rank = 0; rank < size; rank++) {
                    mha_piece pieces[6];
                    int64_t count;
                    expect_ok(mha_split_pieces(length, rank, size, folds, pieces, &count));
                    for (int64_t i = 0; i < count; i++)
                        for (int64_t t = pieces[i].begin; t < pieces[i].end; t++) seen[t]++;
                    if (pieces[0].begin < length)
                        assert_int_equal(pieces[0].begin % MHA_SPLIT_ROWS, 0);
                }
                for (int64_t t = 0; t < length; t++) assert_int_equal(seen[t], 1);
            }
    mha_piece pieces[2];
    int64_t count;
    assert_int_equal(mha_split_pieces(-1, 0, 1, 0, pieces, &count), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_split_pieces(1, 1, 1, 0, pieces, &count), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_split_pieces(1, 0, 1, 0, NULL, &count), MHA_ERR_NULL);
    assert_int_equal(mha_split_pieces(1, 0, 1, -1, pieces, &count), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_split_pieces(1, 0, 1, INT64_MAX, pieces, &count), MHA_ERR_ARGUMENT);
}

RUN_TESTS_BETWEEN(NULL, rank_contexts_destroy, TEST(the_bits_of_one_call),
                  TEST(heads_are_exchanged), TEST(plans_by_hand), TEST(rows_of_pairs_stay),
                  TEST(all_outputs), TEST(column_sums), TEST(gradients_have_the_bits_of_one_call),
                  TEST(without_a_description), TEST(refusals_reach_every_rank),
                  TEST(every_field_is_compared), TEST(scratch_is_what_plans_say),
                  TEST(a_rank_without_queries_refuses), TEST(a_lost_rank_ends_the_call),
                  TEST(a_lost_rank_ends_an_exchange), TEST(a_lost_rank_ends_column_sums),
                  TEST(the_forward_is_short_of_memory), TEST(a_lost_rank_ends_the_backward),
                  TEST(the_backward_is_short_of_memory), TEST(refusals_of_the_backward),
                  TEST(every_field_of_the_backward_is_compared), TEST(pieces_cover))
