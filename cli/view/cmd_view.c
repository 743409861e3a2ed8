/* multihead view: draw the attention of every head. The table below holds the options and their
 * help; view_*.c does the work. */
#include "common/commands.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/option_rows.h"
#include "view/view.h"
#include "view/view_ask.h"
#include "view/view_desk.h"

#include <multihead/io.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CMAP_NAME(name, value, text, is_signed) text,
#define SCALE_NAME(name, value, text) text,

static const char *const cmaps[] = {MHA_CMAP_LIST(CMAP_NAME) NULL};
static const char *const scales[] = {"auto", MHA_SCALE_LIST(SCALE_NAME) NULL}; /* 1 + mha_scale */
static const char *const values[] = {"auto", "always", "never", NULL};         /* mha_values */
static const char *const sorts[] = {"weight", "arrives", "effect", NULL};      /* ask_measure */
static const char *const whens[] = {"auto", "always", "never", NULL};          /* screen_color */

#define FLAG(letter, name, field, ...) ROW_FLAG(letter, name, view_options, field, __VA_ARGS__)
#define NUMBER(name, field, ...) ROW_NUMBER(name, view_options, field, __VA_ARGS__)
#define CHOICE(name, field, ...) ROW_CHOICE(name, view_options, field, __VA_ARGS__)
#define TEXT(name, field, ...) ROW_TEXT(name, view_options, field, __VA_ARGS__)

