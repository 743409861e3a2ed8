/* The texts of an encoder-decoder: a source and its target, separated by a tab. */
#include "common/arena.h"
#include "common/progress.h"
#include "common/words.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <string.h>

cli_exit heads_pairs_check(const heads_options *o, const text_model *model)
{
    if (!model->encoder)
        return !o->self
                   ? CLI_OK
                   : cli_fail(CLI_USAGE, "--self: %s is no encoder-decoder; omit it", o->model);
    if (o->images.count > 0)
        return cli_fail(CLI_UNSUPPORTED, "%s: the model reads texts, not images; omit --image",
                        o->model);
    const char *lacks = o->conllu                       ? "conllu"
                        : o->whole                      ? "whole"
                        : o->cut > 0                    ? "cut"
                        : o->state                      ? "state"
                        : o->spread                     ? "spread"
                        : o->headvis                    ? "headvis"
                        : o->pictures                   ? "pictures"
                        : o->clusters.given && !o->self ? "clusters"
                        : o->drawn && o->random > 0     ? "random"
                                                        : NULL;
    if (lacks)
        return cli_fail(CLI_UNSUPPORTED,
                        "--%s is not available for the heads of an encoder-decoder; omit it, or "
                        "measure its encoder alone: %s/encoder",
                        lacks, o->model);
    if (o->named) return CLI_OK;
    return cli_fail(CLI_USAGE,
                    "%s is an encoder-decoder: give --text FILE, with a source, a tab and a target "
                    "in each line; the model writes targets that are missing",
                    o->model);
}

const char *heads_attention(const heads_found *found)
{
    return !found->model->encoder ? NULL
           : found->cross         ? "cross-attention"
                                  : "decoder self-attention";
}

static bool is_empty(const char *text, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && strchr(" \r", text[i]) && text[i]) i++;
    return i == bytes;
}

static cli_exit split(text_model *model, heads_source *s)
{
    const char *tab = memchr(s->text, '\t', s->bytes);
    if (!tab) return CLI_OK;
    s->target = tab + 1;
    s->target_bytes = s->bytes - (size_t)(tab + 1 - s->text);
    s->bytes = (size_t)(tab - s->text);
    if (memchr(s->target, '\t', s->target_bytes)) {
        text_model_where(model, s->file, s->line);
        return cli_fail(CLI_BAD_INPUT, "%smore than one tab; expected a source, a tab and a target",
                        model->where);
    }
    if (is_empty(s->target, s->target_bytes)) s->target = NULL;
    return CLI_OK;
}

ARENA_RELEASE(free_made, mha_tokens_free)

static cli_exit translate(const heads_options *options, text_model *model, heads_source *s)
{
    const text_limits limits = {.most = options->max_tokens, .truncate = options->truncate};
    mha_tokens *source;
    const size_t mark = arena_mark();
    mha_tokens made = {.struct_size = sizeof made};
    text_model_where(model, s->file, s->line);
    CLI_TRY(text_model_encode_source(model, &limits, s->text, s->bytes, &source));
    const mha_status status =
        mha_tokens_generate(model->context, model->model, source, options->max_tokens, &made);
    arena_release(mark);
    CLI_TRY(cli_check(status));
    CLI_TRY(ARENA_ALLOC(1, &s->made));
    *s->made = made;
    return arena_keep(s->made, free_made);
}

cli_exit heads_pairs_read(const heads_options *options, text_model *model, heads_sources *sources)
{
    if (!model->encoder) return CLI_OK;
    progress shown = progress_begin(options->quiet);
    for (int64_t i = 0; i < sources->count; i++) {
        heads_source *s = &sources->items[i];
        CLI_TRY(split(model, s));
        if (s->target) continue;
        progress_show(&shown, (double)i / (double)sources->count,
                      "writing target %" PRId64 " of %" PRId64, i + 1, sources->count);
        CLI_TRY(translate(options, model, s));
        sources->made++;
    }
    progress_clear(&shown);
    cli_note(options->quiet || sources->made == 0,
             "%" PRId64 " of %" PRId64 " text%s without a target: measured with what the model "
             "writes (the most likely tokens)",
             sources->made, sources->count, words_s(sources->count));
    return CLI_OK;
}
