/* multihead view: draw what every attention head looks at. Options and their help are the table
 * below; the work is in view_*.c. */
#include "commands.h"
#include "view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CMAP_NAME(name, value, text, is_signed) text,
#define SCALE_NAME(name, value, text) text,

static const char *const cmaps[] = {MHA_CMAP_LIST(CMAP_NAME) NULL};
static const char *const scales[] = {MHA_SCALE_LIST(SCALE_NAME) NULL};
static const char *const values[] = {"auto", "always", "never", NULL}; /* mha_values */
static const char *const whens[] = {"auto", "always", "never", NULL};  /* view_color */

#define HEADING(title)                      \
    {                                       \
        .kind = ARGS_HEADING, .name = title \
    }
#define FLAG(letter_, name_, field_, value_, help_)                                          \
    {                                                                                        \
        .kind = ARGS_FLAG, .letter = letter_, .name = name_, .help = help_, .least = value_, \
        .field = offsetof(view_options, field_)                                              \
    }
#define VALUE(kind_, letter_, name_, field_, value_, help_)                              \
    {                                                                                    \
        .kind = kind_, .letter = letter_, .name = name_, .value = value_, .help = help_, \
        .field = offsetof(view_options, field_)                                          \
    }
#define NUMBER(name_, field_, least_, most_, help_)                                       \
    {                                                                                     \
        .kind = ARGS_NUMBER, .name = name_, .value = "N", .help = help_, .least = least_, \
        .most = most_, .field = offsetof(view_options, field_)                            \
    }
#define CHOICE(name_, field_, choices_, help_)                                  \
    {                                                                           \
        .kind = ARGS_CHOICE, .name = name_, .choices = choices_, .help = help_, \
        .field = offsetof(view_options, field_)                                 \
    }

static const args_option option_table[] = {
    HEADING("Which heads"),
    VALUE(ARGS_TEXTS, 'l', "layer", layers, "LIST", "layers, counted from 0: 3 or 0,2-4"),
    VALUE(ARGS_TEXTS, 0, "head", heads, "LIST",
          "heads, counted from 0: 3 or 0,2-4 of every layer\n"
          "chosen, or with their layer: L4H11 or 4.11"),
    HEADING("Where to (several at once; FILE may be - for stdout)"),
    VALUE(ARGS_TEXT, 'o', "output", html, "FILE.html", "an interactive report in one file"),
    VALUE(ARGS_TEXT, 0, "svg", svg, "FILE", "a picture to print or to put in a page"),
    VALUE(ARGS_TEXT, 0, "png", png, "FILE", "a picture of pixels"),
    VALUE(ARGS_TEXT, 0, "json", json, "FILE", "tokens and all weights as text"),
    VALUE(ARGS_TEXT, 0, "npy", npy, "FILE",
          "the weights for NumPy: float32\n[layers, heads, tokens, tokens]"),
    FLAG(0, "terminal", terminal, 1, "the terminal picture too, beside files"),
    HEADING("The text"),
    VALUE(ARGS_TEXT, 0, "text-file", text_file, "FILE", "read the text from a file; - is stdin"),
    VALUE(ARGS_TEXT, 0, "example", example, "NAME",
          "a built-in sentence: animal, bank, cat, river,\npilot, or 1 to 5"),
    NUMBER("max-tokens", max_tokens, 3, INT64_C(1) << 40,
           "refuse longer texts; default: the model's limit"),
    FLAG(0, "truncate", truncate, 1, "cut texts that are too long instead"),
    HEADING("Weights from elsewhere, without a model"),
    VALUE(ARGS_TEXT, 0, "attention", attention, "FILE.npy",
          "float16, 32 or 64 of shape [T,S], [H,T,S] or\n[L,H,T,S]"),
    VALUE(ARGS_TEXT, 0, "tokens", tokens, "FILE", "T tokens: one a line, or a JSON list (.json)"),
    VALUE(ARGS_TEXT, 0, "key-tokens", key_tokens, "FILE",
          "S tokens, where the columns are not the rows"),
    HEADING("How it is drawn"),
    CHOICE("cmap", cmap, cmaps, "the colours; default viridis"),
    VALUE(ARGS_TEXT, 0, "range", range, "RANGE",
          "what the colours span: shared by all heads (the\n"
          "default), head: each its own, or LO:HI"),
    CHOICE("scale", scale, scales,
           "how weights become colours; sqrt and log bring\nout small ones"),
    VALUE(ARGS_TEXTS, 0, "hide", hide, "LIST",
          "leave tokens out of the picture, and say what\n"
          "weight they had: special, or tokens by name"),
    FLAG(0, "renormalise", renormalise, 1, "with --hide: make rows sum to 1 again"),
    CHOICE("values", values, values, "numbers in the cells"),
    FLAG(0, "dark", paper, PAPER_DARK, "for a dark background"),
    FLAG(0, "light", paper, PAPER_LIGHT, "for a light one; the default for files"),
    CHOICE("color", color, whens,
           "colours in the terminal; NO_COLOR, TERM=dumb,\n"
           "CLICOLOR_FORCE and FORCE_COLOR count for auto"),
    NUMBER("width", width, 20, 10000, "columns of the terminal"),
    FLAG(0, "ascii", ascii, 1, "nothing but ASCII in the terminal"),
    HEADING("Other"),
    NUMBER("threads", threads, 1, 1024, "default: as many as this process may use"),
    FLAG('q', "quiet", quiet, 1, "no notes on stderr, only warnings and errors"),
    {.kind = ARGS_FLAG, .letter = 'h', .name = "help", .help = "this text"},
};