static const args_option option_table[] = {
    ROW_HEADING("Which heads"),
    ROW_TEXTS('l', "layer", view_options, layers, "LIST",
              "select layers, counted from 0: 3 or 0,2-4"),
    ROW_TEXTS(0, "head", view_options, heads, "LIST",
              "select heads, counted from 0: 3 or 0,2-4 of every\n"
              "selected layer, or with their layer: L4H11 or 4.11"),
    ROW_HEADING("Attention from one word to another"),
    TEXT("from", from, "WORD",
         "rank heads by their attention from this word, as\n"
         "written in the text; it:2 is the second \"it\"",
         .needs = "--to WORD", .excludes = "--attention --contrast"),
    TEXT("to", to, "WORD", "set the target word of that attention", .needs = "--from WORD"),
    CHOICE("sort", sort, sorts,
           "rank by weight (the default), by the norm of the\n"
           "weighted value, or by the effect of removing the head",
           .needs = "--from WORD"),
    ROW_HEADING("What heads write"),
    TEXT("desk", desk, "LAYER",
         "show what each head of a layer adds to the residual\n"
         "stream; files contain these vectors for each token",
         .excludes = "--attention --contrast --from --layer --head --hide",
         .why = "it shows all heads of its layer at all tokens of a text"),
    ROW_HEADING("Encoder-decoders, which take a source and a target"),
    FLAG(0, "self", self, 1,
         "show the decoder's self-attention, not its attention\n"
         "to the source; MODEL/encoder shows the encoder's",
         .excludes = "--attention --contrast --from --desk"),
    ROW_HEADING("Experts"),
    FLAG(0, "experts", experts, 1,
         "print the experts that each token uses, and their\n"
         "weights, instead of maps; files contain them anyway",
         .excludes = "--attention --contrast --from --desk --terminal"),
    ROW_HEADING("Output (may be combined; one FILE may be - for stdout)"),
    ROW_OUTPUT(view_options, html, "FILE.html", "write an interactive report in one file",
               .ending = ".html"),
    FLAG(0, "neurons", neurons, 1,
         "with -o: include queries and keys for the neuron view;\n"
         "exact if they fit in a quarter of the file, otherwise\n"
         "in 16 or 8 bits",
         .needs = "--output FILE.html", .excludes = "--attention --contrast --desk"),
    TEXT("svg", svg, "FILE", "write a vector image for print or a web page", .ending = ".svg"),
    TEXT("png", png, "FILE", "write a bitmap image", .ending = ".png"),
    TEXT("pdf", pdf, "FILE", "write a PDF page with embedded fonts, for papers", .ending = ".pdf"),
    TEXT("json", json, "FILE", "write tokens and all weights as JSON", .ending = ".json"),
    TEXT("npy", npy, "FILE",
         "write the weights as a float32 NumPy array [layers,\nheads, tokens, tokens]; requires "
         "the same heads in\neach layer",
         .ending = ".npy"),
    FLAG(0, "terminal", terminal, 1, "draw in the terminal as well as to files"),
    ROW_HEADING("The text"),
    TEXT("contrast", contrast, "TEXT",
         "draw the weights minus those in this text, which\n"
         "must have the same number of tokens",
         .excludes = "--attention --renormalise"),
    TEXT("text-file", text_file, "FILE", "read the text from FILE; - is stdin"),
    TEXT("example", example, "NAME",
         "use a built-in sentence: animal, bank, cat, river,\npilot, or 1 to 5"),
    NUMBER("max-tokens", max_tokens, 3, INT64_C(1) << 40,
           "reject longer texts; default: the model's limit"),
    FLAG(0, "truncate", truncate, 1, "truncate longer texts instead, and report by how much"),
    ROW_HEADING("An image instead of a text"),
    TEXT("image", image, "FILE",
         "read a PNG or JPEG file, for a vision transformer;\n"
         "maps are drawn over the image",
         .excludes = "--attention --contrast --from --desk --neurons --hide --experts --text-file "
                     "--example --max-tokens --truncate"),
    TEXT("query", query, "TOKEN",
         "draw the weights of this token: CLS (default), REG0 or\n"
         "ROW,COLUMN of a patch; mean: of all patches (default\n"
         "without CLS). The report has all",
         .needs = "--image FILE"),
    ROW_HEADING("Audio, for Whisper"),
    TEXT("audio", audio, "FILE.wav",
         "read up to 30 s (mono, 16 kHz); maps are those of the\ndecoder's text on the audio, with "
         "--self on "
         "itself,\nand of MODEL/encoder the encoder's. Without a text it\nis transcribed",
         .excludes = "--attention --contrast --from --desk --neurons --experts --image --text-file "
                     "--example --max-tokens --truncate"),
    ROW_HEADING("Weights from an array, without a model"),
    TEXT("attention", attention, "FILE.npy",
         "read weights of shape [T,S], [H,T,S] or [L,H,T,S],\nfloat16, 32 or 64",
         .needs = "--tokens FILE", .excludes = "--text-file --example --max-tokens --truncate",
         .why = "an array takes no text"),
    TEXT("tokens", tokens, "FILE", "read T tokens, one per line or as a JSON list (.json)",
         .needs = "--attention FILE.npy"),
    TEXT("key-tokens", key_tokens, "FILE", "read S tokens, if columns and rows differ",
         .needs = "--attention FILE.npy"),
    ROW_HEADING("Drawing (pictures, the report, the terminal)"),
    CHOICE("cmap", cmap, cmaps, "select the colour map; default viridis"),
    TEXT("range", range, "RANGE",
         "set the range of the colours: shared (by all heads;\nthe default), head (per head) or "
         "LO:HI"),
    CHOICE("scale", scale, scales,
           "map weights to colours; sqrt and log emphasise small\nweights; auto (the default) is "
           "linear, or sqrt beyond\n64 tokens"),
    ROW_TEXTS(0, "hide", view_options, hide, "LIST",
              "omit tokens from the picture and report their weight:\n"
              "special, or tokens by name; may be repeated. --json\n"
              "and --npy keep all tokens"),
    FLAG(0, "renormalise", renormalise, 1, "with --hide: make rows sum to 1 again",
         .needs = "--hide LIST"),
    CHOICE("values", values, values, "print numbers in the cells; default auto: in small\nmaps"),
    FLAG(0, "dark", paper, PAPER_DARK,
         "draw for a dark background; in the terminal, the\n"
         "default follows COLORFGBG, else dark"),
    FLAG(0, "light", paper, PAPER_LIGHT, "draw for a light background; the default for files"),
    CHOICE("color", screen.color, whens,
           "use colours in the terminal; NO_COLOR, TERM=dumb,\n"
           "CLICOLOR_FORCE and FORCE_COLOR apply to auto"),
    NUMBER("width", screen.width, 20, 10000, "set the terminal width in columns"),
    FLAG(0, "ascii", screen.ascii, 1, "use only ASCII in the terminal"),
    ROW_HEADING("Other"),
    ROW_THREADS(view_options),
    ROW_QUIET(view_options, "print no notes on stderr, only warnings and errors"),
    ROW_HELP,
};

