/* Misuse of measures of heads: each error has a message and leaves the sums unchanged; failures of
 * every allocation; interrupted texts. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/one_context.h"
#include "support/suite.h"

#include <multihead/heads.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"subject"};

static mha_head_measures_desc desc_of(const int64_t *heads, int64_t layers)
{
    return (mha_head_measures_desc){.struct_size = sizeof(mha_head_measures_desc),
                                    .layers = layers,
                                    .heads = heads,
                                    .names = names,
                                    .relations = 1};
}

static mha_heads_text text_of(int64_t tokens)
{
    return (mha_heads_text){.struct_size = sizeof(mha_heads_text),
                            .flags = MHA_HEADS_CAUSAL,
                            .queries = tokens,
                            .keys = tokens};
}

static void test_create(void)
{
    const int64_t heads[] = {2, 3}, negative[] = {2, -1};
    const char *const no_names[] = {NULL};
    mha_head_measures *m = NULL;
    mha_head_measures_desc d = desc_of(heads, 2);
#define REFUSE(status, part, ...) \
    expect_spoiled(d, mha_head_measures_create(context, &d, &m), status, part, __VA_ARGS__)
    expect_error(mha_head_measures_create(NULL, &d, &m), MHA_ERR_NULL, "context");
    expect_error(mha_head_measures_create(context, NULL, &m), MHA_ERR_NULL, "desc");
    expect_error(mha_head_measures_create(context, &d, NULL), MHA_ERR_NULL, "measures");
    REFUSE(MHA_ERR_ARGUMENT, "struct_size is 0", d.struct_size = 0);
    REFUSE(MHA_ERR_ARGUMENT, "layers is 0", d.layers = 0);
    REFUSE(MHA_ERR_NULL, "heads is NULL", d.heads = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "heads[1] is -1", d.heads = negative);
    REFUSE(MHA_ERR_UNSUPPORTED, "flags 0x1", d.flags = 1);
    REFUSE(MHA_ERR_ARGUMENT, "farthest_offset is 65", d.farthest_offset = 65);
    REFUSE(MHA_ERR_ARGUMENT, "near_tokens is -1", d.near_tokens = -1);
    REFUSE(MHA_ERR_ARGUMENT, "rare_rank is -2", d.rare_rank = -2);
    REFUSE(MHA_ERR_ARGUMENT, "1 relations without names", d.names = NULL);
    REFUSE(MHA_ERR_NULL, "names[0] is NULL", d.names = no_names);
#undef REFUSE
    assert_null(m);
    mha_head_measures_destroy(NULL);
}

static mha_head_measures *make(mha_context *from)
{
    static const int64_t heads[] = {1, 2};
    mha_head_measures *m = NULL;
    const mha_head_measures_desc d = desc_of(heads, 2);
    expect_ok(mha_head_measures_create(from, &d, &m));
    return m;
}

static void test_texts(void)
{
    const int64_t words[] = {0, 2, 2, 3}, back[] = {0, 1, 0, 1};
    const mha_heads_link far[] = {{0, 4, 0}}, other[] = {{0, 1, 1}};
    mha_head_measures *m = make(context);
    mha_heads_text x = text_of(4);
#define REFUSE(status, part, ...) \
    expect_spoiled(x, mha_head_measures_begin(m, &x), status, part, __VA_ARGS__)
    expect_error(mha_head_measures_begin(NULL, &x), MHA_ERR_NULL, "measures");
    expect_error(mha_head_measures_begin(m, NULL), MHA_ERR_NULL, "text");
    expect_error(mha_head_measures_end(m), MHA_ERR_ARGUMENT, "no text is open");
    REFUSE(MHA_ERR_ARGUMENT, "struct_size is 0", x.struct_size = 0);
    REFUSE(MHA_ERR_ARGUMENT, "-1 queries and -1 keys", x.queries = x.keys = -1);
    REFUSE(MHA_ERR_SIZE, "9223372036854775807 queries", x.queries = x.keys = INT64_MAX);
    REFUSE(MHA_ERR_UNSUPPORTED, "flags 0x100000", x.flags = 1u << 20);
    REFUSE(MHA_ERR_ARGUMENT, "has no masks", x.flags |= MHA_HEADS_CROSS);
    REFUSE(MHA_ERR_ARGUMENT, "MHA_HEADS_WINDOW", x.left_keys = 2);
    REFUSE(MHA_ERR_ARGUMENT, "left_keys -2", x.flags |= MHA_HEADS_WINDOW, x.left_keys = -2);
    REFUSE(MHA_ERR_ARGUMENT, "words[1] is 2", x.words = words);
    REFUSE(MHA_ERR_ARGUMENT, "words[2] is 0", x.words = back);
    REFUSE(MHA_ERR_NULL, "links is NULL", x.links_count = 1);
    REFUSE(MHA_ERR_ARGUMENT, "words 0 and 4", x.links_count = 1, x.links = far);
    REFUSE(MHA_ERR_ARGUMENT, "relation 1, expected 0..0", x.links_count = 1, x.links = other);
#undef REFUSE
    expect_ok(mha_head_measures_begin(m, &x));
    expect_error(mha_head_measures_begin(m, &x), MHA_ERR_ARGUMENT, "a text is open");
    mha_head_measures_destroy(m); /* while a text is open */
}

