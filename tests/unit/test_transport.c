/* Messages to and from all ranks (threads here): every root, sizes that are not powers of two,
 * errors that reach all ranks, and lost ranks. */
#include "support/expect.h"
#include "support/suite.h"
#include "support/thread_ranks.h"

#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

enum { BYTES = 100 };

/* Threads other than the test's must not end the test. They count errors. */
typedef struct seen {
    int root, wrong[MOST_THREAD_RANKS];
    mha_status status[MOST_THREAD_RANKS], given[MOST_THREAD_RANKS];
    char detail[MOST_THREAD_RANKS][512];
} seen;

static void note(seen *s, const mha_transport *t, mha_status status)
{
    s->status[t->rank] = status;
    snprintf(s->detail[t->rank], sizeof s->detail[0], "%s", mha_error_detail());
}

static void broadcast(void *user, const mha_transport *t)
{
    seen *s = user;
    unsigned char bytes[BYTES], all[MOST_THREAD_RANKS][BYTES];
    memset(bytes, t->rank == s->root ? 7 : 0, sizeof bytes);
    note(s, t, mha_transport_broadcast(t, s->root, bytes, sizeof bytes));
    for (int i = 0; i < BYTES; i++) s->wrong[t->rank] += bytes[i] != 7;
    memset(bytes, t->rank, sizeof bytes);
    if (s->status[t->rank] == MHA_OK)
        note(
            s, t,
            mha_transport_gather(t, s->root, bytes, sizeof bytes, t->rank == s->root ? all : NULL));
    for (int r = 0; t->rank == s->root && r < t->size; r++)
        for (int i = 0; i < BYTES; i++) s->wrong[t->rank] += all[r][i] != r;
}

static void every_root_reaches_all(void)
{
    for (int size = 1; size <= 9; size++)
        for (int root = 0; root < size; root++) {
            seen s = {.root = root};
            const thread_ranks_counts counts = thread_ranks_run(size, broadcast, &s, -1, 0);
            assert_int_equal(counts.messages, 2 * (size - 1));
            for (int r = 0; r < size; r++) {
                expect_ok(s.status[r]);
                assert_int_equal(s.wrong[r], 0);
            }
        }
}

static void agree(void *user, const mha_transport *t)
{
    seen *s = user;
    mha_status own = s->given[t->rank];
    if (own != MHA_OK) own = mha_fail(own, "the shape of rank %d is wrong", (int)t->rank);
    note(s, t, mha_transport_agree(t, own));
}

static void the_lowest_refusal_is_everybodys(void)
{
    for (int size = 1; size <= 7; size++)
        for (int refusing = 0; refusing < 1 << size; refusing++) {
            seen s = {0};
            int lowest = -1;
            for (int r = size - 1; r >= 0; r--)
                if (refusing >> r & 1) s.given[lowest = r] = r % 2 ? MHA_ERR_NOMEM : MHA_ERR_SHAPE;
            thread_ranks_run(size, agree, &s, -1, 0);
            for (int r = 0; r < size; r++) {
                char expected[64];
                assert_int_equal(s.status[r], lowest < 0 ? MHA_OK : s.given[lowest]);
                if (lowest < 0) continue;
                snprintf(expected, sizeof expected, "the shape of rank %d is wrong", lowest);
                assert_non_null(strstr(s.detail[r], expected));
            }
        }
}

static void compare(void *user, const mha_transport *t)
{
    seen *s = user;
    const int bytes[2] = {4, t->rank == s->root};
    note(s, t, mha_transport_same(t, "shape", bytes, sizeof bytes, MHA_OK));
}

static void a_difference_is_named(void)
{
    for (int size = 2; size <= 6; size++)
        for (int other = 0; other <= size; other++) {
            seen s = {.root = other < size ? other : -1};
            char expected[64];
            thread_ranks_run(size, compare, &s, -1, 0);
            snprintf(expected, sizeof expected, "rank %d: has another shape than rank 0",
                     other == 0 ? 1 : other);
            for (int r = 0; r < size; r++) {
                assert_int_equal(s.status[r], other < size ? MHA_ERR_ARGUMENT : MHA_OK);
                if (other < size)
                    assert_string_equal(strstr(s.detail[r], "rank"), strstr(s.detail[r], expected));
            }
        }
}

/* Every rank that needs the lost rank receives an error, and no rank hangs. */
static void a_lost_rank_is_learnt(void)
{
    for (int size = 2; size <= 6; size++)
        for (int lost = 0; lost < size; lost++)
            for (int64_t after = 0; after < 4; after++) {
                seen s = {0};
                int failed = 0;
                thread_ranks_run(size, agree, &s, lost, after);
                for (int r = 0; r < size; r++) {
                    assert_true(s.status[r] == MHA_OK || s.status[r] == MHA_ERR_RANK);
                    failed += s.status[r] != MHA_OK;
                }
                if (after == 0) assert_true(failed > 0);
            }
}

/* After a lost rank, a second agreement would hide its number. */
static void who_is_lost_stays_known(void)
{
    for (int size = 1; size <= 5; size++) {
        seen s = {0};
        for (int r = 0; r < size; r++) s.given[r] = MHA_ERR_RANK;
        assert_int_equal(thread_ranks_run(size, agree, &s, -1, 0).messages, 0);
        for (int r = 0; r < size; r++) {
            char expected[64];
            snprintf(expected, sizeof expected, "the shape of rank %d is wrong", r);
            assert_int_equal(s.status[r], MHA_ERR_RANK);
            assert_string_equal(s.detail[r], expected);
        }
    }
}

static void misuse(void)
{
    mha_transport t = {.struct_size = sizeof t, .size = 1};
    char byte = 0;
    assert_int_equal(mha_transport_broadcast(NULL, 0, &byte, 1), MHA_ERR_NULL);
    assert_int_equal(mha_transport_broadcast(&t, 1, &byte, 1), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_transport_broadcast(&t, 0, NULL, 1), MHA_ERR_NULL);
    assert_int_equal(mha_transport_gather(&t, 0, &byte, 1, NULL), MHA_ERR_NULL);
    expect_ok(mha_transport_broadcast(&t, 0, &byte, 1));
    expect_ok(mha_transport_agree(&t, MHA_OK));
    t.rank = 1;
    assert_int_equal(mha_transport_agree(&t, MHA_OK), MHA_ERR_ARGUMENT);
    t = (mha_transport){.struct_size = sizeof t, .size = 2};
    assert_int_equal(mha_transport_agree(&t, MHA_OK), MHA_ERR_NULL);
    t.struct_size = 4;
    assert_int_equal(mha_transport_agree(&t, MHA_OK), MHA_ERR_ARGUMENT);
}

RUN_TESTS(TEST(every_root_reaches_all), TEST(the_lowest_refusal_is_everybodys),
          TEST(a_difference_is_named), TEST(a_lost_rank_is_learnt), TEST(who_is_lost_stays_known),
          TEST(misuse))
