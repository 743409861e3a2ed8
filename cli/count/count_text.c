/* The counts as tables, for people. */
#include "common/words.h"
#include "count/count.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Lines ----------------------------------------------------------------------------------- */

static void print_heading(const char *title, const count_report *r)
{
    char layers[64];
    snprintf(layers, sizeof layers, "%s layers", words_count(r->config.shape.layers).text);
    cli_print("\n%-34s %22s", title, "one layer");
    if (r->config.shape.layers > 1) cli_print(" %24s", layers);
    cli_print("\n");
}

/* Print a count of one layer and, if there are several, of all layers. */
static void print_count(const count_report *r, const char *name, int64_t one)
{
    int64_t layers = r->config.shape.layers, all = 0;
    cli_print("  %-32s %22s", name, words_count(one).text);
    if (layers > 1 && !__builtin_mul_overflow(one, layers, &all))
        cli_print(" %24s", words_count(all).text);
    cli_print("\n");
}

static void print_matrix(const count_report *r, const char *name, int64_t rows, int64_t cols)
{
    char label[96];
    snprintf(label, sizeof label, "%s  [%" PRId64 ", %" PRId64 "]", name, rows, cols);
    print_count(r, label, rows * cols);
}

/* Bytes of one layer and of `layers` of them. */
static void print_bytes(const count_report *r, const char *name, int64_t one, int64_t all,
                        int64_t layers)
{
    cli_print("  %-32s %22s", name, words_bytes((double)one).text);
    if (r->config.shape.layers > 1) {
        char label[64] = "";
        if (layers != r->config.shape.layers)
            snprintf(label, sizeof label, "  (%" PRId64 " layers keep one)", layers);
        cli_print(" %24s%s", words_bytes((double)all).text, label);
    }
    cli_print("\n");
}

/* ---- Sections -------------------------------------------------------------------------------- */

static void print_head(const count_report *r)
{
    const counts_shape *s = &r->config.shape;
    const char *kind = s->kv_heads == s->heads ? "multi-head"
                       : s->kv_heads == 1      ? "multi-query"
                                               : "grouped-query";
    cli_print("%s: %s attention, %s layer%s\n", r->config.name, kind, words_count(s->layers).text,
              words_s(s->layers));
    cli_print("  width %s, %s query head%s of %s, %s key/value head%s, %s, %s\n",
              words_count(s->embed).text, words_count(s->heads).text, words_s(s->heads),
              words_count(s->head_dim).text, words_count(s->kv_heads).text, words_s(s->kv_heads),
              s->qkv_bias && s->out_bias ? "biases"
              : s->qkv_bias              ? "biases on q, k, v"
                                         : "no biases",
              r->config.causal ? "causal" : "every token sees every other");
    if (s->left >= 0 && s->right > 0)
        cli_print("  window: %s keys before and %s after a token's own\n",
                  words_count(s->left).text, words_count(s->right).text);
    else if (s->left >= 0)
        cli_print("  window: a token sees %s keys, including its own\n",
                  words_count(s->left + 1).text);
    cli_print("  counted for %s sequence%s of %s tokens; matrix and cache in %s, %" PRId64
              " byte%s per element\n",
              words_count(s->batch).text, words_s(s->batch), words_count(s->length).text, r->dtype,
              s->element_bytes, words_s(s->element_bytes));
    if (r->config.source) words_print("  sizes: ", r->config.source);
    if (r->config.note) words_print("  note: ", r->config.note);
}

static void print_parameters(const count_report *r)
{
    const counts_shape *s = &r->config.shape;
    int64_t width = s->heads * s->head_dim, shared = s->kv_heads * s->head_dim;
    print_heading("Parameters", r);
    print_matrix(r, "W_q", width, s->embed);
    print_matrix(r, "W_k", shared, s->embed);
    print_matrix(r, "W_v", shared, s->embed);
    print_matrix(r, "W_o", s->embed, width);
    print_count(r, "biases", r->counts.parameters.biases);
    print_count(r, "together", r->counts.parameters.all);
    if (r->config.published > 0)
        cli_print("  that is %.3g%% of the model's %s parameters; most others are feed-forward\n",
                  100 * (double)r->counts.all_parameters / r->config.published,
                  words_rough(r->config.published).text);
}

static void print_flops(const count_report *r)
{
    const counts *c = &r->counts;
    print_heading("Operations (multiply, add: 2)", r);
    print_count(r, "q, k, v = x W^T, W of each", c->flops.q + c->flops.k + c->flops.v);
    print_count(r, "scores = q k^T", c->flops.scores);
    print_count(r, "softmax, 5 per visible pair", c->flops.softmax);
    print_count(r, "weighted sum = p v", c->flops.sum);
    print_count(r, "out = heads W_o^T", c->flops.o);
    print_count(r, "together", c->flops.all);
    cli_print("  visible: %s of %s query-key pairs per head, %.3g%%\n",
              words_count(c->visible_pairs).text, words_count(c->pairs).text,
              100 * (double)c->visible_pairs / (double)c->pairs);
}