static void test_merge(void)
{
    const int64_t heads[] = {1, 2, 2};
    const char *const others[] = {"object"};
    mha_head_measures *m = make(context), *from = NULL;
    expect_error(mha_head_measures_merge(NULL, m), MHA_ERR_NULL, "measures");
    expect_error(mha_head_measures_merge(m, NULL), MHA_ERR_NULL, "from");
    expect_error(mha_head_measures_merge(m, m), MHA_ERR_ARGUMENT, "same object");
    for (int what = 0; what < 7; what++) {
        mha_head_measures_desc d = desc_of(heads, 2);
        if (what == 0) d.heads = heads + 1;
        if (what == 1) d.farthest_offset = 3;
        if (what == 2) d.near_tokens = 3;
        if (what == 3) d.rare_rank = 3;
        if (what == 4) d.relations = 0;
        if (what == 5) d.names = others;
        if (what == 6) d.layers = 3;
        expect_ok(mha_head_measures_create(context, &d, &from));
        expect_error(mha_head_measures_merge(m, from), MHA_ERR_ARGUMENT, "different");
        mha_head_measures_destroy(from);
    }
    from = make(context);
    expect_ok(mha_head_measures_merge(m, from));
    const mha_heads_text x = text_of(4);
    expect_ok(mha_head_measures_begin(from, &x));
    expect_error(mha_head_measures_merge(m, from), MHA_ERR_ARGUMENT, "a text is open");
    expect_error(mha_head_measures_merge(from, m), MHA_ERR_ARGUMENT, "a text is open");
    mha_head_measures_destroy(from);
    mha_head_measures_destroy(m);
}

/* ---- rows
 * ---------------------------------------------------------------------------------------- */

static float map[9] = {1, 0, 0, .5f, .5f, 0, .25f, .25f, .5f};

static mha_tensor rows(int64_t heads, int64_t count)
{
    return mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){heads, count, 3});
}

static void refuse_value(mha_head_measures *m, int at, float value)
{
    const float before = map[at];
    const mha_tensor p = rows(1, 3);
    map[at] = value;
    expect_error(mha_head_measures_rows(m, 0, 0, &p), MHA_ERR_NUMERIC, "");
    map[at] = before;
}

static void test_rows(void)
{
    mha_head_measures *m = make(context);
    mha_heads_text x = text_of(3);
    mha_tensor p = rows(1, 3), two = rows(1, 2), wrong = rows(1, 3);
    expect_error(mha_head_measures_rows(m, 0, 0, &p), MHA_ERR_ARGUMENT, "no text is open");
    expect_ok(mha_head_measures_begin(m, &x));
    expect_error(mha_head_measures_rows(m, 2, 0, &p), MHA_ERR_ARGUMENT, "layer 2");
    expect_error(mha_head_measures_rows(m, 0, 0, NULL), MHA_ERR_NULL, "p");
    expect_error(mha_head_measures_rows(m, 0, 1, &two), MHA_ERR_ARGUMENT, "");
    expect_error(mha_head_measures_rows(m, 1, 0, &p), MHA_ERR_SHAPE, "dim 0 is 1, expected 2");
    wrong.dtype = MHA_I32;
    expect_error(mha_head_measures_rows(m, 0, 0, &wrong), MHA_ERR_DTYPE, "i32");
    refuse_value(m, 4, NAN);
    refuse_value(m, 4, -0.5f);
    refuse_value(m, 4, 3);     /* not a probability */
    refuse_value(m, 5, 0.25f); /* a later key */
    mha_attention_desc window = {.struct_size = 4};
    expect_error(mha_head_measures_window(NULL, 0, &window), MHA_ERR_NULL, "measures");
    expect_error(mha_head_measures_window(m, 3, &window), MHA_ERR_ARGUMENT, "layer 3");
    expect_error(mha_head_measures_window(m, 0, &window), MHA_ERR_ARGUMENT, "struct_size");
    window = (mha_attention_desc){
        .struct_size = sizeof window, .flags = MHA_ATTENTION_WINDOW, .left_keys = 1};
    expect_ok(mha_head_measures_window(m, 0, &window)); /* hides key 0 from row 2 */
    expect_error(mha_head_measures_rows(m, 0, 0, &p), MHA_ERR_NUMERIC, "hides this key");
    expect_ok(mha_head_measures_window(m, 0, NULL));
    expect_ok(mha_head_measures_rows(m, 0, 0, &two));
    expect_error(mha_head_measures_rows(m, 1, 0, &p), MHA_ERR_ARGUMENT, "before another");
    expect_error(mha_head_measures_rows(m, 0, 1, &two), MHA_ERR_ARGUMENT, "");
    expect_error(mha_head_measures_rows(m, 0, 2, &two), MHA_ERR_ARGUMENT, "");
    expect_error(mha_head_measures_inputs(m, 0, &two), MHA_ERR_ARGUMENT, "layer 0 has begun");
    expect_error(mha_head_measures_window(m, 0, NULL), MHA_ERR_ARGUMENT, "layer 0 has begun");
    expect_error(mha_head_measures_end(m), MHA_ERR_ARGUMENT, "2 of 3 rows");
    assert_int_equal(mha_head_measures_score(m, 0, 0, MHA_MEASURE_SELF).rows, 0);

    /* the text is closed without effect */
    expect_ok(mha_head_measures_begin(m, &x));
    expect_ok(mha_head_measures_rows(m, 0, 0, &p));
    expect_error(mha_head_measures_rows(m, 0, 0, &p), MHA_ERR_ARGUMENT, "has all its rows");
    expect_ok(mha_head_measures_end(m));
    const mha_head_score s = mha_head_measures_score(m, 0, 0, MHA_MEASURE_SELF);
    assert_int_equal(s.rows, 2);
    assert_true(s.value == 0.5);
    assert_int_equal(mha_head_measures_score(m, 1, 0, MHA_MEASURE_SELF).rows, 0);
    mha_head_measures_destroy(m);
}

