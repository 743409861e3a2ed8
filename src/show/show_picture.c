/* Maps of an image: a figure of one query over the picture, and a page of all. */
#include "show/show.h"

#include <multihead/attribution.h>
#include <multihead/component.h>
#include <multihead/grid.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define GRID_COUNT(name, text) +1
enum { MEASURES = 0 MHA_GRID_MEASURE_LIST(GRID_COUNT), TEXT_BYTES = 64, NOTE_BYTES = 64 };

typedef struct maker {
    mha_context *context;
    const mha_show_options *options;
    const mha_maps *maps;
    const mha_picture *picture;
    mha_room *room;
    mha_grid grid;
    int64_t tokens, query, count;
    mha_panel *panels;
    mha_picture_map *drawn;
    const char **groups;
    int64_t group_count;
} maker;

static mha_status text(const maker *m, char **to)
{
    return mha_room_alloc(m->room, TEXT_BYTES, 1, to);
}

/* ---- the figure ------------------------------------------------------------------------------ */

/* The mean over patches of a map's rows. */
static mha_status mean_row(const maker *m, const float *map, const float **row)
{
    const int64_t first = m->grid.first;
    float *to;
    MHA_TRY(MHA_ROOM_ALLOC(m->room, m->tokens, &to));
    for (int64_t k = 0; k < m->tokens; k++) {
        double sum = 0;
        for (int64_t q = first; q < m->tokens; q++) sum += (double)map[q * m->tokens + k];
        to[k] = (float)(sum / (double)(m->tokens - first));
    }
    *row = to;
    return MHA_OK;
}

/* The weights on CLS and registers, which the picture does not show. */
static mha_status write_note(const maker *m, const float *row, char **note)
{
    const int64_t cls = m->grid.first - m->grid.registers;
    double sums[2] = {0};
    for (int64_t k = 0; k < m->grid.first; k++) sums[k >= cls] += (double)row[k];
    *note = NULL;
    if (m->grid.first == 0) return MHA_OK;
    MHA_TRY(text(m, note));
    if (cls > 0) mha_format(*note, TEXT_BYTES, "CLS %.0f %%", 100 * sums[0]);
    if (m->grid.registers > 0) {
        const size_t used = strlen(*note);
        mha_format(*note + used, TEXT_BYTES - used, "%sregisters %.0f %%", used ? ", " : "",
                   100 * sums[1]);
    }
    return MHA_OK;
}

static mha_status make_panel(const maker *m, const float *map, mha_panel *panel)
{
    const float *row = map + m->query * m->tokens;
    char *note;
    if (m->query < 0) MHA_TRY(mean_row(m, map, &row));
    MHA_TRY(write_note(m, row, &note));
    panel->values = row + m->grid.first;
    panel->note = note;
    return MHA_OK;
}

/* ---- measures -------------------------------------------------------------------------------- */

static mha_status take_measures(const maker *m, float *map, mha_picture_map *drawn)
{
    static const char *const names[] = {
#define GRID_TEXT(name, text) text,
        MHA_GRID_MEASURE_LIST(GRID_TEXT)
#undef GRID_TEXT
    };
    const int64_t shape[] = {m->tokens, m->tokens};
    const mha_tensor tensor = mha_tensor_contiguous(map, MHA_F32, 2, shape);
    double values[2][MEASURES];
    mha_grid_measures found, chance;
    mha_measure *list;
    _Static_assert(sizeof found == sizeof values[0], "a double for each measure");
    MHA_TRY(mha_grid_measure(&m->grid, &tensor, &found, &chance));
    memcpy(values[0], &found, sizeof found);
    memcpy(values[1], &chance, sizeof chance);
    MHA_TRY(MHA_ROOM_ALLOC(m->room, MEASURES, &list));
    for (int i = 0; i < MEASURES; i++) {
        /* the last two: only of tokens that exist */
        if ((i == MEASURES - 2 && m->grid.first == m->grid.registers) ||
            (i == MEASURES - 1 && m->grid.registers == 0))
            continue;
        list[drawn->measure_count++] =
            (mha_measure){.name = names[i], .value = values[0][i], .chance = values[1][i]};
    }
    drawn->measures = list;
    return MHA_OK;
}

/* ---- all heads ------------------------------------------------------------------------------- */

static mha_status take_head(maker *m, int64_t layer, int64_t head)
{
    float *map = m->maps->layer[layer] + head * m->tokens * m->tokens;
    char *name;
    MHA_TRY(text(m, &name));
    mha_format(name, TEXT_BYTES, "L%" PRId64 "H%" PRId64, layer, head);
    mha_panel *panel = &m->panels[m->count];
    mha_picture_map *drawn = &m->drawn[m->count++];
    *panel = (mha_panel){.name = name, .group = m->group_count};
    *drawn = (mha_picture_map){.name = name, .group = m->group_count, .values = map};
    MHA_TRY(make_panel(m, map, panel));
    return take_measures(m, map, drawn);
}

static mha_status take_heads(maker *m)
{
    const mha_maps *maps = m->maps;
    int64_t count = 0;
    for (int64_t l = 0; l < maps->layers; l++) count += mha_maps_count(maps, l);
    MHA_TRY(MHA_ROOM_ALLOC(m->room, count, &m->panels));
    MHA_TRY(MHA_ROOM_ALLOC(m->room, count, &m->drawn));
    MHA_TRY(MHA_ROOM_ALLOC(m->room, maps->layers, &m->groups));
    for (int64_t l = 0; l < maps->layers; l++) {
        char *name;
        if (mha_maps_count(maps, l) == 0) continue;
        for (int64_t h = 0; h < maps->heads; h++)
            if (!maps->on || maps->on[l * maps->heads + h]) MHA_TRY(take_head(m, l, h));
        MHA_TRY(text(m, &name));
        mha_format(name, TEXT_BYTES, "layer %" PRId64, l);
        m->groups[m->group_count++] = name;
    }
    return MHA_OK;
}

