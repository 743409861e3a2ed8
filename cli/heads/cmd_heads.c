/* multihead heads: measure every head of a model over texts. The table below holds the options and
 * their help; heads_*.c does the work. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/launched.h"
#include "heads/heads.h"
#include "heads/heads_rows.h"

#include <inttypes.h>
#include <string.h>

static const args_option option_table[] = {
    ROW_HEADING("Input (may be combined)"),
    HEADS_ROWS_OF_TEXTS,
    ROW_TEXTS(0, "image", heads_options, images, "FILE",
              "measure an image, or the PNG and JPEG files of a\nfolder; may be repeated",
              .excludes = "--text --whole --cut --example --conllu --predict --random --max-tokens "
                          "--truncate --words --attention --headvis --pictures --spread --self",
              .why = "images have patches, not words"),
    ROW_TEXT("conllu", heads_options, conllu, "FILE",
             "read sentences with gold links to score heads against"),
    ROW_FLAG(0, "predict", heads_options, predict, 1,
             "test links in the row of the previous token, which\npredicts the word",
             .needs = "--conllu FILE"),
    ROW_TEXTS(
        0, "without", heads_options, without, "LIST",
        "set the output of these heads to 0 to measure the\neffect on later heads: L16H0 or 4.11"),
    ROW_TEXTS(0, "attention", heads_options, attention, "FILE.npy",
              "measure maps from a file in place of MODEL: [T,T],\n[heads,T,T] or "
              "[layers,heads,T,T]; each file is one\ntext; may be repeated",
              .excludes = "--text --example --conllu --random --max-tokens --truncate --cut "
                          "--without --words --clusters --state --output --npy --headvis "
                          "--pictures --spread",
              .why = "maps have no model to run"),
    ROW_TEXTS(0, "tokens", heads_options, tokens, "FILE",
              "read the tokens of each --attention, one per line or\nas a JSON list, to score "
              "separators, duplicates and\ninduction",
              .needs = "--attention FILE.npy"),
    ROW_FLAG(
        0, "self", heads_options, self, 1,
        "of an encoder-decoder: measure the decoder's\nself-attention, not its attention to the "
        "source",
        .excludes = "--attention --words", .why = "it needs a source and a target"),
    ROW_HEADING("Selection and order"),
    HEADS_ROWS_OF_CHOICE(
        "sort by layer (the default), role, or a score, highest\nfirst: induction, "
        "entropy, nsubj-back, ...",
        .needs = NULL),
    ROW_HEADING("Output"),
    ROW_OUTPUT(heads_options, page, "FILE.html",
               "write a page about all heads: scatter plot, cards,\nplaces in the texts",
               .ending = ".html"),
    ROW_TEXT("npy", heads_options, npy, "FOLDER",
             "write NumPy arrays to a new folder, one per score,\nand an index.json"),
    ROW_TEXT("headvis", heads_options, headvis, "FOLDER",
             "write the selected heads in up to 200 of the texts to\na new folder, for HeadVis"),
    ROW_TEXT("pictures", heads_options, pictures, "FOLDER",
             "write pictures of the places with the highest scores\n"
             "to a new folder: for the best head of each score, or\n"
             "for up to 10 selected heads"),
    ROW_FLAG(0, "png", heads_options, png, 1, "with --pictures: write PNG as well as SVG",
             .needs = "--pictures FOLDER"),
    ROW_FLAG(0, "pdf", heads_options, pdf, 1, "with --pictures: write PDF as well, for papers",
             .needs = "--pictures FOLDER"),
    ROW_REAL(
        "clusters", heads_options, clusters,
        "print clusters of similar heads per layer, joined up\nto distance X (0 to 1; try 0.2)",
        .excludes = "--csv --state", .why = "that format has no distances"),
    ROW_FLAG(0, "details", heads_options, details, 1, "print a sentence of evidence for each role",
             .excludes = "--csv --json"),
    ROW_FLAG(0, "csv", heads_options, csv, 1, "print all scores, chance levels and row counts",
             .excludes = "--json"),
    ROW_FLAG(0, "json", heads_options, json, 1, "print the same as JSON, with the evidence"),
    ROW_FLAG(
        0, "corpus", heads_options, corpus, 1,
        "with --json: add intervals, deciles, places, tokens,\nand the best head's score under "
        "the permutation null",
        .needs = "--json"),
    HEADS_ROWS_OF_TERMINAL,
    ROW_HEADING("Long runs"),
    HEADS_ROWS_OF_STATE(.needs = NULL),
    ROW_HEADING("Other"),
    ROW_FLAG(0, "words", heads_options, words, 1,
             "only list the words or tokens of MODEL, one per line,\nin the order of their ids",
             .excludes = "--text --example --conllu --without --state --output --npy --headvis "
                         "--pictures --clusters --csv --json --details --max-tokens --truncate "
                         "--cut --random --layer --head --role --sort",
             .why = "it lists words and measures nothing"),
    ROW_FLAG(0, "spread", heads_options, spread, 1,
             "on several ranks (mpirun): divide MODEL's layers;\ndefault: divide the texts",
             .excludes = "--words --state --headvis --pictures",
             .why = "it needs the whole model in one process"),
    HEADS_ROWS_AT_END,
};

static const args_moved moved[] = {
    {"ablate", "multihead ablate --with"},
    {"ablate-heads", "multihead ablate --heads"},
    {"ablate-texts", "multihead ablate --max-texts"},
    {"pairs", "multihead ablate --pairs"},
    {"task", "multihead ablate --task"},
    {"paths", "multihead ablate --paths"},
    {"circuits", "multihead circuits"},
    {"offset", "multihead circuits --offset"},
    {"composition", "multihead circuits --composition"},
};

const args_page heads_page = {
    .usage = "heads [options] MODEL --text FILE\n"
             "heads [options] MODEL \"text\" ...\n"
             "heads [options] MODEL --image FILE ...\n"
             "heads [options] --attention FILE.npy",
    .examples = "multihead heads MODEL --text letters.txt\n"
                "multihead heads MODEL --example all --sort induction --min 0.3\n"
                "multihead heads MODEL --conllu sentences.conllu --sort role\n"
                "multihead heads MODEL --text book.txt --whole --truncate\n"
                "multihead heads MODEL --text book.txt --whole --cut 512 -o heads.html\n"
                "multihead heads MODEL --example all --role previous-token --details\n"
                "multihead heads MODEL --conllu gold.conllu --sort nsubj --min 0.5\n"
                "multihead heads MODEL --text letters.txt --json | jq '.heads[0].roles'\n"
                "multihead heads MODEL --sort induction --min 0.1 --without L16H0\n"
                "multihead heads VIT --image photos --sort patch_local -o heads.html\n"
                "multihead heads demo --words\n"
                "multihead heads --attention maps.npy --tokens tokens.txt --sort role",
    .notes = "MODEL is the same as for 'multihead view'. The texts of an encoder-decoder are a\n"
             "source, a tab and a target; the model writes targets that are missing. Each\n"
             "score is a mean over the rows it applies to, shown with the score of uniform\n"
             "attention (chance) and the number of rows. A role is a score above a threshold;\n"
             "most thresholds come from papers. 'multihead help scores' lists both. A head may\n"
             "have several roles, or none. Heads count from 0: L0H3 is the fourth head of the\n"
             "first layer. docs/program.md has the formats.",
    ARGS_OPTIONS(option_table),
    .moved = moved,
    .moved_count = sizeof moved / sizeof *moved,
};

/* Checks of values, and of arguments other than options. */
static cli_exit check(const heads_options *o)
{
    const int maps = o->attention.count;
    if (maps > 0 && o->model)
        return cli_fail(CLI_USAGE, "'%s' and --attention: give either a model or maps", o->model);
    if (o->tokens.count > 0 && o->tokens.count != maps)
        return cli_fail(CLI_USAGE,
                        "--tokens is given %d times and --attention %d times; give one --tokens "
                        "per --attention, in the same order, or none",
                        o->tokens.count, maps);
    if (o->clusters.given && (o->clusters.value < 0 || o->clusters.value > 1))
        return cli_fail(CLI_USAGE, "--clusters %g: expected 0 to 1", o->clusters.value);
    if (o->clusters.given && ranks_transport())
        return cli_fail(CLI_USAGE, "--clusters runs on one rank; start it without a launcher");
    if (!o->named && (o->clusters.given || o->pictures || o->headvis))
        return cli_fail(CLI_USAGE, "--%s requires texts; give --text FILE",
                        o->pictures  ? "pictures"
                        : o->headvis ? "headvis"
                                     : "clusters");
    if (o->named || maps > 0 || o->words || o->random > 0) return CLI_OK;
    return cli_fail(CLI_USAGE, "nothing to measure on: give --text FILE, a text, or --random 10");
}

