/* See heads_state.h. */
#include "heads/heads_state.h"

#include "common/files.h"
#include "common/launched.h"
#include "common/signals.h"
#include "common/texts.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_EVERY = 60 };

/* Whether the file begins like a state. Files of other kinds, of any size, are not read further. */
static bool begins(const char *path)
{
    static const char magic[] = "MUNHEADS"; /* src/study/study_state.c */
    char first[sizeof magic] = "";
    FILE *file = fopen(path, "rb");
    if (!file) return true; /* the reader reports the error */
    const size_t got = fread(first, 1, sizeof magic - 1, file);
    fclose(file);
    return got == sizeof magic - 1 && strcmp(first, magic) == 0;
}

cli_exit heads_state_begin(const heads_options *options, const text_model *model,
                           heads_state *state)
{
    struct stat status;
    char *bytes = NULL;
    const double every = options->save_every < 0 ? DEFAULT_EVERY : (double)options->save_every;
    *state = (heads_state){
        .path = ranks_first() ? options->state : NULL,
        .due = seconds_now() + every,
        .kept = -1,
        .of = {.struct_size = sizeof state->of, .name = options->state, .every = every}};
    if (!state->path) return CLI_OK;
    CLI_TRY(cli_check(mha_model_digest(model->context, options->model, MHA_MODEL_NO_TOKENIZER,
                                       &state->of.model)));
    if (stat(state->path, &status) != 0 || status.st_size == 0) return CLI_OK;
    if (!begins(state->path))
        return cli_fail(CLI_BAD_INPUT,
                        "%s: is not a state of measured heads; remove it to start over",
                        state->path);
    /* Texts are limited, but a state is not: with 1,000 heads it has about 400 MB. */
    CLI_TRY(texts_read_regular(state->path, PTRDIFF_MAX, &bytes, &state->of.size));
    state->of.bytes = bytes;
    return CLI_OK;
}

static mha_status draw(const void *user, const mha_sink *sink)
{
    return mha_study_write(user, sink);
}

static int64_t done(const heads_state *state)
{
    const mha_study_found *found = mha_study_results(state->study);
    return found->text_count + found->random_count;
}

static mha_status save(heads_state *state)
{
    signals_hold(); /* held until the file ends: it contains every measurement */
    const mha_status status = files_draw(state->path, draw, state->study);
    signals_release();
    state->due = seconds_now() + state->of.every;
    if (status == MHA_OK) state->kept = done(state);
    return status;
}

void heads_state_save_if_due(heads_state *state)
{
    if (!state->path || seconds_now() < state->due || done(state) == state->kept) return;
    if (save(state) != MHA_OK) cli_warn("%s; measuring continues", mha_error_detail());
}

cli_exit heads_state_end(heads_state *state)
{
    if (!state->path || done(state) == state->kept) return CLI_OK;
    return cli_check(save(state));
}