const args_page view_page = {
    .usage = "view [options] MODEL \"text\" [\"second text\"]\n"
             "view [options] --image FILE MODEL\n"
             "view [options] --audio FILE MODEL [\"text\"]\n"
             "view [options] --attention MAPS.npy --tokens FILE",
    .examples = "multihead view MODEL \"The cat sat on the mat\"\n"
                "multihead view MODEL --example animal --head L3H7\n"
                "multihead view MODEL \"Who flew?\" \"The pilot flew.\" -o report.html\n"
                "multihead view MODEL --example cat --layer 0,2-3 --svg maps.svg --npy maps.npy\n"
                "multihead view MODEL \"It was too tired.\" --contrast \"It was too wide.\"\n"
                "multihead view MODEL --example animal --from it --to animal\n"
                "multihead view MODEL --text-file letter.txt --json - | jq .tokens\n"
                "multihead view VIT --image photo.jpg --layer 11 -o maps.html\n"
                "multihead view WHISPER --audio talk.wav -o maps.html\n"
                "multihead view --attention maps.npy --tokens tokens.txt --cmap blues",
    .notes = "MODEL is a Hugging Face folder (config.json, model.safetensors, vocab.txt or\n"
             "tokenizer.json), a GGUF file, or a folder written by 'multihead train -o'. Rows\n"
             "are queries, columns are keys, and each row sums to 1. Heads count from 0: L0H3\n"
             "is the fourth head of the first layer. Files show all heads. The terminal shows\n"
             "one head per layer: the most focused one. Focus is the largest weight on another\n"
             "text token, averaged over the rows of text tokens. With --contrast, the terminal\n"
             "shows the head whose rows change most.\n"
             "\n"
             "With --contrast, red marks more attention in the first text, blue less. Files\n"
             "are written atomically. 'multihead help exit-codes' lists the exit codes. On\n"
             "several ranks (mpirun), each rank holds the weights of some layers.\n"
             "docs/program.md has the formats, docs/report.md the HTML report.",
    ARGS_OPTIONS(option_table),
};

/* ---- Check which options can be combined. ---------------------------------------------------- */

static cli_exit check_texts(const view_options *options)
{
    const int texts =
        options->texts.count + (options->example != NULL) + (options->text_file != NULL);
    const char *of_one = options->contrast ? "contrast"
                         : options->from   ? "from"
                         : options->desk   ? "desk"
                                           : NULL;
    if (!options->model || !*options->model)
        return cli_fail(CLI_USAGE, "MODEL is missing: multihead view MODEL \"text\"");
    if (options->image && texts > 0)
        return cli_fail(CLI_USAGE, "--image takes no text: omit '%s'", options->texts.items[0]);
    if (options->image) return CLI_OK;
    if (options->audio && texts > 1)
        return cli_fail(CLI_USAGE, "--audio takes one text; omit '%s'", options->texts.items[1]);
    if (options->audio) return CLI_OK;
    if (texts == 0)
        return cli_fail(CLI_USAGE,
                        "the text is missing: multihead view %s \"text\", or --example animal; "
                        "for an image or audio, give --image FILE or --audio FILE",
                        options->model);
    if (texts > 2)
        return cli_fail(CLI_USAGE, "%d texts given, at most 2 are accepted; put quotes around each",
                        texts);
    if (texts > 1 && of_one)
        return cli_fail(CLI_USAGE, "--%s takes one text; omit the second", of_one);
    return CLI_OK;
}

static cli_exit check(const view_options *options, const args_line *line)
{
    mha_range range;
    double lo, hi;
    CLI_TRY(args_check(&view_page, line));
    if (options->attention && options->model)
        return cli_fail(CLI_USAGE,
                        "--attention takes weights from a file: '%s' is one argument too many",
                        options->model);
    if (!options->attention) CLI_TRY(check_texts(options));
    const size_t bytes = options->contrast ? strlen(options->contrast) : 0,
                 valid = bytes ? mha_utf8_span(options->contrast, bytes, NULL) : 0;
    if (valid < bytes)
        return cli_fail(CLI_BAD_INPUT, "--contrast: byte %zu is not valid UTF-8; type it as UTF-8",
                        valid);
    CLI_TRY(view_check_range(options, &range, &lo, &hi));
    return view_check_outputs(options);
}

/* ---- The run --------------------------------------------------------------------------------- */