/* The rollout up to each layer, unless a layer lacks a head's map. */
static mha_status make_rollouts(const maker *m, mha_picture_page *page)
{
    const mha_maps *maps = m->maps;
    const int64_t T = m->tokens, shape[] = {1, maps->heads, T, T}, flat[] = {1, T, T};
    mha_picture_map *made;
    mha_tensor before = {0};
    for (int64_t l = 0; l < maps->layers; l++)
        if (mha_maps_count(maps, l) != maps->heads) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(m->room, maps->layers, &made));
    for (int64_t l = 0; l < maps->layers; l++) {
        float *data;
        char *name;
        MHA_TRY(MHA_ROOM_ALLOC(m->room, T * T, &data));
        MHA_TRY(text(m, &name));
        const mha_tensor layer = mha_tensor_contiguous(maps->layer[l], MHA_F32, 4, shape);
        const mha_tensor after = mha_tensor_contiguous(data, MHA_F32, 3, flat);
        MHA_TRY(mha_rollout_step(m->context, &layer, l > 0 ? &before : NULL, &after));
        before = after;
        mha_format(name, TEXT_BYTES, "rollout to layer %" PRId64, l);
        made[l] = (mha_picture_map){.name = name, .group = l, .values = data};
    }
    page->beside = made;
    page->beside_count = maps->layers;
    return MHA_OK;
}

static mha_status make(maker *m, mha_picture_show *show)
{
    const mha_show_options *o = m->options;
    const mha_picture *p = m->picture;
    char *subtitle;
    MHA_TRY(take_heads(m));
    MHA_TRY(mha_room_alloc(m->room, 400, 1, &subtitle));
    const size_t used =
        (size_t)mha_format(subtitle, 400, "weights of %s on patches",
                           m->query < 0 ? "all patches (mean)" : m->maps->rows.labels[m->query]);
    if (m->maps->text[0]) mha_format(subtitle + used, 400 - used, ": %.200s", m->maps->text[0]);
    show->figure = (mha_figure){.struct_size = sizeof show->figure,
                                .panel_size = sizeof(mha_panel),
                                .title = m->maps->name,
                                .subtitle = subtitle,
                                .footnote = o->remark,
                                .row_axis = "row",
                                .col_axis = "column",
                                .rows = p->rows,
                                .cols = p->cols,
                                .panels = m->panels,
                                .panel_count = m->count,
                                .group_names = m->groups,
                                .group_count = m->group_count,
                                .cmap = o->cmap,
                                .range = o->flags & MHA_SHOW_SCALE || o->range != MHA_RANGE_SHARED
                                             ? o->range
                                             : MHA_RANGE_PANEL,
                                .lo = o->lo,
                                .hi = o->hi,
                                .scale = o->flags & MHA_SHOW_SCALE ? o->scale : MHA_SCALE_SQRT,
                                .dark = o->flags & MHA_SHOW_DARK,
                                .print_values = o->values,
                                .value_name = "weight",
                                .backdrop = p->pixels,
                                .backdrop_zoom = p->patch};
    show->page = (mha_picture_page){.struct_size = sizeof show->page,
                                    .map_size = sizeof(mha_picture_map),
                                    .title = m->maps->name,
                                    .subtitle = m->maps->text[0],
                                    .rows = p->rows,
                                    .cols = p->cols,
                                    .first = p->first,
                                    .labels = m->maps->rows.labels,
                                    .patch = p->patch,
                                    .pixels = p->pixels,
                                    .maps = m->drawn,
                                    .map_count = m->count,
                                    .groups = m->groups,
                                    .group_count = m->group_count};
    return make_rollouts(m, &show->page);
}

mha_status mha_picture_show_make(mha_context *context, const mha_maps *maps,
                                 const mha_show_options *given, int64_t query,
                                 mha_picture_show *show)
{
    mha_show_options options;
    MHA_NEED("mha_picture_show_make", context, maps, show);
    *show = (mha_picture_show){0};
    MHA_TRY(mha_struct_check_size("mha_maps", maps->struct_size, sizeof *maps));
    MHA_TRY(mhai_show_options(given, &options));
    const mha_picture *picture = maps->rows.picture;
    if (!picture || maps->cell > 1)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_picture_show_make: the maps are %s",
                        picture ? "of blocks of tokens; choose fewer heads" : "of a text");
    if (query < -1 || query >= maps->rows.count)
        return mha_fail(MHA_ERR_ARGUMENT, "query is %" PRId64 ", expected -1..%" PRId64, query,
                        maps->rows.count - 1);
    maker m = {.context = context,
               .options = &options,
               .maps = maps,
               .picture = picture,
               .room = &show->memory,
               .grid = {picture->rows, picture->cols, picture->first, picture->registers},
               .tokens = maps->rows.count,
               .query = query};
    if (query < 0 && picture->first > picture->registers && !(options.flags & MHA_SHOW_MEAN))
        m.query = 0;
    const mha_status status = make(&m, show);
    if (status != MHA_OK) mha_picture_show_free(show);
    return status;
}

void mha_picture_show_free(mha_picture_show *show)
{
    if (!show) return;
    mha_room_release(&show->memory, 0);
    *show = (mha_picture_show){0};
}
