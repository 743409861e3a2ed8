/* Scores that need all rows of a map: the best columns, the best cut, families of equal area, and
 * the token that a head points to. */
#include "analysis/head_measures.h"

#include "base/checked.h"

#include <stdlib.h>

/* A column, diagonal or block: its mass, and its number of visible pairs. */
typedef struct part {
    double density;
    double mass;
    int64_t area, at;
} part;

size_t mhai_head_finish_bytes(const mha_head_measures *m)
{
    const int64_t parts = m->text.given.keys + m->text.given.queries;
    return (size_t)(mhai_max_i64(parts, MHAI_HEAD_GRID * MHAI_HEAD_GRID) + 1) * sizeof(part);
}

/* Sort densest first; ties are ordered by position. */
static int by_density(const void *a, const void *b)
{
    const part *x = a, *y = b;
    if (x->density != y->density) return x->density < y->density ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

static void add(mhai_head_map *map, mha_head_measure which, double value, double chance,
                int64_t rows)
{
    mhai_head_sum *sum = &map->own.sum[which];
    sum->value += value * (double)rows;
    sum->chance += chance * (double)rows;
    sum->rows += rows;
}

static double corrected(double value, double chance)
{
    return chance < 1 ? (value - chance) / (1 - chance) : 0;
}

/* ---- columns --------------------------------------------------------------------------------- */

/* List the columns that at least half of the rows see, densest first. A column seen by few rows
 * could look like a stripe by chance. */
static int64_t list_columns(const mha_head_measures *m, const mhai_head_map *map, part *parts)
{
    int64_t count = 0;
    for (int64_t j = 0; j < m->text.given.keys; j++)
        if (map->column_rows[j] > 0 && 2 * map->column_rows[j] >= map->rows)
            parts[count++] = (part){map->column[j] / (double)map->column_rows[j], map->column[j],
                                    map->column_rows[j], j};
    qsort(parts, (size_t)count, sizeof *parts, by_density);
    return count;
}

/* The best set of one, two or three columns, over the rows that see at least one of them. At least
 * one column must remain outside, because all columns together contain all mass. */
static void vertical(const mha_head_measures *m, mhai_head_map *map, const part *parts,
                     int64_t count)
{
    double mass = 0, even = 0, best = -1, value = 0, chance = 0;
    int64_t rows = 0, best_rows = 0, columns = 0;
    for (int64_t n = 0; n < 3 && n + 1 < count; n++) {
        mass += parts[n].mass;
        even += map->column_even[parts[n].at];
        rows = mhai_max_i64(rows, parts[n].area);
        const double v = mass / (double)rows, c = even / (double)rows;
        if (corrected(v, c) <= best) continue;
        best = corrected(v, c);
        value = v < 1 ? v : 1;
        chance = c < 1 ? c : 1;
        best_rows = rows;
        columns = n + 1;
    }
    if (columns == 0) return;
    add(map, MHA_MEASURE_VERTICAL, value, chance, best_rows);
    map->own.best_column = corrected(value, chance);
    map->own.details.column_text = m->texts;
    map->own.details.columns = columns;
    for (int64_t n = 0; n < columns; n++) map->own.details.column[n] = parts[n].at;
}

/* Whether the column with the largest mean is the rarest word. Only columns of words count, and the
 * rarest word must be among the eligible ones. */
static void rare(const mha_head_measures *m, mhai_head_map *map, const part *parts, int64_t count)
{
    const mha_heads_text *x = &m->text.given;
    int64_t top = -1, words = 0;
    bool there = false;
    if (m->text.rarest < 0) return;
    for (int64_t n = 0; n < count; n++) {
        const int64_t j = parts[n].at;
        if ((x->special && x->special[j]) || (x->separators && x->separators[j])) continue;
        if (top < 0) top = j;
        words++;
        there = there || x->ranks[j] == m->text.rarest;
    }
    if (words < 2 || !there) return;
    add(map, MHA_MEASURE_RAREST, x->ranks[top] == m->text.rarest, 1 / (double)words, 1);
    add(map, MHA_MEASURE_RAREST_TWO, x->ranks[top] >= m->text.second, 2 / (double)words, 1);
}

/* ---- cut ------------------------------------------------------------------------------------- */

static void cut(const mha_head_measures *m, mhai_head_map *map)
{
    double best = -1;
    int64_t at = -1;
    for (int64_t c = 0; c < m->text.cuts; c++) {
        if (map->cut_rows[c] < 4) continue;
        const double rows = (double)map->cut_rows[c];
        const double score = corrected(map->cut[c] / rows, map->cut_even[c] / rows);
        if (score > best) best = score, at = c;
    }
    if (at < 0) return;
    const double rows = (double)map->cut_rows[at];
    add(map, MHA_MEASURE_CUT, map->cut[at] / rows, map->cut_even[at] / rows, map->cut_rows[at]);
    map->own.best_cut = best;
    map->own.details.cut_text = m->texts;
    map->own.details.cut = m->text.cut_at[at];
}

/* ---- families -------------------------------------------------------------------------------- */

/* The mass on the densest parts that cover an eighth of the visible pairs. The last
 * part counts in proportion. */
static void family(mhai_head_map *map, mha_head_measure which, part *parts, int64_t count)
{
    double area = 0, mass = 0;
    for (int64_t n = 0; n < count; n++) area += (double)parts[n].area;
    if (area < 1 / MHAI_HEAD_AREA) return;
    double left = area * MHAI_HEAD_AREA;
    qsort(parts, (size_t)count, sizeof *parts, by_density);
    for (int64_t n = 0; n < count && left > 0; n++) {
        const double taken = left < (double)parts[n].area ? left : (double)parts[n].area;
        mass += parts[n].density * taken;
        left -= taken;
    }
    add(map, which, mass / (double)map->rows, MHAI_HEAD_AREA, map->rows);
}

static int64_t list_parts(const double *mass, const int64_t *area, int64_t count, part *parts)
{
    int64_t used = 0;
    for (int64_t n = 0; n < count; n++)
        if (area[n] > 0) parts[used++] = (part){mass[n] / (double)area[n], mass[n], area[n], n};
    return used;
}

static void families(const mha_head_measures *m, mhai_head_map *map, part *parts)
{
    const int64_t S = m->text.given.keys, diagonals = S + m->text.given.queries - 1;
    family(map, MHA_MEASURE_FAMILY_VERTICAL, parts,
           list_parts(map->column, map->column_rows, S, parts));
    family(map, MHA_MEASURE_FAMILY_DIAGONAL, parts,
           list_parts(map->diagonal, map->diagonal_rows, diagonals, parts));
    family(map, MHA_MEASURE_FAMILY_BLOCK, parts,
           list_parts(map->grid, map->grid_area, MHAI_HEAD_GRID * MHAI_HEAD_GRID, parts));
}

/* ---- a map ----------------------------------------------------------------------------------- */

void mhai_head_finish_map(const mha_head_measures *m, mhai_head_map *map, void *memory)
{
    part *parts = memory;
    map->own.details.column_text = map->own.details.cut_text = -1;
    if (map->rows == 0) return;
    const int64_t columns = list_columns(m, map, parts);
    vertical(m, map, parts, columns);
    rare(m, map, parts, columns);
    cut(m, map);
    if (!m->text.given.grid) families(m, map, parts);
    const bool sharp = 2 * map->sharp_rows > map->rows; /* whether the median row is sharp */
    add(map, MHA_MEASURE_HORIZONTAL, sharp ? (double)map->broad_rows / (double)map->rows : 0, 0,
        map->rows);
}
