/* multihead heads: a table of what every head of a model does, measured over texts. Options and
 * their help are the table below; the work is in heads_*.c. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/option_rows.h"
#include "heads/heads.h"
#include "heads/heads_effects.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_RANDOM = 10 };

#define TEXTS(letter_, name_, field_, value_, help_)                                          \
    {                                                                                         \
        .kind = ARGS_TEXTS, .letter = letter_, .name = name_, .value = value_, .help = help_, \
        .field = offsetof(heads_options, field_)                                              \
    }

static const args_option option_table[] = {
    ROW_HEADING("Input (may be combined)"),
    ROW_TEXT("text", heads_options, text_file, "FILE", "texts, one per line; - is stdin"),
    ROW_FLAG(0, "whole", heads_options, whole, 1, "--text FILE is one long text"),
    ROW_TEXT("conllu", heads_options, conllu, "FILE",
             "sentences with gold links to score heads against"),
    ROW_TEXT("example", heads_options, example, "NAME",
             "a built-in sentence: animal, bank, cat, river,\npilot, 1 to 5, or all"),
    ROW_NUMBER("random", heads_options, random, 0, 10000,
               "sequences of repeated random tokens, for induction\nand duplicates; default 10, "
               "0 for none"),
    ROW_FLAG(0, "predict", heads_options, predict, 1,
             "test links in the row before the word, the one that\npredicts it"),
    ROW_NUMBER("max-tokens", heads_options, max_tokens, 3, INT64_C(1) << 40,
               "per text; default: the model's limit"),
    ROW_FLAG(0, "truncate", heads_options, truncate, 1, "cut longer texts instead"),
    ROW_NUMBER("cut", heads_options, cut, 8, INT64_C(1) << 40,
               "cut texts into pieces of N tokens, each a text of its\nown: for books"),
    TEXTS(0, "without", without, "LIST",
          "measure without these heads, L16H0 or 4.11: their\noutput is 0 (what later heads lose)"),
    TEXTS(0, "attention", attention, "FILE.npy",
          "maps from elsewhere in place of MODEL: [T,T],\n[heads,T,T] or [layers,heads,T,T]; each "
          "time a text"),
    TEXTS(0, "tokens", tokens, "FILE",
          "the tokens of each --attention, one a line or a\nJSON list: for separators, duplicates, "
          "induction"),
    ROW_HEADING("Selection and order"),
    TEXTS('l', "layer", layers, "LIST", "layers, counted from 0: 3 or 0,2-4"),
    TEXTS(0, "head", heads, "LIST", "heads of these layers, or with their layer: L4H11"),
    TEXTS(0, "role", roles, "NAME",
          "only heads with this role: previous-token, nsubj,\nnone, ...; may be repeated"),
    ROW_TEXT("sort", heads_options, sort, "BY",
             "layer (the default), role, or a score, the highest\nfirst: induction, entropy, "
             "nsubj-back, ..."),
    {.kind = ARGS_REAL,
     .name = "min",
     .value = "X",
     .help = "only heads whose score (of --sort) is at least X",
     .field = offsetof(heads_options, min)},
    ROW_HEADING("Output"),
    {.kind = ARGS_TEXT,
     .letter = 'o',
     .name = "output",
     .value = "FILE.html",
     .help = "a page about all heads: scatter, cards, the places in\nthe texts; implies --corpus",
     .field = offsetof(heads_options, page)},
    ROW_TEXT(
        "npy", heads_options, npy, "FOLDER",
        "a new folder of NumPy arrays, one for each score, and\nan index.json; implies --corpus"),
    ROW_TEXT("headvis", heads_options, headvis, "FOLDER",
             "a new folder for HeadVis: the selected heads in up to\n200 of the texts"),
    ROW_TEXT(
        "pictures", heads_options, pictures, "FOLDER",
        "a new folder of pictures around the places with most\nof a score: of its best head, or "
        "of up to 10 that are\nselected"),
    ROW_FLAG(0, "png", heads_options, png, 1, "with --pictures: PNG beside SVG"),
    ROW_FLAG(0, "pdf", heads_options, pdf, 1, "likewise PDF, for papers"),
    ROW_FLAG(0, "corpus", heads_options, corpus, 1,
             "with --json: intervals, deciles, places, tokens, and\nwhat the best head reaches by "
             "luck"),
    ROW_FLAG(0, "composition", heads_options, composition, 1,
             "with --details, --json, --npy or -o: which earlier\nheads each head reads, from the "
             "weights"),
    ROW_FLAG(0, "circuits", heads_options, circuits, 1,
             "what each head reads and writes by its weights alone:\ncopying, tokens at both ends"),
    ROW_TEXT("offset", heads_options, offset, "N",
             "of --circuits and rotary positions: keys N tokens\nbefore their query, or averaged "
             "over N-M; default 0-63"),
    {.kind = ARGS_REAL,
     .name = "clusters",
     .value = "X",
     .help =
         "which heads of a layer are similar: clusters whose\nmembers are at most X apart (0 to "
         "1; try 0.2)",
     .field = offsetof(heads_options, clusters)},
    ROW_FLAG(0, "details", heads_options, details, 1, "a sentence of evidence for each role"),
    ROW_FLAG(0, "csv", heads_options, csv, 1, "all scores, chance levels and row counts"),
    ROW_FLAG(0, "json", heads_options, json, 1, "the same as JSON, with the evidence"),
    ROW_NUMBER("width", heads_options, screen.width, 20, 10000, "terminal width in columns"),
    ROW_FLAG(0, "ascii", heads_options, screen.ascii, 1, "use only ASCII in the table"),
    ROW_HEADING("Long work"),
    ROW_TEXT("state", heads_options, state, "FILE",
             "keep there what was measured: a second run, on any\nnumber of ranks, continues; "
             "Ctrl-C saves (not on\nseveral ranks)"),
    ROW_NUMBER("save-every", heads_options, save_every, 0, 1000000,
               "seconds between two times; default 60; 0: after each\ntext"),
    ROW_HEADING("What is lost without heads (models that predict the next token)"),
    ROW_TEXT("ablate", heads_options, ablate, "KIND",
             "replace heads by zero, their mean, or what they do in\nanother text (resample): what "
             "is lost, with intervals"),
    ROW_NUMBER("ablate-heads", heads_options, ablate_heads, 0, 1000000,
               "heads measured exactly, the best by a gradient;\ndefault 40"),
    ROW_NUMBER("pairs", heads_options, ablate_pairs, 0, 10000,
               "all pairs of the best N of these; default 12"),
    ROW_NUMBER("ablate-texts", heads_options, ablate_texts, 1, 1000000,
               "of the texts, evenly spread; default 10"),
    ROW_TEXT(
        "task", heads_options, task, "FILE",
        "prompts with right and wrong continuations, TSV or\nJSON lines (docs/ablation.md); with "
        "corrupted\nprompts heads are patched from one to the other"),
    ROW_TEXT("paths", heads_options, paths, "LIST",
             "of a task with corrupted prompts: what each\nhead changes by its paths to these "
             "only: logits, or\n"
             "queries, keys, values of heads: L18H6.k,L18H6.q"),
    ROW_HEADING("Other"),
    ROW_FLAG(0, "words", heads_options, words, 1,
             "list the words or tokens that MODEL reads, one a\nline by id, instead"),
    ROW_FLAG(0, "spread", heads_options, spread, 1,
             "started on several ranks (mpirun): each has some of\nMODEL's layers, so that one "
             "machine need not hold all;\nelse each has all layers, and some of the texts"),
    ROW_NUMBER("threads", heads_options, threads, 1, 1024,
               "default: as many as this process may use"),
    ROW_FLAG('q', "quiet", heads_options, quiet, 1, "no notes on stderr, only warnings and errors"),
    ROW_FLAG('h', "help", heads_options, quiet, 0, "this text"),
};

const args_page heads_page = {
    .command = HEADS,
    .summary = "measure what every head does over texts",
    .usage = "heads [options] MODEL --text FILE\n"
             "heads [options] MODEL \"text\" ...\n"
             "heads [options] --attention FILE.npy",
    .examples = "multihead heads MODEL --text letters.txt\n"
                "multihead heads MODEL --example all --sort induction --min 0.3\n"
                "multihead heads MODEL --conllu sentences.conllu --sort role\n"
                "multihead heads MODEL --text book.txt --whole --truncate\n"
                "multihead heads MODEL --text book.txt --whole --cut 512 -o heads.html\n"
                "multihead heads MODEL --example all --role previous-token --details\n"
                "multihead heads MODEL --conllu gold.conllu --sort nsubj --min 0.5\n"
                "multihead heads MODEL --text letters.txt --json | jq '.heads[0].roles'\n"
                "multihead heads MODEL --sort induction --min 0.3 --details --composition\n"
                "multihead heads MODEL --sort induction --min 0.1 --without L16H0\n"
                "multihead heads MODEL --sort induction --min 0.3 --circuits\n"
                "multihead heads MODEL --text book.txt --whole --cut 552 --ablate mean\n"
                "multihead heads MODEL --task prompts.tsv --ablate resample --pairs 0\n"
                "multihead heads demo --words\n"
                "multihead heads --attention maps.npy --tokens tokens.txt --sort role",
    .notes = "MODEL is a folder as for 'multihead view'. Each score is a mean over the rows\n"
             "it applies to, shown with the score of uniform attention (chance) and the\n"
             "number of rows. A role is a score above a threshold; most are published:\n"
             "docs/heads.md. A head may have several roles, or none. Heads count from 0: L0H3\n"
             "is the fourth head of the first layer. docs/program.md is the manual.",
    .options = option_table,
    .option_count = sizeof option_table / sizeof *option_table,
};

/* What takes a model that runs cannot be asked of maps. */
static cli_exit check_attention(const heads_options *o)
{
    if (o->attention.count == 0) {
        if (o->tokens.count == 0) return CLI_OK;
        return cli_fail(CLI_USAGE, HEADS, "--tokens requires --attention FILE.npy");
    }
    if (o->model)
        return cli_fail(CLI_USAGE, HEADS,
                        "'%s' and --attention: give a model or maps from elsewhere", o->model);
    if (o->text_file || o->conllu || o->example || o->words || o->truncate || o->max_tokens ||
        o->clusters.given || o->random > 0)
        return cli_fail(CLI_USAGE, HEADS,
                        "--attention has no model to run: leave out --text, --conllu, --example, "
                        "--random, --words, --max-tokens, --truncate and --clusters");
    if (o->tokens.count > 0 && o->tokens.count != o->attention.count)
        return cli_fail(CLI_USAGE, HEADS,
                        "%d times --tokens for %d times --attention; give one for each, in the "
                        "same order, or none",
                        o->tokens.count, o->attention.count);
    return CLI_OK;
}

