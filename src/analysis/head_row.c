/* Adding a row of a head to the head's sums. Sums go over keys in order, and rows arrive in order,
 * so results do not depend on the division into blocks. */
#include "analysis/grid.h"
#include "analysis/head_corpus.h"
#include "analysis/head_measures.h"
#include "base/math.h"

#include <math.h>
#include <string.h>

/* Results of one pass over a row. */
typedef struct row_sums {
    double total, entropy, distance, separators;
    double largest, word; /* largest weight; mass on keys that are not separators */
    int64_t largest_key;
    double segment, segment_entropy;
    double bin[MHAI_HEAD_CUTS + 1], bin_entropy[MHAI_HEAD_CUTS + 1];
} row_sums;

typedef struct row_work {
    const mha_head_measures *m;
    const mhai_head_text *text;
    const mhai_head_fact *fact;
    const double *a, *given; /* given: the same row with signs */
    mhai_head_map *map;
    row_sums sums;
} row_work;

static void count(row_work *x, mha_head_measure which, double value)
{
    const double chance = x->fact->chance[which];
    if (chance < 0) return;
    mhai_head_sum *sum = &x->map->own.sum[which];
    sum->value += value;
    sum->chance += chance;
    sum->rows++;
    if (x->map->seen) mhai_corpus_row(x->map->seen, which, value, x->fact, x->sums.largest_key);
}

/* -a log a; 0 for subnormal numbers */
static double entropy_of(double a)
{
    return a > 1e-300 ? -a * mhai_log(a) : 0;
}

static void pass(row_work *x)
{
    const mhai_head_fact *fact = x->fact;
    const uint8_t *separators = x->text->given.separators;
    const int64_t *segments = fact->i >= 0 ? x->text->given.segments : NULL;
    row_sums *sums = &x->sums;
    memset(sums, 0, sizeof *sums);
    sums->largest_key = -1;
    for (int64_t j = fact->begin; j < fact->end; j++) {
        const double a = x->a[j];
        if (!(a > 0)) continue;
        const double entropy = entropy_of(a);
        sums->total += a;
        sums->entropy += entropy;
        if (a > sums->largest) sums->largest = a, sums->largest_key = j;
        if (separators && separators[j])
            sums->separators += a;
        else if (a > sums->word)
            sums->word = a;
        if (segments && segments[j] == segments[fact->i])
            sums->segment += a, sums->segment_entropy += entropy;
        sums->distance += a * (double)(j > fact->i ? j - fact->i : fact->i - j);
        sums->bin[x->text->cut_bin[j]] += a;
        sums->bin_entropy[x->text->cut_bin[j]] += entropy;
        x->map->column[j] += a;
        x->map->diagonal[j - fact->t + x->text->given.queries - 1] += a;
        x->map->grid[fact->grid_row * MHAI_HEAD_GRID + x->text->grid_bin[j]] += a;
    }
}

/* Count the keys that the row sees. */
static void count_area(row_work *x)
{
    const mhai_head_fact *fact = x->fact;
    mhai_head_map *map = x->map;
    const double even = 1 / (double)fact->keys;
    int64_t *diagonal = map->diagonal_rows + x->text->given.queries - 1 - fact->t;
    for (int64_t j = fact->begin; j < fact->end; j++) {
        map->column_rows[j] += fact->visible[j];
        map->column_even[j] += fact->visible[j] ? even : 0;
        diagonal[j] += fact->visible[j];
    }
    for (int c = 0; c < MHAI_HEAD_GRID; c++)
        map->grid_area[fact->grid_row * MHAI_HEAD_GRID + c] += fact->cell[c];
    map->rows++;
}

/* ---- scores of a row ------------------------------------------------------------------------- */

static double weight(const row_work *x, int64_t j)
{
    return j >= 0 && j < x->text->given.keys ? x->a[j] : 0;
}

/* The mass times the evenness of its distribution, which is the entropy divided by the log of the
 * number of keys. The result is 0 for one key, and the mass for an even distribution. */
static double even_mass(double mass, double entropy, int64_t keys)
{
    if (!(mass > 1e-300) || keys < 2) return 0;
    return mass * (entropy / mass + mhai_log(mass)) / mhai_log((double)keys);
}

/* The mass at each offset from key i. */
static void offsets(row_work *x, int64_t i)
{
    const int64_t most = x->m->offsets;
    const double even = 1 / (double)x->fact->keys;
    for (int64_t o = -most; o <= most; o++) {
        const int64_t j = i + o;
        if (j < 0 || j >= x->text->given.keys || !x->fact->visible[j]) continue;
        mhai_head_at *at = &x->map->own.at[o + most];
        at->mass += x->a[j];
        at->chance += even;
        at->rows++;
        at->largest += x->sums.largest_key == j;
    }
}

/* Scores of cross-attention. */
static void across(row_work *x)
{
    double level = 0;
    for (int64_t j = x->fact->begin; j < x->fact->end; j++)
        if (mhai_head_text_is_level(x->m, x->fact->t, j)) level += x->a[j];
    count(x, MHA_MEASURE_LAST, weight(x, x->text->given.keys - 1));
    count(x, MHA_MEASURE_MONOTONE, level);
    offsets(x, x->fact->t + x->text->given.q_offset);
}

