/* The default selection of heads. A terminal has no space for all heads of a model, so a few with
 * strong links are selected. */
#include "common/arena.h"
#include "view/view.h"

/* The panels of about three rows of maps, which roughly fit a screen. */
static int64_t panels_that_fit(int64_t cols, int64_t width)
{
    enum { LABELS = 12, BORDER = 3, GRID_ROWS = 3 };
    int64_t beside = (width - LABELS) / (cols + BORDER);
    return GRID_ROWS * (beside > 1 ? beside : 1);
}

/* The index of the selected head in `begin` .. `end` with the strongest link; -1: none. */
static int64_t strongest(const uint8_t *on, const mha_link *const *link, int64_t begin, int64_t end,
                         bool weakest)
{
    int64_t best = -1;
    for (int64_t i = begin; i < end; i++) {
        if (!on[i]) continue;
        if (best < 0 ||
            (weakest ? link[i]->score < link[best]->score : link[i]->score > link[best]->score))
            best = i;
    }
    return best;
}

cli_exit view_few(const mha_show *made, const mha_maps *all, int64_t width, mha_maps *few)
{
    const int64_t heads = all->layers * all->heads;
    const mha_link **link;
    int64_t panel = 0, count = 0;
    uint8_t *on;
    CLI_TRY(ARENA_ALLOC(heads, &on));
    CLI_TRY(ARENA_ALLOC(heads, &link));
    for (int64_t i = 0; i < heads; i++) link[i] = &made->links[all->on[i] ? panel++ : 0];
    for (int64_t l = 0; l < all->layers; l++) {
        const int64_t begin = l * all->heads, end = begin + all->heads;
        const int64_t best = strongest(all->on, link, begin, end, false);
        for (int64_t i = begin; i < end; i++) /* a single layer has all its heads */
            count += on[i] = all->on[i] && (all->layers == 1 || i == best);
    }
    for (; count > panels_that_fit(made->figure.cols, width); count--)
        on[strongest(on, link, 0, heads, true)] = 0;
    *few = *all;
    few->on = on;
    return CLI_OK;
}