/* A place that cannot be written is refused before hours of work. */
static cli_exit check_state(const heads_options *o)
{
    struct stat status;
    if (!o->state) {
        if (o->save_every < 0) return CLI_OK;
        return cli_fail(CLI_USAGE, HEADS, "--save-every requires --state FILE");
    }
    if (!o->model || o->words)
        return cli_fail(CLI_USAGE, HEADS, "--state requires a model and texts");
    if (o->clusters.given)
        return cli_fail(CLI_USAGE, HEADS,
                        "--state does not keep the distances of --clusters; leave one of them out");
    if (!ranks_first()) return CLI_OK; /* it alone has the file */
    if (!strcmp(o->state, "-") || (stat(o->state, &status) == 0 && !S_ISREG(status.st_mode)))
        return cli_fail(CLI_USAGE, HEADS, "--state %s: is no regular file", o->state);
    if ((o->page && files_same(o->state, o->page)) ||
        (o->text_file && files_same(o->state, o->text_file)))
        return cli_fail(CLI_USAGE, HEADS, "--state and %s are the same file: %s",
                        o->page && files_same(o->state, o->page) ? "-o" : "--text", o->state);
    return cli_check(HEADS, files_check_place(o->state));
}

/* What runs or reads the model at one rank, which has some of its layers only. */
static cli_exit check_spread(const heads_options *o)
{
    const char *whole = o->attention.count > 0 ? "--attention"
                        : o->words             ? "--words"
                        : o->ablate            ? "--ablate"
                        : o->headvis           ? "--headvis"
                        : o->pictures          ? "--pictures"
                        : o->state             ? "--state"
                                               : NULL;
    if (!o->spread || !whole) return CLI_OK;
    return cli_fail(CLI_USAGE, HEADS,
                    "%s takes one process with the whole model; leave out --spread, or %s", whole,
                    whole);
}

