/* Requests of a live page become answers: the text as tokens, a trial of the model, what follows from it. */
#include "show/live.h"

#include <multihead/component.h>
#include <multihead/json.h>
#include <multihead/render_live.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_TOKENS = 4096 };

/* ---- what is asked ---------------------------------------------------------------------------- */

static mha_status read_text(const mha_live *live, const char *text, size_t bytes,
                            mha_tokens *tokens)
{
    const mha_tokens_options options = {.struct_size = sizeof options,
                                        .max_tokens = live->options.max_tokens,
                                        .advise_words = live->options.advise_words};
    *tokens = (mha_tokens){.struct_size = sizeof *tokens};
    MHA_TRY(mha_tokens_read(live->model, &options, text, bytes, NULL, 0, tokens));
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokens->sequence[i] == 0) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT, "the text is empty; give at least one word");
}

static mha_status make_trial(mhai_live_asked *a)
{
    const mhai_live_request *r = &a->request;
    MHA_TRY(read_text(a->live, r->text, r->text_bytes, &a->tokens));
    a->trial = (mha_trial){.struct_size = sizeof a->trial,
                           .flags = r->at_last ? MHA_TRIAL_AT_LAST : 0,
                           .tokens = a->tokens.ids,
                           .types = a->tokens.types,
                           .count = a->tokens.count,
                           .off = r->off.items,
                           .off_count = r->off.count,
                           .patched = r->patched.items,
                           .patched_count = r->patched.count};
    if (r->patched.count == 0) return MHA_OK;
    MHA_TRY(read_text(a->live, r->other, r->other_bytes, &a->other));
    a->trial.other = a->other.ids;
    a->trial.other_types = a->other.types;
    a->trial.other_count = a->other.count;
    return MHA_OK;
}

/* ---- look ------------------------------------------------------------------------------------- */

void mhai_live_print(mhai_live_asked *a, const char *format, ...)
{
    char piece[256];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    if (a->status == MHA_OK) a->status = a->sink->write(a->sink->user, piece, (size_t)length);
}