static void say_what_next(const heads_options *options, const mha_study_found *found, bool pairs,
                          const heads_row *rows, int64_t count)
{
    if (options->page && strcmp(options->page, "-") != 0) {
        cli_note(options->quiet, "next: open %s in a browser", options->page);
        return;
    }
    if (options->csv || options->json || options->details || count == 0) return;
    if (!found->texts) {
        cli_note(
            options->quiet,
            "next: give a text, --text FILE or --example all, to fill the columns that show -");
        return;
    }
    if (options->attention.count > 0) {
        cli_note(options->quiet, "next: --details for the evidence");
        return;
    }
    cli_note(options->quiet,
             "next: --details for the evidence; multihead view %s %s --head L%" PRId64 "H%" PRId64
             "%s to see a head",
             options->model, pairs ? "\"source\" \"target\"" : heads_argument(options),
             rows[0].layer, rows[0].head, options->self ? " --self" : "");
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
    if (o->page) CLI_TRY(heads_write_page(o, model, sources, found, rows, count, NULL));
    if (o->npy) CLI_TRY(heads_write_npy(o, found, NULL));
    if (o->headvis) CLI_TRY(heads_write_headvis(o, model, sources, found, rows, count));
    return o->pictures ? heads_write_pictures(o, model, sources, found, rows, count) : CLI_OK;
}