/* Pages, tables and scales (cache.h). */
static void print_allocated(const count_report *r, int64_t bytes)
{
    const counts_shape *s = &r->config.shape;
    if (bytes > 0) print_bytes(r, "  as allocated", bytes, bytes * s->cached, s->cached);
}

static void print_memory(const count_report *r)
{
    const counts_shape *s = &r->config.shape;
    const counts *c = &r->counts;
    print_heading("Memory", r);
    print_bytes(r, "attention matrix, if stored", c->matrix_bytes, c->all_matrix_bytes, s->layers);
    print_bytes(r, s->cached ? "KV cache" : "keys and values of one pass", c->cache_bytes,
                s->cached ? c->all_cache_bytes : c->all_kv_bytes,
                s->cached ? s->cached : s->layers);
    if (s->cached) print_allocated(r, r->allocated);
    if (s->cached && c->window_cache_bytes < c->cache_bytes) {
        print_bytes(r, "KV cache, the window only", c->window_cache_bytes,
                    c->all_window_cache_bytes, s->cached);
        print_allocated(r, r->allocated_window);
    }
    if (s->cached)
        cli_print("  each token adds %s to the cache of its sequence\n",
                  words_bytes((double)c->token_bytes).text);
}

static void print_sharing(const count_report *r)
{
    const bool decodes = r->config.shape.cached > 0;
    const table_column columns[] = {
        {"", -7, 0, TABLE_PLAIN, {0}},
        {"kv heads", 10, 0, TABLE_PLAIN, {0}},
        {"parameters per layer", 23, 0, TABLE_COUNT, {0}},
        {decodes ? "KV cache" : " K and V per layer", 17, 0, TABLE_BYTES, {0}},
        {"smaller than MHA", 19, 0, TABLE_PLAIN, {0}}};
    table t = {.columns = columns};
    if (r->sharing_count < 2) return;
    cli_print("\nSharing keys and values\n");
    table_head(&t, sizeof columns / sizeof *columns);
    for (int i = 0; i < r->sharing_count; i++) {
        const count_row *row = &r->sharing[i];
        table_text(&t, "%c %s", row->asked ? '>' : ' ', row->name);
        table_integer(&t, row->shape.kv_heads);
        table_integer(&t, row->counts.parameters.all);
        table_integer(&t, decodes ? row->counts.all_cache_bytes : row->counts.cache_bytes);
        if (i)
            table_text(&t, "%.4gx",
                       (double)r->sharing[0].shape.kv_heads / (double)row->shape.kv_heads);
        table_end(&t);
    }
}

#define ROW(heading, width, unit, name, member) \
    TABLE_FIELD(heading, width, 0, unit, name, INTEGER, count_row, member)

const table_column count_columns[COUNT_COLUMNS] = {
    ROW("heads", 8, TABLE_PLAIN, "heads", shape.heads),
    ROW(NULL, 0, TABLE_PLAIN, "kv_heads", shape.kv_heads),
    ROW("head size", 10, TABLE_PLAIN, "head_dim", shape.head_dim),
    ROW("parameters per layer", 23, TABLE_COUNT, "parameters", counts.parameters.all),
    ROW(NULL, 0, TABLE_PLAIN, "flops", counts.flops.all),
    {"q k^T and p v", 23, 0, TABLE_COUNT, {0}},
    ROW("attention matrix", 18, TABLE_BYTES, "matrix_bytes", counts.matrix_bytes),
    ROW(NULL, 0, TABLE_PLAIN, "cache_bytes", counts.cache_bytes),
    TABLE_FIELD(NULL, 0, 0, TABLE_PLAIN, "asked", BOOL, count_row, asked)};

static void print_heads(const count_report *r)
{
    const counts_shape *s = &r->config.shape;
    table t = {.columns = count_columns};
    if (r->heads_count < 2) return;
    cli_print("\nOne head against many (each with H x head size = %s, keys and values unshared)\n",
              words_count(s->heads * s->head_dim).text);
    table_head(&t, COUNT_COLUMNS);
    for (int i = 0; i < r->heads_count; i++) {
        const count_row *row = &r->heads[i];
        table_text(&t, "%c %6" PRId64, row->asked ? '>' : ' ', row->shape.heads);
        table_fields(&t, 4, row);
        table_integer(&t, row->counts.flops.scores + row->counts.flops.sum);
        table_integer(&t, row->counts.matrix_bytes);
        table_end(&t);
    }
    cli_print(
        "  Parameters and products do not change: more heads give more, but narrower, patterns.\n");
    cli_print(
        "  Large models keep heads near 128 wide, h = d / 128: here that would be %.4g heads, and "
        "there are %s.\n",
        (double)s->embed / 128, words_count(s->heads).text);
}

void count_print(const count_report *report)
{
    print_head(report);
    print_parameters(report);
    print_flops(report);
    print_memory(report);
    print_sharing(report);
    print_heads(report);
}
