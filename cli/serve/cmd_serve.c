/* multihead serve: a page where the user types a text and sees the attention of a model's heads. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/option_rows.h"
#include "common/screen.h"
#include "common/signals.h"
#include "common/text_model.h"
#include "serve/serve_socket.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct serve_options {
    const char *model, *text, *address;
    int64_t port, threads, max_tokens;
    int quiet;
} serve_options;

static const args_option option_table[] = {
    ROW_HEADING("Address"),
    ROW_TEXT("address", serve_options, address, "ADDRESS",
             "listen at this numeric address; the default,\n127.0.0.1, is reachable from this "
             "machine only"),
    ROW_NUMBER("port", serve_options, port, 0, 65535, "set the port; default: any free port"),
    ROW_HEADING("Other"),
    ROW_NUMBER("max-tokens", serve_options, max_tokens, 3, INT64_C(1) << 20,
               "reject longer texts; default: 4096 tokens, or the\nmodel's limit if lower"),
    ROW_THREADS(serve_options),
    ROW_QUIET(serve_options, "print no notes on stderr, only warnings and errors"),
    ROW_HELP,
};

const args_page serve_page = {
    .usage = "serve [options] MODEL [\"text\"]",
    .examples = "multihead serve MODEL\n"
                "multihead serve MODEL \"When Mary and John went out, John gave a drink to\"\n"
                "multihead serve MODEL --port 8000",
    .notes = "The address of the page is printed on stdout. It contains a random token, which\n"
             "every request needs. The page loads nothing from elsewhere. Ctrl-C or the button\n"
             "on the page ends the program. TEXT is the source of an encoder-decoder.\n"
             "docs/serve.md is the manual.",
    .takes = "MODEL [TEXT]",
    .spare = "put quotes around the text",
    ARGS_OPTIONS(option_table),
};

#ifdef CLI_HAS_SERVE

/* The page's address, with an initial text as a field of the state after the '#', which browsers do
 * not send to servers. */
static void print_address(const serve_site *site, const char *field, const char *text)
{
    cli_print("http://%s:%d/%s/", site->address, site->port, site->token);
    if (text) cli_print("#%s=", field);
    for (const char *c = text; c && *c; c++) {
        const bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') ||
                           (*c >= 'A' && *c <= 'Z') || (*c && strchr("-._~", *c));
        cli_print(plain ? "%c" : "%%%02x", (int)(unsigned char)*c);
    }
    cli_print("\n");
}

static cli_exit open_model(const serve_options *options, text_model *model)
{
    const bool progress = screen_shows_progress(options->quiet);
    if (progress) cli_print_to(stderr, "\r\033[Kloading %s", options->model);
    const cli_exit code = text_model_open(options->model, options->threads, false, model);
    if (progress) cli_print_to(stderr, "\r\033[K");
    CLI_TRY(code);
    if (options->max_tokens <= model->max_length) return CLI_OK;
    return cli_fail(CLI_USAGE, "--max-tokens %" PRId64 ": the model takes at most %" PRId64,
                    options->max_tokens, model->max_length);
}

/* Whether to stop the work for a request: a signal arrived, or the client disconnected. */
static bool is_over(void *user)
{
    (void)user;
    return signals_came() || serve_reader_left();
}

ARENA_RELEASE(forget, mha_live_destroy)

static cli_exit run(const serve_options *options)
{
    text_model model;
    serve_site site = {0};
    char words[512];
    CLI_TRY(open_model(options, &model));
    snprintf(words, sizeof words, "'multihead heads %.400s --words' lists them", options->model);
    const mha_live_options how = {.struct_size = sizeof how,
                                  .name = model.name,
                                  .folder = options->model,
                                  .max_tokens = options->max_tokens,
                                  .advise_words = words,
                                  .is_over = is_over};
    CLI_TRY(cli_check(mha_live_create(model.context, model.model, &how, &site.live)));
    CLI_TRY(arena_keep(site.live, forget));
    CLI_TRY(serve_listen(options->address, (int)options->port, &site));
    if (serve_is_open(&site))
        cli_warn("%s is reachable from other machines: anyone with the address below can read the "
                 "texts and use this machine; nothing is encrypted",
                 options->address);
    signals_hold();
    print_address(&site, model.encoder ? "source" : "text", options->text);
    cli_exit code = cli_finish_stdout(CLI_OK);
    cli_note(options->quiet, "open the address in a browser; Ctrl-C ends");
    if (code == CLI_OK) code = serve_until_end(&site);
    signals_release();
    return code;
}

#else

static cli_exit run(const serve_options *options)
{
    (void)options;
    return cli_fail(CLI_UNSUPPORTED,
                    "this program was built without libmicrohttpd (MHA_SERVE=OFF); install "
                    "libmicrohttpd-dev and build again");
}

#endif

cli_exit cmd_serve(int count, char *const *arguments)
{
    serve_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&serve_page, count, arguments, &options, &line));
    options.model = line.plain.items[0];
    options.text = line.plain.count > 1 ? line.plain.items[1] : NULL;
    return run(&options);
}