static cli_exit check(const heads_options *options)
{
    const bool maps = options->attention.count > 0;
    CLI_TRY(check_spread(options));
    CLI_TRY(check_attention(options));
    if (!options->model && !maps)
        return cli_fail(CLI_USAGE, HEADS,
                        "the model folder is missing: multihead heads MODEL --text FILE");
    if (ranks_transport() && options->clusters.given)
        return cli_fail(CLI_USAGE, HEADS,
                        "--clusters runs on one rank; start it without a launcher");
    if (options->csv && options->json)
        return cli_fail(CLI_USAGE, HEADS, "--csv and --json exclude each other");
    if (options->corpus && !options->json && !options->page && !options->npy && !options->headvis &&
        !options->pictures)
        return cli_fail(CLI_USAGE, HEADS, "--corpus requires --json, --npy or -o FILE.html");
    if (options->page && !strcmp(options->page, "-") && (options->json || options->csv))
        return cli_fail(CLI_USAGE, HEADS, "-o - and --%s both write to stdout",
                        options->json ? "json" : "csv");
    if (options->composition && !options->json && !options->page && !options->details &&
        !options->npy)
        return cli_fail(CLI_USAGE, HEADS,
                        "--composition requires --details, --json, --npy or -o FILE.html");
    if (maps && (options->composition || options->circuits || options->without.count > 0))
        return cli_fail(CLI_USAGE, HEADS,
                        "--attention has no model: leave out --composition, --circuits and "
                        "--without");
    if (options->circuits && options->csv)
        return cli_fail(CLI_USAGE, HEADS, "--circuits requires the table, --json or -o FILE.html");
    if (options->offset && !options->circuits)
        return cli_fail(CLI_USAGE, HEADS, "--offset requires --circuits");
    CLI_TRY(options->state ? ranks_agree(HEADS, check_state(options)) : check_state(options));
    CLI_TRY(heads_npy_check(options));
    CLI_TRY(heads_headvis_check(options));
    CLI_TRY(heads_pictures_check(options));
    CLI_TRY(heads_effects_check(options));
    if (options->page && (maps || options->words))
        return cli_fail(CLI_USAGE, HEADS, "-o requires a model and texts");
    if (options->details && (options->csv || options->json))
        return cli_fail(CLI_USAGE, HEADS,
                        "--details applies to the table; --json includes the evidence anyway");
    if (options->clusters.given && (options->clusters.value < 0 || options->clusters.value > 1))
        return cli_fail(CLI_USAGE, HEADS, "--clusters is %g, expected 0 to 1",
                        options->clusters.value);
    if (options->clusters.given && options->csv)
        return cli_fail(CLI_USAGE, HEADS, "--clusters requires the table or --json");
    if (options->whole && !options->text_file)
        return cli_fail(CLI_USAGE, HEADS, "--whole requires --text FILE");
    if (options->predict && !options->conllu)
        return cli_fail(CLI_USAGE, HEADS, "--predict requires --conllu FILE");
    if (options->words || maps) return CLI_OK;
    const bool texts =
        options->text_file || options->conllu || options->example || options->texts.count > 0;
    if (!texts && options->clusters.given)
        return cli_fail(CLI_USAGE, HEADS, "--clusters compares heads on texts; give --text FILE");
    if (!texts && options->random == 0 && !options->task)
        return cli_fail(CLI_USAGE, HEADS,
                        "nothing to measure on: give --text FILE, a text, or --random 10");
    return CLI_OK;
}