static void positions(row_work *x)
{
    const int64_t i = x->fact->i, k = x->m->near_tokens;
    double near = 0;
    for (int64_t j = i - k; j <= i + k; j++) near += weight(x, j);
    count(x, MHA_MEASURE_PREVIOUS, weight(x, i - 1));
    count(x, MHA_MEASURE_NEXT, weight(x, i + 1));
    count(x, MHA_MEASURE_SELF, weight(x, i));
    count(x, MHA_MEASURE_NEAR, near);
    count(x, MHA_MEASURE_DISTANCE, x->sums.distance);
    count(x, MHA_MEASURE_SEGMENT, x->sums.segment);
    count(x, MHA_MEASURE_BLOCK,
          even_mass(x->sums.segment, x->sums.segment_entropy, x->fact->in_segment));
    offsets(x, i);
}

static void patches(row_work *x)
{
    const mha_grid *grid = x->text->given.grid;
    const mhai_patch_row row = {.doubles = x->a};
    mha_grid_measures of;
    count(x, MHA_MEASURE_SELF, weight(x, x->fact->i));
    if (mhai_grid_row(grid, x->fact->i - grid->first, row, &of)) {
        count(x, MHA_MEASURE_PATCH_DISTANCE, of.distance);
        count(x, MHA_MEASURE_PATCH_LOCAL, of.local);
        count(x, MHA_MEASURE_SAME_ROW, of.same_row);
        count(x, MHA_MEASURE_SAME_COL, of.same_col);
    }
    count(x, MHA_MEASURE_CLS, of.cls);
    count(x, MHA_MEASURE_REGISTERS, of.registers);
}

static void repeats(row_work *x)
{
    const mhai_head_text *text = x->text;
    const int64_t i = x->fact->i;
    double copies = 0, followers = 0, latest = 0;
    int64_t targets = 0;
    for (int64_t j = text->same_before[i]; j >= 0; j = text->same_before[j]) {
        copies += x->a[j];
        if (!mhai_head_text_is_follower(text, i, j) || !x->fact->visible[j + 1]) continue;
        if (targets == 0) latest = x->a[j + 1];
        followers += x->a[j + 1];
        targets++;
    }
    for (int64_t j = text->same_after[i]; j >= 0; j = text->same_after[j]) copies += x->a[j];
    count(x, MHA_MEASURE_DUPLICATE, copies);
    count(x, MHA_MEASURE_INDUCTION, followers);
    count(x, MHA_MEASURE_INDUCTION_MEAN, targets ? followers / (double)targets : 0);
    count(x, MHA_MEASURE_INDUCTION_LATEST, latest);
}

static void rarest(row_work *x)
{
    double mass = 0;
    if (x->fact->chance[MHA_MEASURE_RARE] < 0) return;
    for (int64_t j = x->fact->begin; j < x->fact->end; j++)
        if (mhai_head_text_is_rarest(x->text, j)) mass += x->a[j];
    count(x, MHA_MEASURE_RARE, mass);
}

/* Pearson correlation over the visible keys except i. Rows where either side
 * is constant are skipped. */
