/* Copying, matching, singular values, and the tokens at both ends of the leading directions, from the
 * weights alone (docs/circuits.md). */
#include "circuits/circuits.h"
#include "common/arena.h"
#include "common/progress.h"

#include <stdio.h>
#include <string.h>

#ifdef CLI_HAS_CIRCUITS
#include <multihead/circuits.h>
#endif

enum { DIRECTIONS = 2, SIDES = CIRCUITS_SIDES };
#ifdef CLI_HAS_CIRCUITS
typedef struct circuits_work {
    const heads_found *found;
    circuits *circuits;
    progress shown;
    uint8_t *chosen;       /* [layers, heads] */
    float *vectors[SIDES]; /* [layers, heads, directions, width] */
    const char *what;
    int side, sides; /* for progress: the current side, and the number of sides */
} circuits_work;

static mha_status show_progress(int64_t done, int64_t total, void *user)
{
    circuits_work *w = user;
    progress_show(&w->shown, (w->side + (double)done / (double)total) / w->sides, "%s", w->what);
    return MHA_OK;
}

static cli_exit decompose(circuits_work *w)
{
    circuits *c = w->circuits;
    const mha_circuits_desc desc = {.struct_size = sizeof desc,
                                    .flags = MHA_CIRCUITS_NORMED_TOKENS,
                                    .first_offset = c->first,
                                    .last_offset = c->last,
                                    .directions = c->directions,
                                    .heads = w->chosen,
                                    .progress = show_progress,
                                    .progress_user = w};
    const mha_circuits out = {.struct_size = sizeof out,
                              .qk_values = c->values[0],
                              .ov_values = c->values[1],
                              .queries = w->vectors[0],
                              .keys = w->vectors[1],
                              .reads = w->vectors[2],
                              .writes = w->vectors[3],
                              .copying = c->copying,
                              .matching = c->matching};
    w->what = "circuits of heads", w->sides = 1;
    return cli_check(
        mha_transformer_circuits(w->found->model->context, w->found->model->net, &desc, &out));
}

/* Pack the chosen heads' vectors in place: they only move to lower addresses. */
static void gather(circuits_work *w, float *vectors)
{
    const int64_t size = w->circuits->directions * w->found->model->desc.embed_dim;
    for (int64_t i = 0; i < w->found->of.layers * w->circuits->heads; i++)
        if (w->circuits->row_of[i] >= 0)
            memmove(vectors + w->circuits->row_of[i] * size, vectors + i * size,
                    (size_t)size * sizeof *vectors);
}

static cli_exit list_tokens(circuits_work *w, int side)
{
    circuits *c = w->circuits;
    const int64_t listed = w->circuits->count * c->directions * CIRCUITS_ENDS * c->tokens;
    const mha_direction_desc desc = {.struct_size = sizeof desc,
                                     .flags = MHA_CIRCUITS_NORMED_TOKENS,
                                     .side = side == 3 ? MHA_SIDE_UNEMBEDDING : MHA_SIDE_EMBEDDING,
                                     .count = w->circuits->count * c->directions,
                                     .most = c->tokens,
                                     .progress = show_progress,
                                     .progress_user = w};
    CLI_TRY(ARENA_ALLOC(listed, &c->ids[side]));
    CLI_TRY(ARENA_ALLOC(listed, &c->scores[side]));
    gather(w, w->vectors[side]);
    w->what = "tokens at the ends of directions", w->side = side, w->sides = SIDES;
    return cli_check(mha_direction_tokens(w->found->model->context, w->found->model->net, &desc,
                                          w->vectors[side], c->ids[side], c->scores[side]));
}

static cli_exit work(circuits_work *w)
{
    circuits *c = w->circuits;
    const int64_t all = w->found->of.layers * c->heads, width = w->found->model->desc.embed_dim;
    CLI_TRY(ARENA_ALLOC(all, &w->chosen));
    CLI_TRY(ARENA_ALLOC(all, &c->row_of));
    CLI_TRY(ARENA_ALLOC(all, &c->copying));
    CLI_TRY(ARENA_ALLOC(all, &c->matching));
    for (int i = 0; i < 2; i++) CLI_TRY(ARENA_ALLOC(all * c->size, &c->values[i]));
    for (int side = 0; side < SIDES; side++)
        CLI_TRY(ARENA_ALLOC(all * c->directions * width, &w->vectors[side]));
    for (int64_t i = 0; i < w->circuits->count; i++)
        w->chosen[c->rows[i].layer * c->heads + c->rows[i].head] = 1;
    for (int64_t i = 0, next = 0; i < all; i++) c->row_of[i] = w->chosen[i] ? next++ : -1;
    CLI_TRY(decompose(w));
    progress_restart(&w->shown);
    for (int side = 0; side < SIDES; side++) CLI_TRY(list_tokens(w, side));
    for (int side = 0; side < SIDES; side++) arena_drop(w->vectors[side]);
    return CLI_OK;
}
#endif

cli_exit circuits_decompose(circuits *c)
{
#ifdef CLI_HAS_CIRCUITS
    const mha_transformer_desc *d = &c->found->model->desc;
    const int64_t rank = d->head_dim < d->embed_dim ? d->head_dim : d->embed_dim;
    if (c->found->of.layers * d->num_heads > INT32_MAX / (DIRECTIONS * d->embed_dim))
        return cli_fail(CLI_UNSUPPORTED, "too many heads of this width");
    c->heads = d->num_heads, c->size = d->head_dim;
    c->directions = rank < DIRECTIONS ? rank : DIRECTIONS;
    c->tokens = d->vocab_size < CIRCUITS_TOKENS ? d->vocab_size : CIRCUITS_TOKENS;
    if (d->positions == MHA_ENCODING_ROTARY)
        c->first = c->options->offsets[0], c->last = c->options->offsets[1];
    circuits_work w = {
        .found = c->found, .circuits = c, .shown = progress_begin(c->options->heads.quiet)};
    const cli_exit status = work(&w);
    progress_clear(&w.shown);
    c->decomposed = true;
    return status;
#else
    if (c->options->composition && !c->options->heads.sort) return CLI_OK; /* needs no LAPACK */
    return cli_fail(
        CLI_UNSUPPORTED,
        "this program was built without LAPACK; build it with cmake -DMHA_CIRCUITS=ON, or "
        "use --composition, which needs none");
#endif
}

cli_exit circuits_offsets(const char *text, int64_t offsets[2])
{
    long long first = 0, last = 0;
    int end = 0;
    const int got = sscanf(text, "%9lld%n-%9lld%n", &first, &end, &last, &end);
    if (got == 1) last = first;
    if (got < 1 || text[end] || first < 0 || last < first || last - first >= 1 << 20)
        return cli_fail(CLI_USAGE,
                        "--offset %s: expected a distance in tokens or a range, such as 1 or 0-63",
                        text);
    offsets[0] = first, offsets[1] = last;
    return CLI_OK;
}