static const args_page page = {
    .command = VIEW,
    .summary = "draw what every attention head looks at",
    .usage = "view [options] MODEL \"text\" [\"second text\"]\n"
             "view [options] --attention MAPS.npy --tokens FILE",
    .examples = "multihead view MODEL \"The cat sat on the mat\"\n"
                "multihead view MODEL --example animal --head L3H7\n"
                "multihead view MODEL \"Who flew?\" \"The pilot flew.\" -o report.html\n"
                "multihead view MODEL --example cat --layer 0,2-3 --svg maps.svg --npy maps.npy\n"
                "multihead view MODEL --text-file letter.txt --json - | jq .tokens\n"
                "multihead view --attention maps.npy --tokens tokens.txt --cmap blues",
    .notes = "MODEL is a Hugging Face folder: config.json, model.safetensors, vocab.txt or\n"
             "tokenizer.json. A row is a query (looking), a column a key (looked at); each row\n"
             "sums to 1. Heads are counted from 0: L0H3 is the fourth head of the first layer.\n"
             "Data goes to stdout, messages to stderr; 'multihead help exit-codes' says how it\n"
             "ends. docs/program.md is the manual.",
    .options = option_table,
    .option_count = sizeof option_table / sizeof *option_table,
};

/* ------------------------------------------------------------------------------------------------
 * What fits together
 * --------------------------------------------------------------------------------------------- */

static cli_exit check_array_options(const view_options *options)
{
    if (!options->tokens)
        return cli_fail(CLI_USAGE, VIEW, "--attention needs --tokens FILE, which names its rows");
    if (options->model)
        return cli_fail(CLI_USAGE, VIEW,
                        "--attention takes weights from a file: '%s' is one argument too many",
                        options->model);
    if (options->example || options->text_file || options->truncate || options->max_tokens)
        return cli_fail(CLI_USAGE, VIEW,
                        "--attention goes without a text, and so without --text-file, "
                        "--example, --max-tokens and --truncate");
    return CLI_OK;
}

static cli_exit check_model_options(const view_options *options)
{
    int texts = options->texts.count + (options->example != NULL) + (options->text_file != NULL);
    if (options->tokens || options->key_tokens)
        return cli_fail(CLI_USAGE, VIEW, "--tokens and --key-tokens go with --attention FILE.npy");
    if (!options->model)
        return cli_fail(CLI_USAGE, VIEW,
                        "the model folder is missing: multihead view MODEL \"text\"");
    if (texts == 0)
        return cli_fail(CLI_USAGE, VIEW,
                        "the text is missing: multihead view %s \"text\", or "
                        "--example animal",
                        options->model);
    if (texts > 2)
        return cli_fail(CLI_USAGE, VIEW,
                        "%d texts, and 2 at most are possible; put quotes around each", texts);
    return CLI_OK;
}

static cli_exit check(const view_options *options)
{
    mha_range range;
    double lo, hi;
    cli_exit code =
        options->attention ? check_array_options(options) : check_model_options(options);
    if (code == CLI_OK && options->renormalise && options->hide.count == 0)
        code = cli_fail(CLI_USAGE, VIEW, "--renormalise goes with --hide");
    if (code == CLI_OK) code = view_check_range(options, &range, &lo, &hi);
    if (code == CLI_OK) code = view_check_outputs(options);
    return code;
}

/* ------------------------------------------------------------------------------------------------
 * The run
 * --------------------------------------------------------------------------------------------- */

static void say_what_next(const view_options *options, const maps_picks *picks)
{
    int64_t last = picks->layers - 1;
    if (options->html && strcmp(options->html, "-") != 0)
        cli_note(options->quiet, "next: open %s in a browser", options->html);
    else if (view_has_files(options) && !options->html)
        cli_note(options->quiet, "next: add -o report.html for an interactive report");
    else if (!view_has_files(options))
        cli_note(options->quiet,
                 "next: add --layer %" PRId64 " for a layer, --head L%" PRId64 "H0 for one head, "
                 "-o report.html for all %" PRId64 " heads in one file",
                 last, last, picks->layers * picks->heads);
}

static cli_exit view(const view_options *options)
{
    attention_maps maps = {0};
    maps_picks picks = {0};
    cli_exit code = options->attention ? view_array_maps(options, &maps, &picks)
                                       : view_model_maps(options, &maps, &picks);
    if (code == CLI_OK) view_warn_of_idle_names(options, &maps);
    if (code == CLI_OK) code = view_write_files(options, &maps, &picks);
    if (code == CLI_OK && (options->terminal || !view_has_files(options)))
        code = view_print(options, &maps, &picks);
    if (code == CLI_OK) code = cli_finish_stdout(VIEW, code);
    if (code == CLI_OK) say_what_next(options, &picks);
    maps_picks_free(&picks);
    maps_free(&maps);
    return code;
}

cli_exit cmd_view(int count, char *const *arguments)
{
    view_options options = {0};
    args_texts plain = {0};
    if (args_want_help(count, arguments)) {
        args_print_help(&page);
        return CLI_OK;
    }
    if (count == 0) return args_print_short_help(&page);
    cli_exit code = args_parse(&page, count, arguments, &options, &plain);
    if (code != CLI_OK) return code;
    options.model = plain.count > 0 ? plain.items[0] : NULL;
    for (int i = 1; i < plain.count; i++)
        options.texts.items[options.texts.count++] = plain.items[i];
    code = check(&options);
    return code == CLI_OK ? view(&options) : code;
}