static void say_what_next(const heads_options *options, const heads_found *found,
                          const heads_row *rows, int64_t count)
{
    if (options->page && strcmp(options->page, "-") != 0) {
        cli_note(options->quiet, "next: open %s in a browser", options->page);
        return;
    }
    if (options->csv || options->json || options->details || count == 0) return;
    if (!found->texts) {
        cli_note(options->quiet, "next: a text, --text FILE or --example all, for what is - here");
        return;
    }
    if (options->attention.count > 0) {
        cli_note(options->quiet, "next: --details for the evidence");
        return;
    }
    cli_note(options->quiet,
             "next: --details for the evidence; multihead view %s \"text\" --head "
             "L%" PRId64 "H%" PRId64 " to see a head",
             options->model, rows[0].layer, rows[0].head);
}

/* Write files only if all texts were measured; otherwise the files of an earlier run remain. */
static cli_exit write_files(const heads_options *o, text_model *model, const heads_sources *sources,
                            const heads_found *found, const heads_row *rows, int64_t count)
{
    const bool any = o->page || o->npy || o->headvis || o->pictures;
    if (found->stopped) {
        cli_note(!any, "interrupted: no file is written");
        return CLI_OK;
    }
    if (o->page) CLI_TRY(heads_write_page(o, model, sources, found, rows, count));
    if (o->npy) CLI_TRY(heads_write_npy(o, found, rows, count));
    if (o->headvis) CLI_TRY(heads_write_headvis(o, model, sources, found, rows, count));
    return o->pictures ? heads_write_pictures(o, model, sources, found, rows, count) : CLI_OK;
}

