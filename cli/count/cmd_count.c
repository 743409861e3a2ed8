/* multihead count: count parameters, operations and bytes of attention, by exact arithmetic
 * (counts.c). Nothing is computed or loaded. */
#include "common/commands.h"
#include "common/files.h"
#include "count/count.h"

#include <multihead/cache.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct count_options {
    config_options config;
    int64_t page;
    int dtype, json;
} count_options;

static const char *const dtypes[] = {"f16", "bf16", "f32", "int8", NULL};
static const int dtype_bytes[] = {2, 2, 4, 1};
static const mha_dtype cache_types[] = {MHA_F16, MHA_BF16, MHA_F32, MHA_I8};

static const args_option option_table[] = {
    ROW_HEADING("The model"),
    CONFIG_ROWS(count_options),
    ROW_NUMBER("layers", count_options, config.layers, 1, CONFIG_MOST,
               "layers; default: the model's, else 1"),
    ROW_NUMBER("length", count_options, config.length, 1, CONFIG_MOST,
               "tokens N; default: the model's, else 1024"),
    ROW_NUMBER("batch", count_options, config.batch, 1, CONFIG_MOST, "sequences B; default 1"),
    ROW_FLAG(0, "bias", count_options, config.bias, 1, "count biases of the projections"),
    ROW_FLAG(0, "no-bias", count_options, config.bias, 2,
             "count no biases; default: as in the model"),
    ROW_FLAG(0, "causal", count_options, config.causal, 1, "hide keys after the query's position"),
    ROW_FLAG(0, "no-causal", count_options, config.causal, 2, "let every query see every key"),
    ROW_TEXT("window", count_options, config.window, "W",
             "let a causal token attend to W keys, including its\nown; L,R: L before and R after "
             "it (-1: all)"),
    ROW_CHOICE("dtype", count_options, dtype, dtypes,
               "set the type of the attention matrix and the KV\n"
               "cache; default f16"),
    ROW_NUMBER("page", count_options, page, 1, CONFIG_MOST,
               "positions per page of the allocated cache; default:\nall in one, 32 with a window"),
    ROW_HEADING("Other"),
    ROW_FLAG(0, "json", count_options, json, 1, "print the counts as JSON"),
    ROW_FLAG('h', "help", count_options, json, 0, "print this text"),
};

const args_page count_page = {
    .usage = "count [options] --embed E --heads H\n"
             "count [options] --like NAME\n"
             "count [options] MODEL",
    .examples = "multihead count --embed 512 --heads 8\n"
                "multihead count --like llama-2-70b\n"
                "multihead count --like gpt3 --length 8192 --batch 4\n"
                "multihead count --embed 4096 --heads 32 --kv-heads 8 --json\n"
                "multihead count path/to/model-folder",
    .notes = "MODEL is a Hugging Face folder (only config.json is read) or a GGUF file.\n"
             "\n"
             "Counts of one layer; N tokens, B sequences, b bytes per element, P visible pairs\n"
             "of query and key per head and sequence:\n"
             "  parameters          W_q and W_o: E H D each; W_k and W_v: E Hk D each;\n"
             "                      biases: H D + 2 Hk D + E\n"
             "  a projection        2 B N times its parameters without bias\n"
             "  scores              2 D B H P, and as many for the weighted sum\n"
             "  softmax             5 B H P: maximum, subtraction, exp, sum, division\n"
             "  attention matrix    B H N N b bytes, if it were stored\n"
             "  KV cache            2 B N Hk D b bytes; as allocated: whole runs of 16\n"
             "                      positions, scales and tables\n"
             "A multiply and an add are two operations.",
    .takes = "[MODEL]",
    .spare = "give one MODEL at a time",
    ARGS_OPTIONS(option_table),
};

/* ---- Comparisons ----------------------------------------------------------------------------- */