static cli_exit show(const heads_options *options, text_model *model, const heads_sources *sources,
                     heads_found *found)
{
    heads_row *rows = NULL;
    int64_t count = 0;
    CLI_TRY(heads_choose(options, found, &rows, &count));
    CLI_TRY(write_files(options, model, sources, found, rows, count));
    if (options->page && !strcmp(options->page, "-")) return cli_finish_stdout(CLI_OK);
    if (options->json)
        CLI_TRY(heads_write_json(options, found, rows, count));
    else if (options->csv)
        heads_print_csv(&found->of, rows, count);
    else if (!options->page || options->details) /* the page has the table */
        heads_print(options, found, rows, count);
    if (found->of.distances && !options->json && !options->csv)
        CLI_TRY(heads_print_clusters(options, found));
    CLI_TRY(cli_finish_stdout(CLI_OK));
    if (count == 0 && !options->page) cli_note(options->quiet, "no head matches the selection");
    say_what_next(options, &found->of, model->encoder, rows, count);
    return CLI_OK;
}

/* List the tokenizer's vocabulary; for an encoder-decoder, the decoder's. */
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
    return cli_finish_stdout(CLI_OK);
}

static cli_exit heads(const heads_options *options)
{
    text_model model = {0};
    heads_sources sources = {0};
    heads_found found = {0};
    cli_exit unsaved;
    if (options->attention.count > 0 || options->words) ranks_release();
    if (!ranks_first() && (options->attention.count > 0 || options->words)) return CLI_OK;
    if (options->attention.count > 0) {
        CLI_TRY(heads_measure_arrays(options, &model, &found));
        return show(options, &model, &sources, &found);
    }
    cli_note(options->quiet || !options->spread || ranks_transport(),
             "--spread: a single process has all layers; start several with 'mpirun -n 4 multihead "
             "heads'");
    const bool images = options->images.count > 0;
    if (images)
        CLI_TRY(text_model_open_for(options->model, options->threads,
                                    MHA_MODEL_IMAGES | MHA_MODEL_UNDIVIDED, &model));
    else
        CLI_TRY(text_model_open(options->model, options->threads, options->spread, &model));
    if (options->words) return list_words(&model);
    CLI_TRY(heads_pairs_check(options, &model));
    CLI_TRY(images ? heads_images_read(options, &sources)
                   : heads_sources_read(options, &model, &sources));
    CLI_TRY(heads_pairs_read(options, &model, &sources));
    CLI_TRY(heads_measure(options, &model, &sources, &found, &unsaved));
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    CLI_TRY(show(options, &model, &sources, &found));
    return unsaved;
}

cli_exit cmd_heads(int count, char *const *arguments)
{
    heads_options options = {0};
    CLI_TRY(heads_parse(&heads_page, count, arguments, &options));
    CLI_TRY(check(&options));
    return heads(&options);
}