static cli_exit show(const heads_options *options, text_model *model, const heads_sources *sources,
                     heads_found *found)
{
    heads_row *rows = NULL;
    int64_t count = 0;
    CLI_TRY(heads_choose(options, found, &rows, &count));
    if (options->circuits && count > 0) CLI_TRY(heads_circuits_make(options, found, rows, count));
    CLI_TRY(write_files(options, model, sources, found, rows, count));
    if (options->page && !strcmp(options->page, "-")) return cli_finish_stdout(HEADS, CLI_OK);
    if (options->json)
        CLI_TRY(heads_write_json(options, found, rows, count));
    else if (options->csv)
        heads_print_csv(found, rows, count);
    else if (!options->page || options->details) /* the page has the table */
        heads_print(options, found, rows, count);
    if (found->effects && !options->json && !options->csv)
        CLI_TRY(heads_effects_print(options, found));
    if (found->distances && !options->json && !options->csv)
        CLI_TRY(heads_print_clusters(options, found));
    if (found->circuits && !options->json)
        CLI_TRY(heads_circuits_print(options, found, rows, count));
    CLI_TRY(cli_finish_stdout(HEADS, CLI_OK));
    if (count == 0 && !options->page) cli_note(options->quiet, "no head is like that");
    say_what_next(options, found, rows, count);
    return CLI_OK;
}

/* What the tokenizer knows; of an encoder-decoder what its decoder writes. */
static cli_exit list_words(const text_model *model)
{
    const int64_t count =
        model->pieces ? model->desc.vocab_size : mha_vocabulary_count(model->vocabulary);
    for (int64_t id = 0; id < count; id++) {
        const size_t mark = arena_mark();
        char *text;
        CLI_TRY(text_model_token(model, (int32_t)id, &text));
        cli_print("%s\n", text);
        arena_release(mark);
    }
    return cli_finish_stdout(HEADS, CLI_OK);
}

static cli_exit heads(const heads_options *options)
{
    text_model model = {0};
    heads_sources sources = {0};
    heads_found found = {0};
    heads_effects *effects = NULL;
    if (options->attention.count > 0 || options->words) ranks_release();
    if (!ranks_first() && (options->attention.count > 0 || options->words)) return CLI_OK;
    if (options->attention.count > 0) {
        CLI_TRY(heads_measure_arrays(options, &model, &found));
        return show(options, &model, &sources, &found);
    }
    cli_note(options->quiet || !options->spread || ranks_transport(),
             "--spread: one process has all layers; 'mpirun -n 4 multihead heads' starts more");
    CLI_TRY(text_model_open(HEADS, options->model, options->threads, options->spread, &model));
    if (options->words) return list_words(&model);
    if (model.encoder)
        return cli_fail(CLI_UNSUPPORTED, HEADS,
                        "%s: is an encoder-decoder; heads measures self-attention: give %s/encoder",
                        options->model, options->model);
    CLI_TRY(heads_sources_read(options, &model, &sources));
    if (options->ablate) CLI_TRY(heads_effects_begin(options, &model, &sources, &effects));
    CLI_TRY(heads_measure(options, &model, &sources, &found));
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    if (effects && !found.stopped) CLI_TRY(heads_effects_make(options, &model, effects, &found));
    CLI_TRY(show(options, &model, &sources, &found));
    return found.unsaved;
}

cli_exit cmd_heads(int count, char *const *arguments)
{
    heads_options options = {.random = -1,
                             .save_every = -1,
                             .offsets = {0, 63},
                             .ablate_heads = -1,
                             .ablate_pairs = -1,
                             .ablate_texts = -1};
    args_texts plain = {0};
    CLI_TRY(args_parse(&heads_page, count, arguments, &options, &plain));
    options.model = plain.count > 0 ? plain.items[0] : NULL;
    for (int i = 1; i < plain.count; i++)
        options.texts.items[options.texts.count++] = plain.items[i];
    CLI_TRY(check(&options));
    if (options.offset) CLI_TRY(heads_circuits_offsets(options.offset, options.offsets));
    if (options.page) {
        options.corpus = 1;
        CLI_TRY(cli_check(HEADS, files_check_place(options.page)));
    }
    if (options.npy || options.headvis || options.pictures) options.corpus = 1;
    if (options.random < 0) options.random = DEFAULT_RANDOM;
    return heads(&options);
}