/* Add a row, unless its counts exceed 64 bits. */
static void add_row(count_row *rows, int *count, const char *name, const counts_shape *shape,
                    bool asked)
{
    count_row *row = &rows[*count];
    *row = (count_row){.name = name, .shape = *shape, .asked = asked};
    if (counts_of(shape, &row->counts)) ++*count;
}

static void compare_sharing(count_report *r)
{
    const counts_shape *asked = &r->config.shape;
    counts_shape s = *asked;
    int64_t group = counts_group_example(asked);
    s.kv_heads = s.heads;
    add_row(r->sharing, &r->sharing_count, "MHA", &s, asked->kv_heads == s.heads);
    s.kv_heads = group;
    if (group) add_row(r->sharing, &r->sharing_count, "GQA", &s, asked->kv_heads == group);
    s.kv_heads = 1;
    if (s.heads > 1) add_row(r->sharing, &r->sharing_count, "MQA", &s, asked->kv_heads == 1);
}

/* Compare 1, 2, 4, ... heads and the requested number at the same total width. */
static void compare_heads(count_report *r)
{
    const counts_shape *asked = &r->config.shape;
    int64_t width = asked->heads * asked->head_dim;
    for (int64_t h = 1, next; h <= width && h / 4 <= asked->heads; h = next) {
        next = h < asked->heads && 2 * h > asked->heads ? asked->heads : 2 * h;
        if (width % h != 0 || r->heads_count == COUNT_MOST_ROWS) continue;
        counts_shape s = *asked;
        s.heads = s.kv_heads = h;
        s.head_dim = width / h;
        add_row(r->heads, &r->heads_count, NULL, &s, h == asked->heads);
        if (h > asked->heads) break;
    }
}

/* ---- The run --------------------------------------------------------------------------------- */

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    return count_write_json(user, sink);
}

/* The bytes that mha_kv_cache_create() would allocate for a layer; 0: the cache is too large. */
static int64_t allocated(const count_options *options, const counts_shape *s, int64_t window)
{
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = s->batch,
                                    .kv_heads = s->kv_heads,
                                    .capacity = s->length,
                                    .head_dim = s->head_dim,
                                    .type = cache_types[options->dtype],
                                    .page_size = options->page,
                                    .window = window};
    mha_kv_cache_sizes sizes = {.struct_size = sizeof sizes};
    const int64_t layers = s->cached > 0 ? s->cached : 1;
    if (mha_kv_cache_count(&desc, &sizes) != MHA_OK) return 0;
    return sizes.total_bytes <= INT64_MAX / layers ? sizes.total_bytes : 0;
}

static cli_exit count(const count_options *options)
{
    count_report report = {.dtype = dtypes[options->dtype]};
    CLI_TRY(config_resolve(&options->config, &report.config));
    report.config.shape.element_bytes = dtype_bytes[options->dtype];
    if (!counts_of(&report.config.shape, &report.counts))
        return cli_fail(CLI_USAGE,
                        "at these sizes a count exceeds 2^63 - 1 (9.2e18), the largest that can be "
                        "printed exactly; reduce --length, --batch or the width");
    const counts_shape *s = &report.config.shape;
    const bool windowed = report.counts.window_cache_bytes < report.counts.cache_bytes;
    report.allocated = allocated(options, s, 0);
    report.allocated_window = windowed ? allocated(options, s, s->left + 1) : report.allocated;
    if (report.allocated_window > report.allocated) report.allocated_window = report.allocated;
    compare_sharing(&report);
    compare_heads(&report);
    if (options->json) return cli_check(files_draw("-", draw_json, &report));
    count_print(&report);
    return CLI_OK;
}

cli_exit cmd_count(int argument_count, char *const *arguments)
{
    count_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&count_page, argument_count, arguments, &options, &line));
    if (line.plain.count) options.config.model = line.plain.items[0];
    if (options.config.like && !strcmp(options.config.like, "list")) {
        config_print_models();
        return CLI_OK;
    }
    return count(&options);
}
