/* What to show where nothing was chosen: 72 heads do not fit a terminal, a few telling ones do. */
#include "common/arena.h"
#include "view/view.h"
#include "view/view_roles.h"

#include <math.h>

bool view_cell_tells(const attention_maps *maps, int64_t row, int64_t col)
{
    const bool same = maps->rows.items == maps->cols.items;
    const int64_t first = same && maps->causal && maps->cols.count > 1;
    return row >= first && col >= first && !(same && row == col) &&
           !maps->rows.items[row].special && !maps->cols.items[col].special;
}

/* How sharply a head looks at other tokens: the mean, over rows of tokens that stand for text, of
 * the largest weight on another such token (Voita et al. 2019 call it confidence). The first token
 * of a causal model does not count: most heads rest on it when they have nothing to do (Xiao et al.
 * 2024, attention sinks). Of a contrast, the largest change, in rows of tokens that both texts have.
 */
static double sharpness(const attention_maps *maps, int64_t layer, int64_t head)
{
    int64_t rows = maps->rows.count, cols = maps->cols.count, counted = 0;
    const float *map = maps->layer[layer] + head * rows * cols;
    const bool same = maps->rows.items == maps->cols.items;
    double sum = 0;
    for (int64_t t = same && maps->causal && cols > 1; t < rows; t++) {
        if (maps->rows.items[t].special || (maps->contrast && maps->rows.items[t].label)) continue;
        double most = 0;
        for (int64_t s = 0; s < cols; s++)
            if (view_cell_tells(maps, t, s) && fabs((double)map[t * cols + s]) > most)
                most = fabs((double)map[t * cols + s]);
        sum += most;
        counted++;
    }
    return counted > 0 ? sum / (double)counted : 0;
}

int64_t view_first_panel(const attention_maps *maps, const maps_picks *picks,
                         const view_roles *roles)
{
    int64_t panel = 0, found = 0;
    bool telling = false;
    double most = -1;
    for (int64_t i = 0; i < picks->layers * picks->heads; i++) {
        if (!picks->on[i]) continue;
        const int64_t layer = i / picks->heads, head = i % picks->heads;
        const bool tells = view_roles_tell(roles, layer, head);
        const double sharp = sharpness(maps, layer, head);
        if (tells == telling ? sharp > most : tells) {
            found = panel;
            telling = tells;
            most = sharp;
        }
        panel++;
    }
    return found;
}

/* The best head of a layer among those that are on; -1 if none is. */
static int64_t best_head(const attention_maps *maps, const maps_picks *all, int64_t layer,
                         double *value)
{
    int64_t best = -1;
    for (int64_t h = 0; h < maps->heads; h++) {
        if (!all->on[layer * maps->heads + h]) continue;
        double sharp = sharpness(maps, layer, h);
        if (best >= 0 && sharp <= *value) continue;
        best = h;
        *value = sharp;
    }
    return best;
}

/* About three grid rows of maps: what a reader takes in without scrolling far. */
static int64_t panels_that_fit(int64_t cols, int64_t width)
{
    enum { LABELS = 12, BORDER = 3, GRID_ROWS = 3 };
    int64_t beside = (width - LABELS) / (cols + BORDER);
    return GRID_ROWS * (beside > 1 ? beside : 1);
}

/* Turn heads off until `most` are left, the least sharp first. */
static void keep_best(maps_picks *picks, const double *value, int64_t most)
{
    while (picks->count > most) {
        int64_t worst = -1;
        for (int64_t i = 0; i < picks->layers * picks->heads; i++)
            if (picks->on[i] && (worst < 0 || value[i] < value[worst])) worst = i;
        picks->on[worst] = 0;
        picks->count--;
    }
}

cli_exit view_sharpest(const char *command, const attention_maps *maps, const maps_picks *all,
                       int64_t width, maps_picks *picks)
{
    int64_t heads = maps->layers * maps->heads;
    double *value;
    *picks = (maps_picks){.layers = maps->layers, .heads = maps->heads};
    CLI_TRY(ARENA_ALLOC(command, heads, &picks->on));
    CLI_TRY(ARENA_ALLOC(command, heads, &value));
    for (int64_t l = 0; l < maps->layers; l++) {
        double best = 0;
        int64_t head = best_head(maps, all, l, &best);
        for (int64_t h = 0; h < maps->heads; h++) {
            int64_t i = l * maps->heads + h;
            /* One head of each layer; of a single layer, all. */
            if (!all->on[i] || (maps->layers > 1 && h != head)) continue;
            value[i] = maps->layers > 1 ? best : sharpness(maps, l, h);
            picks->on[i] = 1;
            picks->count++;
        }
    }
    keep_best(picks, value, panels_that_fit(maps->cols.count, width));
    return CLI_OK;
}
