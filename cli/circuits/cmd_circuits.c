/* multihead circuits: analyse the QK and OV circuits of heads from the weights alone. The table below
 * holds the options and their help; circuits_*.c does the work. Scores come from a state of 'heads'. */
#include "circuits/circuits.h"
#include "common/arena.h"
#include "common/commands.h"
#include "common/launched.h"
#include "heads/heads_rows.h"

#include <inttypes.h>
#include <string.h>

_Static_assert(offsetof(circuits_options, heads) == 0, "the rows of 'heads' fill heads_options");

static const args_option option_table[] = {
    ROW_HEADING("Input"),
    ROW_TEXT("offset", circuits_options, offset, "N",
             "with rotary positions: take keys N tokens before the\nquery, or average over N-M; "
             "default 0-63"),
    ROW_FLAG(0, "composition", circuits_options, composition, 1,
             "also show which earlier heads each head reads from"),
    ROW_TEXT("state", heads_options, state, "FILE",
             "read the scores that 'multihead heads --state' saved,\nfor the page, --sort and "
             "--role"),
    ROW_HEADING("Selection and order"),
    HEADS_ROWS_OF_CHOICE("sort by layer (the default), copying, matching, or a\nscore of the "
                         "state, highest first",
                         .needs = "--state FILE"),
    ROW_HEADING("Output"),
    ROW_OUTPUT(heads_options, page, "FILE.html",
               "write a page about all heads: copying and matching,\ntokens, arrows from earlier "
               "heads",
               .ending = ".html"),
    ROW_TEXT("npy", heads_options, npy, "FOLDER",
             "write NumPy arrays and an index.json to a new folder"),
    ROW_FLAG(0, "details", heads_options, details, 1,
             "print the tokens at both ends of two directions of\neach circuit",
             .excludes = "--json"),
    ROW_FLAG(0, "json", heads_options, json, 1, "print everything as JSON"),
    HEADS_ROWS_OF_TERMINAL,
    ROW_HEADING("Other"),
    HEADS_ROWS_AT_END,
};

const args_page circuits_page = {
    .usage = "circuits [options] MODEL",
    .examples = "multihead circuits MODEL\n"
                "multihead circuits MODEL --sort copying --min 0.9\n"
                "multihead circuits MODEL --head L17H3 --details\n"
                "multihead circuits MODEL --layer 16-18 --composition\n"
                "multihead circuits MODEL --state book.state --sort induction --min 0.3\n"
                "multihead circuits MODEL --state book.state --composition -o circuits.html\n"
                "multihead circuits MODEL --json | jq '.heads[0].copying'",
    .notes = "MODEL is the same as for 'multihead view'. Copying and matching are the sum of\n"
             "the eigenvalues divided by the sum of their absolute values, -1 to 1. QK and OV\n"
             "are the largest singular values of the two circuits. The tokens are the ones\n"
             "that the strongest direction of the OV circuit reads and writes.\n"
             "docs/circuits.md has the definitions. Heads count from 0.",
    ARGS_OPTIONS(option_table),
};

/* Apply --sort copying or matching, and --min: these scores exist only after the decomposition. */
static void sort_by_weights(circuits *c, heads_row *rows, const double *score)
{
    const args_real min = c->options->heads.min;
    const int64_t count = c->count;
    c->count = 0;
    for (int64_t i = 0; i < count; i++) {
        rows[i].key = score[rows[i].layer * c->heads + rows[i].head];
        if (!min.given || rows[i].key >= min.value) rows[c->count++] = rows[i];
    }
    heads_sort(rows, c->count);
}

static cli_exit read_weights(circuits *c)
{
    const heads_options *o = &c->options->heads;
    heads_options how = *o;
    heads_row *rows = NULL;
    const bool copying = o->sort && !strcmp(o->sort, "copying"),
               matching = o->sort && !strcmp(o->sort, "matching");
    if (copying || matching) how.sort = NULL, how.min.given = false;
    if (how.sort && !o->state && strcmp(how.sort, "layer") != 0)
        return cli_fail(CLI_USAGE,
                        "--sort %s: expected copying or matching; scores of texts require --state",
                        o->sort);
    CLI_TRY(heads_choose(&how, c->found, &rows, &c->count));
    c->rows = rows;
    if (c->count > 0) CLI_TRY(circuits_decompose(c));
    if (c->decomposed && (copying || matching))
        sort_by_weights(c, rows, copying ? c->copying : c->matching);
    return c->options->composition ? circuits_compose(c) : CLI_OK;
}

static cli_exit show(const circuits *c, text_model *model)
{
    const heads_options *o = &c->options->heads;
    const heads_sources none = {0};
    heads_beside beside;
    circuits_beside(c, &beside);
    if (o->page) CLI_TRY(heads_write_page(o, model, &none, c->found, c->rows, c->count, &beside));
    if (o->npy) CLI_TRY(heads_write_npy(o, c->found, &beside));
    if (o->json)
        CLI_TRY(circuits_write_json(c));
    else if (!o->page || o->details) /* the page contains the table */
        CLI_TRY(circuits_print(c));
    if (o->page && strcmp(o->page, "-") != 0)
        cli_note(o->quiet, "next: open %s in a browser", o->page);
    else if (c->count == 0)
        cli_note(o->quiet, "no head matches the selection");
    else if (!o->json && !o->details)
        cli_note(o->quiet,
                 "next: --details shows both ends; multihead view %s \"text\" --head L%" PRId64
                 "H%" PRId64 " to see a head",
                 o->model, c->rows[0].layer, c->rows[0].head);
    return cli_finish_stdout(CLI_OK);
}

cli_exit cmd_circuits(int count, char *const *arguments)
{
    circuits_options options = {.offsets = {0, 63}};
    heads_options *o = &options.heads;
    text_model model = {0};
    heads_found found = {0};
    cli_exit unsaved;
    circuits c = {.options = &options, .found = &found};
    CLI_TRY(heads_parse(&circuits_page, count, arguments, o));
    if (o->named)
        return cli_fail(CLI_USAGE,
                        "circuits takes no text; use 'multihead heads' to measure heads on texts");
    if (options.offset) CLI_TRY(circuits_offsets(options.offset, options.offsets));
    CLI_TRY(text_model_open(o->model, o->threads, true, &model));
    if (model.encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "%s is an encoder-decoder; circuits reads self-attention: give %s/encoder",
                        o->model, o->model);
    o->random = 0; /* measure nothing: a state contains its own random tokens */
    CLI_TRY(o->state ? heads_measure(o, &model, &(heads_sources){0}, &found, &unsaved)
                     : heads_begin(&model, &found));
    ranks_release();
    if (!ranks_first()) return CLI_OK; /* rank 0 reads all weights, a few at a time */
    CLI_TRY(read_weights(&c));
    return show(&c, &model);
}