static void test_out_of_range(void)
{
    mha_head_measures *m = make(context);
    assert_int_equal(mha_head_measures_score(m, 2, 0, MHA_MEASURE_SELF).rows, 0);
    assert_int_equal(mha_head_measures_score(m, 0, 1, MHA_MEASURE_SELF).rows, 0);
    assert_int_equal(mha_head_measures_score(m, 0, 0, MHA_MEASURES).rows, 0);
    assert_int_equal(mha_head_measures_offset(m, 0, 0, 9).mass.rows, 0);
    assert_int_equal(mha_head_measures_relation(m, 0, 0, 1, 0).accuracy.rows, 0);
    assert_int_equal(mha_head_measures_relation(m, 0, 0, 0, 2).accuracy.rows, 0);
    assert_int_equal(mha_head_measures_details(m, -1, 0).columns, 0);
    assert_int_equal(mha_head_measures_details(m, 0, 0).column_text, -1);
    assert_int_equal(mha_head_measures_roles(m, 9, 9, NULL, 0), 0);
    assert_string_equal(mha_measure_describe(MHA_MEASURES).name, "?");
    assert_string_equal(mha_role_describe(MHA_ROLES).name, "?");
    mha_head_measures_destroy(m);
}

/* ---- memory
 * -------------------------------------------------------------------------------------- */

/* A complete use of the object. */
static mha_status live(mha_context *from, failing_alloc *memory, void *and_later)
{
    static const int64_t heads[] = {1, 2}, ids[] = {5, 5, 6};
    const mha_heads_link links[] = {{2, 0, 0}};
    const mha_head_measures_desc d = desc_of(heads, 2);
    float numbers[18];
    const mha_tensor p = rows(1, 3);
    const mha_tensor x = mha_tensor_contiguous(numbers, MHA_F32, 2, (int64_t[]){3, 2});
    mha_heads_text text = text_of(3);
    mha_head_measures *m = NULL;
    for (int i = 0; i < 18; i++) numbers[i] = (float)i;
    text.ids = ids, text.links = links, text.links_count = 1;
    memory->fail_after = *(bool *)and_later;
    failing_from_here(memory);
    mha_status status = mha_head_measures_create(from, &d, &m);
    if (status == MHA_OK) status = mha_head_measures_begin(m, &text);
    if (status == MHA_OK) status = mha_head_measures_inputs(m, 0, &x);
    if (status == MHA_OK) status = mha_head_measures_rows(m, 0, 0, &p);
    if (status == MHA_OK) status = mha_head_measures_end(m);
    if (status == MHA_OK)
        assert_int_equal(mha_head_measures_relation(m, 0, 0, 0, 0).accuracy.rows, 1);
    mha_head_measures_destroy(m);
    if (status != MHA_OK) expect_error(status, MHA_ERR_NOMEM, "");
    return status;
}

static void failed_allocations_are_reported(void)
{
    for (int i = 0; i < 2; i++) assert_true(failing_each(live, &(bool){i == 1}) > 5);
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(test_create), TEST(test_texts), TEST(test_merge),
                  TEST(test_rows), TEST(test_out_of_range), TEST(failed_allocations_are_reported))
