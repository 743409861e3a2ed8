/* Two texts of equal length, head by head: the weights in the first less those in the second. */
#include "common/arena.h"
#include "view/view.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The options of a run over the other text alone. */
static view_options other_options(const view_options *options)
{
    view_options other = *options;
    other.example = other.text_file = other.contrast = other.html = NULL; /* no twins */
    other.texts.count = 0;
    return other;
}

/* Where the tokens first part; -1: nowhere. */
static int64_t first_difference(const mha_tokens *a, const mha_tokens *b)
{
    const int64_t most = a->count < b->count ? a->count : b->count;
    for (int64_t i = 0; i < most; i++)
        if (strcmp(a->labels[i], b->labels[i]) != 0) return i;
    return -1;
}

static cli_exit check_lengths(const mha_tokens *a, const mha_tokens *b)
{
    const int64_t at = first_difference(a, b);
    if (a->count == b->count) return CLI_OK;
    if (at < 0)
        return cli_fail(CLI_BAD_INPUT, VIEW,
                        "--contrast: the text has %" PRId64 " tokens, the other %" PRId64
                        ", and the shorter one begins the longer: both must have the same number",
                        a->count, b->count);
    return cli_fail(CLI_BAD_INPUT, VIEW,
                    "--contrast: the text has %" PRId64 " tokens, the other %" PRId64
                    ": both must have the same number; they part at token %" PRId64
                    ", '%.40s' against '%.40s'",
                    a->count, b->count, at, a->labels[at], b->labels[at]);
}

/* "tired/wide" where the texts differ. */
static cli_exit label(attention_maps *maps, const mha_tokens *b)
{
    const mha_tokens *a = &maps->rows;
    CLI_TRY(ARENA_ALLOC(VIEW, a->count, &maps->shown));
    for (int64_t i = 0; i < a->count; i++) {
        const size_t bytes = strlen(a->labels[i]) + strlen(b->labels[i]) + 2;
        char *both;
        if (!strcmp(a->labels[i], b->labels[i])) continue;
        CLI_TRY(ARENA_ALLOC(VIEW, (int64_t)bytes, &both));
        snprintf(both, bytes, "%s/%s", a->labels[i], b->labels[i]);
        maps->shown[i] = both;
    }
    return CLI_OK;
}

static void subtract(attention_maps *maps, const attention_maps *other)
{
    const int64_t count = maps->heads * maps->rows.count * maps->cols.count;
    for (int64_t l = 0; l < maps->layers; l++)
        for (int64_t i = 0; maps->layer[l] && i < count; i++)
            maps->layer[l][i] -= other->layer[l][i];
}

/* Maps become differences, and keep the other's text and tokens. */
static cli_exit join(attention_maps *maps, const attention_maps *other)
{
    if (maps->cols.labels != maps->rows.labels)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "--contrast compares texts that look at themselves; give an "
                        "encoder-decoder's encoder");
    if (maps->cell > 1 || other->cell > 1)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "--contrast: so many heads of so long a text are kept in blocks of tokens, "
                        "which cannot be compared; choose heads with --layer and --head");
    CLI_TRY(check_lengths(&maps->rows, &other->rows));
    CLI_TRY(label(maps, &other->rows));
    if (first_difference(&maps->rows, &other->rows) < 0)
        cli_warn(VIEW, "--contrast: both texts have the same tokens, all differences are 0");
    subtract(maps, other);
    maps->contrast = true;
    maps->text[1] = other->text[0];
    maps->text_bytes[1] = other->text_bytes[0];
    maps->other = other->rows;
    return CLI_OK;
}

cli_exit view_contrast_maps(const view_options *options, text_model *model, attention_maps *maps)
{
    view_options again = other_options(options);
    attention_maps other = {0};
    again.texts.items[again.texts.count++] = options->contrast;
    CLI_TRY(view_model_maps(options, model, maps, NULL));
    CLI_TRY(view_model_maps(&again, model, &other, NULL));
    return join(maps, &other);
}