static void say_what_next(const view_options *options, const mha_maps *maps)
{
    int64_t last = maps->layers - 1;
    if (options->html && strcmp(options->html, "-") != 0)
        cli_note(options->quiet, "next: open %s in a browser", options->html);
    else if (view_has_files(options) && !options->html)
        cli_note(options->quiet, "next: add -o report.html for an interactive report");
    else if (!view_has_files(options) && !options->experts)
        cli_note(options->quiet,
                 "next: add --layer %" PRId64 " for a layer, --head L%" PRId64 "H0 for one head, "
                 "-o report.html for all %" PRId64 " heads in one file",
                 last, last, maps->layers * maps->heads);
}

static mha_status draw_answer(const void *user, const mha_sink *sink)
{
    return view_ask_write_json(user, sink);
}

/* Write the files of a question: its own JSON, and otherwise the files of maps. */
static cli_exit write_answer(const view_options *options, text_model *model, const view_ask *found)
{
    mha_maps *maps;
    view_options drawn = *options;
    CLI_TRY(maps_new(&maps));
    maps->text[0] = found->source.text[0];
    maps->text_bytes[0] = found->source.text_bytes[0];
    drawn.json = NULL;
    drawn.ask = found;
    const bool has_maps = view_has_files(&drawn);
    if (has_maps) { /* before writing files, because --npy may be impossible */
        CLI_TRY(view_model_maps(&drawn, model, maps, NULL));
        CLI_TRY(view_check_picks(&drawn, maps));
    }
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    if (options->json) {
        CLI_TRY(cli_check(files_draw(options->json, draw_answer, found)));
        if (strcmp(options->json, "-") != 0)
            cli_note(options->quiet, "wrote %s: %" PRId64 " heads", options->json,
                     found->answer->count);
    }
    if (!has_maps) return CLI_OK;
    if (found->answer->count > 0) drawn.first_panel = found->answer->order[options->sort][0];
    drawn.first_cell = true;
    drawn.first_row = found->from.at.first + found->from.at.count - 1;
    drawn.first_col = found->to.at.first;
    text_model_close(model);
    view_warn_of_idle_names(&drawn, maps);
    return view_write_files(&drawn, maps);
}

static cli_exit ask(const view_options *options)
{
    text_model model = {0};
    view_ask found;
    CLI_TRY(view_ask_measure(options, &model, &found));
    CLI_TRY(write_answer(options, &model, &found));
    if (!ranks_first()) return CLI_OK;
    if (options->terminal || !view_has_files(options)) CLI_TRY(view_ask_print(options, &found));
    CLI_TRY(cli_finish_stdout(CLI_OK));
    if (!view_has_files(options))
        cli_note(options->quiet, "next: add -o report.html for the maps and this table in one "
                                 "file, or --sort effect for another order");
    return CLI_OK;
}

cli_exit view_finish(const view_options *options, const mha_maps *maps)
{
    view_warn_of_idle_names(options, maps);
    CLI_TRY(view_check_experts(options, maps));
    CLI_TRY(view_write_files(options, maps));
    const bool prints = options->terminal || !view_has_files(options);
    if (options->experts)
        CLI_TRY(view_print_experts(options, maps));
    else if (prints)
        CLI_TRY(view_print(options, maps));
    CLI_TRY(cli_finish_stdout(CLI_OK));
    say_what_next(options, maps);
    return CLI_OK;
}

static cli_exit view(const view_options *options)
{
    mha_maps *maps;
    mha_cards *cards = NULL;
    text_model model = {0};
    view_options drawn = *options;
    if (options->image) return view_image(options);
    if (options->audio) return view_audio(options);
    CLI_TRY(maps_new(&maps));
    CLI_TRY(options->attention  ? view_array_maps(options, maps)
            : options->contrast ? view_contrast_maps(options, &model, maps)
                                : view_model_maps(options, &model, maps, &cards));
    drawn.cards = cards;
    drawn.first_panel = -1;
    text_model_close(&model);
    ranks_release();
    return ranks_first() ? view_finish(&drawn, maps) : CLI_OK;
}

cli_exit cmd_view(int count, char *const *arguments)
{
    view_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&view_page, count, arguments, &options, &line));
    options.model = line.plain.count > 0 ? line.plain.items[0] : NULL;
    for (int i = 1; i < line.plain.count; i++)
        options.texts.items[options.texts.count++] = line.plain.items[i];
    CLI_TRY(check(&options, &line));
    return options.desk ? view_desk(&options) : options.from ? ask(&options) : view(&options);
}
