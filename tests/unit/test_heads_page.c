/* The page about many heads: its bytes, escaping of strings, and errors. */
#include "support/expect.h"
#include "support/suite.h"
#include "unit/html_page.h"

#include <multihead/render_heads.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[] = {"The", " cat", "</script><script>alert(1)</script>",
                                    "\xFF\xE2"};
static const double numbers[] = {0.5, 0.25, 1e-9, NAN};
static const double positions[] = {0, 1, 2.5};

typedef struct example {
    mha_heads_page page;
    mha_heads_column columns[2];
    mha_heads_card heads[3];
    mha_heads_value values[6];
    mha_heads_role role;
    mha_heads_place place;
    mha_heads_list list;
    mha_heads_arrow arrow;
    mha_heads_line line;
    mha_fact fact;
} example;

static void make(example *e)
{
    *e = (example){.role = {"induction", "0.90, chance 0.03 <b>"},
                   .place = {.column = 1,
                             .value = 0.75,
                             .where = "book.txt, token 3",
                             .tokens = words,
                             .token_count = 4,
                             .query = 3,
                             .key = 0},
                   .list = {"Reads", "times chance", words, numbers, 4},
                   .arrow = {"K", 0, 0, 0.2, 0.04},
                   .line = {"Entropy", "nats", positions, positions, 3},
                   .fact = {"model", "tiny & small"}};
    e->columns[0] = (mha_heads_column){
        .name = "previous", .text = "one \"before\"", .share = true, .luck = 0.2};
    e->columns[1] = (mha_heads_column){.name = "entropy", .unit = "nats", .luck = NAN};
    for (int h = 0; h < 3; h++) {
        e->heads[h] = (mha_heads_card){.layer = h / 2, .head = h % 2};
        for (int c = 0; c < 2; c++) {
            mha_heads_value *v = &e->values[2 * h + c];
            *v = (mha_heads_value){.value = 0.1 * (2 * h + c),
                                   .chance = 0.05,
                                   .low = NAN,
                                   .high = NAN,
                                   .rows = h < 2 ? 12 : 0};
            for (int i = 0; i < 11; i++) v->deciles[i] = c ? NAN : 0.1 * i;
        }
    }
    e->heads[0].roles = &e->role, e->heads[0].role_count = 1;
    e->heads[0].places = &e->place, e->heads[0].place_count = 1;
    e->heads[0].lists = &e->list, e->heads[0].list_count = 1;
    e->heads[0].lines = &e->line, e->heads[0].line_count = 1;
    e->heads[1].arrows = &e->arrow, e->heads[1].arrow_count = 1;
    e->page = (mha_heads_page){.struct_size = sizeof e->page,
                               .title = "Heads of </title>",
                               .producer = "multihead test",
                               .facts = &e->fact,
                               .fact_count = 1,
                               .columns = e->columns,
                               .column_count = 2,
                               .heads = e->heads,
                               .head_count = 3,
                               .values = e->values,
                               .x = 0,
                               .y = 1,
                               .first_head = 0};
}

static mha_buffer render(const mha_heads_page *page)
{
    mha_buffer bytes = {0};
    const mha_sink sink = mha_buffer_sink(&bytes);
    expect_ok(mha_render_heads_page(page, &sink));
    return bytes;
}

static void test_bytes(void)
{
    static const char *const parts[] = {"<title>Heads of &lt;/title&gt;</title>",
                                        "<dd><bdi>tiny &amp; small",
                                        "\"name\":\"previous\"",
                                        "\"unit\":\"nats\"",
                                        "\"luck\":0.2",
                                        "\"luck\":null",
                                        "[0,0.05,null,null,12,[0,0.1,",
                                        "[0.1,0.05,null,null,12]",
                                        "null]}",
                                        "\"query\":3,\"key\":0",
                                        "\\u003c/script\\u003e",
                                        "\"kind\":\"K\"",
                                        "\"x\":[0,1,2.5]",
                                        "\"values\":[0.5,0.25,1e-09,null]",
                                        "L1H0</td><td></td><td></td>",
                                        "multihead test"};
    example e;
    make(&e);
    mha_buffer page = render(&e.page), again = render(&e.page);
    html_check_page(&page);
    assert_int_equal(page.size, again.size);
    assert_memory_equal(page.data, again.data, page.size);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(page.data, parts[i])) fail_msg("the page lacks %s", parts[i]);
    assert_null(strstr(page.data, "alert(1)</script>"));
    mha_buffer_free(&page);
    mha_buffer_free(&again);
}

static void test_refusals(void)
{
    example e;
    mha_buffer bytes = {0};
    const mha_sink sink = mha_buffer_sink(&bytes);
    make(&e);
#define RENDER mha_render_heads_page(&e.page, &sink)
    expect_error(mha_render_heads_page(NULL, &sink), MHA_ERR_NULL, "page");
    expect_error(mha_render_heads_page(&e.page, NULL), MHA_ERR_NULL, "sink");
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "struct_size", e.page.struct_size = 8);
    expect_spoiled(e, RENDER, MHA_ERR_UNSUPPORTED, "this library's", e.page.struct_size++);
    expect_spoiled(e, RENDER, MHA_ERR_UNSUPPORTED, "reserved 1", e.page.reserved = 1);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "facts is NULL", e.page.facts = NULL);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "columns is NULL", e.page.columns = NULL);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "values is NULL", e.page.values = NULL);
    expect_spoiled(e, RENDER, MHA_ERR_SIZE, "257 columns", e.page.column_count = 257);
    expect_spoiled(e, RENDER, MHA_ERR_SIZE, "100001 heads", e.page.head_count = 100001);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "out of range", e.page.head_count = 0);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "out of range", e.page.x = 2);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "out of range", e.page.first_head = 3);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "negative", e.page.fact_count = -1);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "has no name", e.columns[1].name = "");
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "'previous' occurs twice",
                   e.columns[1].name = "previous");
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "L0H1 occurs twice", e.heads[2].layer = 0,
                   e.heads[2].head = 1);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "is not a head", e.heads[2].head = -1);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "roles is NULL", e.heads[0].roles = NULL);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "tokens of a place", e.place.tokens = NULL);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "query 4", e.place.query = 4);
    expect_spoiled(e, RENDER, MHA_ERR_ARGUMENT, "column 2", e.place.column = 2);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "values of a list", e.list.values = NULL);
    expect_spoiled(e, RENDER, MHA_ERR_NULL, "y of a line", e.line.y = NULL);
    assert_int_equal(bytes.size, 0);
}

static mha_status refuse(void *user, const void *bytes, size_t count)
{
    (void)user, (void)bytes, (void)count;
    return MHA_ERR_CALLBACK;
}

static void test_a_sink_that_refuses(void)
{
    example e;
    const mha_sink sink = {refuse, NULL};
    make(&e);
    assert_int_equal(mha_render_heads_page(&e.page, &sink), MHA_ERR_CALLBACK);
}

RUN_TESTS(TEST(test_bytes), TEST(test_refusals), TEST(test_a_sink_that_refuses))
