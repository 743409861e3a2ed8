/* multihead ablate: the effects of ablating heads. The table below holds the options and their help;
 * ablate_*.c does the work. 'heads' shares the texts, the selection and the page. */
#include "ablate/ablate.h"
#include "common/arena.h"
#include "common/commands.h"
#include "heads/heads_rows.h"

#include <string.h>

enum { DEFAULT_PAIRS = 12, DEFAULT_TEXTS = 10 };

static const char *const kinds[] = {"zero", "mean", "resample",
                                    NULL}; /* in the order of mha_ablation */

_Static_assert(offsetof(ablate_options, heads) == 0, "the rows of 'heads' fill heads_options");

static const args_option option_table[] = {
    ROW_HEADING("Input (may be combined; MODEL must predict the next token)"),
    HEADS_ROWS_OF_TEXTS,
    ROW_TEXT(
        "task", ablate_options, task, "FILE",
        "read prompts with right and wrong continuations, TSV\nor JSON lines (docs/ablation.md); "
        "patch heads from\ncorrupted prompts, if there are any; --random defaults\nto 0"),
    ROW_NUMBER("max-texts", ablate_options, max_texts, 1, 1000000,
               "use at most N of the texts, evenly spaced; default 10"),
    ROW_HEADING("Ablation"),
    ROW_CHOICE("with", ablate_options, kind, kinds,
               "replace a head's output by 0, by its mean (the\ndefault), or by its output in "
               "another text"),
    ROW_NUMBER("heads", ablate_options, head_count, 0, 1000000,
               "measure the N heads with the largest gradient\nestimates exactly; default 40"),
    ROW_TEXTS(0, "head", ablate_options, named, "LIST",
              "measure these heads exactly instead: L4H11, or 0,2-4\nin every layer",
              .excludes = "--heads"),
    ROW_NUMBER("pairs", ablate_options, pairs, 0, 10000,
               "measure all pairs of the best N heads; default 12"),
    ROW_TEXT("paths", ablate_options, paths, "LIST",
             "with corrupted prompts, patch only the paths from\neach head to these receivers: "
             "logits, or queries, keys\nor values of heads, such as L18H6.k,L18H6.q",
             .needs = "--task FILE"),
    ROW_HEADING("Output"),
    ROW_OUTPUT(heads_options, page, "FILE.html",
               "write a page about all heads: effects, pairs, and the\nscores of 'multihead heads'",
               .ending = ".html"),
    ROW_TEXT("npy", heads_options, npy, "FOLDER",
             "write NumPy arrays to a new folder: effects, scores,\nand an index.json"),
    ROW_FLAG(0, "json", heads_options, json, 1, "print effects and pairs as JSON"),
    HEADS_ROWS_OF_TERMINAL,
    ROW_HEADING("Long runs (scores for --output and --npy)"),
    HEADS_ROWS_OF_STATE(.needs = "--output FILE.html or --npy FOLDER"),
    ROW_HEADING("Other"),
    HEADS_ROWS_AT_END,
};

const args_page ablate_page = {
    .usage = "ablate [options] MODEL \"text\" ...\n"
             "ablate [options] MODEL --text FILE\n"
             "ablate [options] MODEL --task FILE",
    .examples = "multihead ablate MODEL --text book.txt --whole --cut 552\n"
                "multihead ablate MODEL --random 10 --with zero --heads 20\n"
                "multihead ablate MODEL --text letters.txt -o ablate.html\n"
                "multihead ablate MODEL --task prompts.tsv --with resample --pairs 0\n"
                "multihead ablate MODEL --task prompts.tsv --paths logits\n"
                "multihead ablate MODEL --text letters.txt --json | jq '.pairs[0]'",
    .notes = "MODEL is the same as for 'multihead view'. An effect is the change of a measure\n"
             "when the head is ablated. The measures are the loss, in-context learning, the\n"
             "loss on repeated random tokens, and for a task the log-probability of the right\n"
             "continuation minus that of the wrong one. docs/ablation.md has the definitions.\n"
             "Heads count from 0: L0H3 is the fourth head of the first layer.",
    ARGS_OPTIONS(option_table),
};

static cli_exit show(const ablate_effects *e, const heads_sources *sources)
{
    const heads_options *o = &e->options->heads;
    heads_beside beside;
    heads_row *rows = NULL;
    int64_t count = 0;
    CLI_TRY(heads_choose(o, e->found, &rows, &count));
    CLI_TRY(ablate_beside(e, &beside));
    if (o->page) CLI_TRY(heads_write_page(o, e->model, sources, e->found, rows, count, &beside));
    if (o->npy) CLI_TRY(heads_write_npy(o, e->found, &beside));
    if (o->json) CLI_TRY(ablate_write_json(e));
    if (!o->json && !o->page) CLI_TRY(ablate_print(e)); /* the page contains the table */
    CLI_TRY(ablate_told(e));
    if (o->page && strcmp(o->page, "-") != 0)
        cli_note(o->quiet, "next: open %s in a browser", o->page);
    return cli_finish_stdout(CLI_OK);
}

cli_exit cmd_ablate(int count, char *const *arguments)
{
    ablate_options options = {.kind = MHA_ABLATION_MEAN,
                              .head_count = -1,
                              .pairs = DEFAULT_PAIRS,
                              .max_texts = DEFAULT_TEXTS};
    heads_options *o = &options.heads;
    text_model model = {0};
    heads_sources sources = {0};
    heads_found found = {0};
    cli_exit unsaved = CLI_OK;
    ablate_effects effects = {.options = &options, .model = &model, .found = &found};
    CLI_TRY(heads_parse(&ablate_page, count, arguments, o));
    if (options.task && !o->drawn) o->random = 0;
    CLI_TRY(text_model_open(o->model, o->threads, false, &model));
    CLI_TRY(heads_sources_read(o, &model, &sources));
    CLI_TRY(heads_begin(&model, &found));
    CLI_TRY(ablate_begin(&effects, &sources));
    if (o->page || o->npy) CLI_TRY(heads_measure(o, &model, &sources, &found, &unsaved));
    cli_note(!found.stopped, "interrupted: no file is written");
    if (found.stopped) return unsaved;
    CLI_TRY(ablate_measure(&effects));
    CLI_TRY(show(&effects, &sources));
    return unsaved;
}