static void similar(row_work *x)
{
    const mhai_head_fact *fact = x->fact;
    double n = 0, mean_a = 0, mean_c = 0, aa = 0, cc = 0, ac = 0;
    if (fact->chance[MHA_MEASURE_COSINE] < 0) return;
    for (int64_t j = fact->begin; j < fact->end; j++) {
        if (!fact->visible[j] || j == fact->i) continue;
        n += 1;
        mean_a += x->given[j];
        mean_c += fact->cosine[j];
    }
    mean_a /= n;
    mean_c /= n;
    for (int64_t j = fact->begin; j < fact->end; j++) {
        if (!fact->visible[j] || j == fact->i) continue;
        const double a = x->given[j] - mean_a, c = fact->cosine[j] - mean_c;
        aa += a * a;
        cc += c * c;
        ac += a * c;
    }
    /* Smaller variances are rounding errors, because weights are floats. */
    const double least = 1e-14 * n;
    if (aa > least * mean_a * mean_a && cc > least)
        count(x, MHA_MEASURE_COSINE, ac / sqrt(aa * cc));
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static void cuts(row_work *x)
{
    const mhai_head_text *text = x->text;
    const row_sums *sums = &x->sums;
    double mass = 0, entropy = 0;
    int64_t keys = 0;
    if (x->fact->i < 0) return;
    for (int64_t c = 0; c < text->cuts; c++) {
        mass += sums->bin[c], entropy += sums->bin_entropy[c], keys += x->fact->bin[c];
        const bool first = x->fact->i < text->cut_at[c];
        const int64_t inside = first ? keys : x->fact->keys - keys;
        if (inside < 2 || inside == x->fact->keys) continue;
        const double value = first ? even_mass(mass, entropy, inside)
                                   : even_mass(sums->total - mass, sums->entropy - entropy, inside);
        x->map->cut[c] += value;
        x->map->cut_even[c] += (double)inside / (double)x->fact->keys;
        x->map->cut_rows[c]++;
    }
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Whether any token of a word is visible. */
static bool sees_word(const row_work *x, int64_t word)
{
    for (int64_t j = x->text->word_begin[word]; j < x->text->word_end[word]; j++)
        if (x->fact->visible[j]) return true;
    return false;
}

static void test_probe(row_work *x, const mhai_head_probe *probe, double total)
{
    const mhai_head_text *text = x->text;
    const double *w = x->map->word;
    int64_t best = -1, candidates = 0, seen = 0;
    if (probe->to == probe->from || !text->word_open[probe->to] || !sees_word(x, probe->to)) return;
    for (int64_t k = 0; k < text->words; k++) {
        if (!sees_word(x, k)) continue;
        seen++;
        if (!text->word_open[k] || k == probe->from) continue;
        candidates++;
        if (w[k] > 0 && (best < 0 || w[k] > w[best])) best = k;
    }
    if (candidates < 2 || !(total > 0)) return;
    mhai_head_link_sum *sum = &x->map->own.links[probe->slot];
    const double rows = (double)(probe->group_end - probe->group_row);
    sum->links++;
    sum->hits += best == probe->to;
    sum->chance += 1 / (double)candidates;
    sum->mass += w[probe->to] / rows;
    sum->share += 1 / (double)seen;
}

/* Whether any row of the word is skipped, in which case the word does not count. */
static bool is_skipped(const mhai_head_text *text, const mhai_head_probe *probe)
{
    const uint8_t *skip = text->given.skip_queries;
    for (int64_t t = probe->group_row; skip && t < probe->group_end; t++)
        if (skip[t]) return true;
    return false;
}

static void links(row_work *x)
{
    const mhai_head_text *text = x->text;
    const int64_t first = text->probe_at[x->fact->t];
    double total = 0;
    if (first < 0) return;
    const mhai_head_probe *probe = &text->probes[first];
    if (x->fact->t == probe->group_row)
        memset(x->map->word, 0, (size_t)text->words * sizeof(double));
    for (int64_t j = x->fact->begin; j < x->fact->end; j++)
        if (text->word_of[j] >= 0) x->map->word[text->word_of[j]] += x->a[j];
    if (x->fact->t + 1 < probe->group_end || is_skipped(x->text, probe)) return;
    for (int64_t k = 0; k < text->words; k++) total += x->map->word[k];
    for (int64_t n = first; n < text->probes_count; n++) {
        if (text->probes[n].group_row != probe->group_row) break;
        test_probe(x, &text->probes[n], total);
    }
}

/* ---- the row --------------------------------------------------------------------------------- */

static void shape(row_work *x)
{
    const double evenness = x->sums.entropy / mhai_log((double)x->fact->keys);
    count(x, MHA_MEASURE_ENTROPY, x->sums.entropy);
    count(x, MHA_MEASURE_EVENNESS, evenness);
    count(x, MHA_MEASURE_BROAD, evenness > 0.78);
    if (x->fact->chance[MHA_MEASURE_NEGATIVE] >= 0) {
        double negative = 0;
        for (int64_t j = x->fact->begin; j < x->fact->end; j++)
            if (x->given[j] < 0) negative += x->a[j];
        count(x, MHA_MEASURE_NEGATIVE, negative);
    }
    x->map->broad_rows += evenness > 0.9;
    x->map->sharp_rows += evenness < 0.6;
}

void mhai_head_row_add(const mha_head_measures *m, const mhai_head_fact *fact, const double *a,
                       const double *given, mhai_head_map *map)
{
    row_work x = {.m = m, .text = &m->text, .fact = fact, .a = a, .given = given, .map = map};
    double total = 0;
    if (x.text->probes_count > 0) links(&x);
    if (fact->keys < 1 || fact->skipped) return;
    for (int64_t j = fact->begin; j < fact->end; j++) total += a[j];
    if (!(total > 0)) return;
    if (fact->chance[MHA_MEASURE_SINK] >= 0) count(&x, MHA_MEASURE_SINK, a[0]);
    if (fact->keys < 2) return;
    pass(&x);
    count_area(&x);
    if (map->seen && !x.text->given.grid) mhai_corpus_moved(map->seen, fact, a);
    count(&x, MHA_MEASURE_FIRST, weight(&x, 0));
    count(&x, MHA_MEASURE_SEPARATOR, x.sums.separators);
    count(&x, MHA_MEASURE_CONFIDENCE, x.sums.word);
    shape(&x);
    rarest(&x);
    cuts(&x);
    if (x.text->given.flags & MHA_HEADS_CROSS) across(&x);
    if (fact->i < 0) return;
    if (x.text->given.grid)
        patches(&x);
    else
        positions(&x);
    if (x.text->same_before) repeats(&x);
    similar(&x);
}
