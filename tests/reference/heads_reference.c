/* See heads_reference.h. All measures are computed from pairs (t, j) with sees() and at(). */
#include "reference/heads_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct map {
    const mha_heads_text *text;
    const mha_attention_desc *window;
    const double *a;
    const float *x;
    int64_t width;
    int64_t T, S;
} map;

static bool is_set(const uint8_t *marks, int64_t j)
{
    return marks && marks[j];
}

static double at(const map *m, int64_t t, int64_t j)
{
    return m->a[t * m->S + j];
}

static bool across(const map *m)
{
    return m->text->flags & MHA_HEADS_CROSS;
}

/* Visibility by the layer's window only. */
static bool reaches(const mha_attention_desc *w, int64_t i, int64_t j)
{
    if (w->flags & MHA_ATTENTION_CAUSAL && j > i) return false;
    const bool left = w->left_keys == -1 || w->left_keys >= i - j;
    const bool right = w->right_keys == -1 || w->right_keys >= j - i;
    return (left && right) || j <= w->sink_keys - 1;
}

static bool sees(const map *m, int64_t t, int64_t j)
{
    const mha_heads_text *x = m->text;
    const int64_t i = t + x->q_offset;
    if (j < 0 || j >= m->S || is_set(x->hidden_keys, j)) return false;
    if (x->flags & MHA_HEADS_CAUSAL && j > i) return false;
    if (m->window && !reaches(m->window, i, j)) return false;
    if (!(x->flags & MHA_HEADS_WINDOW)) return true;
    const bool left = x->left_keys < 0 || j >= i - x->left_keys;
    const bool right = x->right_keys < 0 || j <= i + x->right_keys;
    return (left && right) || j < x->sink_keys;
}

static int64_t count_keys(const map *m, int64_t t)
{
    int64_t n = 0;
    for (int64_t j = 0; j < m->S; j++) n += sees(m, t, j);
    return n;
}

/* The row's own token, or -1 if it has none. */
static int64_t own(const map *m, int64_t t)
{
    const int64_t i = t + m->text->q_offset;
    return across(m) || i < 0 || i >= m->S ? -1 : i;
}

static bool counts(const map *m, int64_t t)
{
    double sum = 0;
    for (int64_t j = 0; j < m->S; j++) sum += at(m, t, j);
    return sum > 0 && !is_set(m->text->skip_queries, t);
}

static void add(ref_head_sum *sum, double value, double chance, int64_t rows)
{
    sum->value += value * (double)rows;
    sum->chance += chance * (double)rows;
    sum->rows += rows;
}

/* ---- masses on targets ----------------------------------------------------------------------- */

static bool is_word(const map *m, int64_t j)
{
    return !is_set(m->text->special, j) && !is_set(m->text->separators, j);
}

static int64_t largest_rank(const map *m)
{
    int64_t rank = -1;
    for (int64_t j = 0; m->text->ranks && j < m->S; j++)
        if (is_word(m, j) && m->text->ranks[j] > rank) rank = m->text->ranks[j];
    return rank;
}

static bool same(const map *m, int64_t i, int64_t j)
{
    const mha_heads_text *x = m->text;
    return x->ids && x->ids[i] == x->ids[j] && !is_set(x->special, i) && !is_set(x->special, j);
}

static bool is_target(const map *m, mha_head_measure which, int64_t t, int64_t j)
{
    const mha_heads_text *x = m->text;
    const int64_t i = own(m, t);
    switch ((int)which) {
    case MHA_MEASURE_FIRST: return j == 0;
    case MHA_MEASURE_SEPARATOR: return is_set(x->separators, j);
    case MHA_MEASURE_RARE: return x->ranks && is_word(m, j) && x->ranks[j] == largest_rank(m);
    case MHA_MEASURE_LAST: return across(m) && j == m->S - 1;
    case MHA_MEASURE_MONOTONE: /* within two keys of the same relative place */
        return across(m) && m->T > 1 &&
               llabs(j * (m->T - 1) - t * (m->S - 1)) <= REF_HEAD_NEAR * (m->T - 1);
    default: break;
    }
    if (i < 0) return false;
    switch ((int)which) {
    case MHA_MEASURE_PREVIOUS: return j == i - 1;
    case MHA_MEASURE_NEXT: return j == i + 1;
    case MHA_MEASURE_SELF: return j == i;
    case MHA_MEASURE_NEAR: return llabs(j - i) <= REF_HEAD_NEAR;
    case MHA_MEASURE_SEGMENT: return x->segments && x->segments[j] == x->segments[i];
    case MHA_MEASURE_DUPLICATE: return j != i && same(m, i, j);
    case MHA_MEASURE_INDUCTION:
        return j > 0 && j - 1 < i && j != i && same(m, i, j - 1) && x->ids[j] != x->ids[i];
    default: return false;
    }
}

static void add_mass(const map *m, mha_head_measure which, int64_t t, ref_head *head)
{
    int64_t targets = 0;
    const int64_t keys = count_keys(m, t);
    double mass = 0, last = 0;
    for (int64_t j = 0; j < m->S; j++)
        if (sees(m, t, j) && is_target(m, which, t, j)) targets++, mass += last = at(m, t, j);
    if (targets == 0 || targets == keys) return;
    add(&head->sum[which], mass, (double)targets / (double)keys, 1);
    if (which == MHA_MEASURE_INDUCTION)
        add(&head->sum[MHA_MEASURE_INDUCTION_MEAN], mass / (double)targets, 1 / (double)keys, 1);
    if (which == MHA_MEASURE_INDUCTION && targets > 1)
        add(&head->sum[MHA_MEASURE_INDUCTION_LATEST], last, 1 / (double)keys, 1);
}

/* ---- the shape of a row ---------------------------------------------------------------------- */

static double entropy(const map *m, int64_t t)
{
    double sum = 0;
    for (int64_t j = 0; j < m->S; j++)
        if (at(m, t, j) > 0) sum -= at(m, t, j) * log(at(m, t, j));
    return sum;
}

/* mass * entropy / log(number of keys) of the part of a row marked by `inside`, after
 * normalisation */
static double even_mass(const map *m, int64_t t, const bool *inside)
{
    double mass = 0, sum = 0;
    int64_t keys = 0;
    for (int64_t j = 0; j < m->S; j++)
        if (inside[j] && sees(m, t, j)) mass += at(m, t, j), keys++;
    for (int64_t j = 0; j < m->S; j++)
        if (inside[j] && at(m, t, j) > 0) sum -= at(m, t, j) / mass * log(at(m, t, j) / mass);
    return keys < 2 ? 0 : mass * sum / log((double)keys);
}

static int64_t count_inside(const map *m, int64_t t, const bool *inside)
{
    int64_t n = 0;
    for (int64_t j = 0; j < m->S; j++) n += inside[j] && sees(m, t, j);
    return n;
}

static void add_form(const map *m, int64_t t, ref_head *head)
{
    const int64_t keys = count_keys(m, t), i = own(m, t);
    const double h = entropy(m, t), full = log((double)keys);
    double largest = 0, distance = 0, even = 0;
    bool words = false;
    for (int64_t j = 0; j < m->S; j++) {
        if (!sees(m, t, j)) continue;
        if (!is_set(m->text->separators, j)) {
            words = true;
            if (at(m, t, j) > largest) largest = at(m, t, j);
        }
        distance += at(m, t, j) * (double)llabs(j - i);
        even += (double)llabs(j - i) / (double)keys;
    }
    add(&head->sum[MHA_MEASURE_ENTROPY], h, full, 1);
    add(&head->sum[MHA_MEASURE_EVENNESS], h / full, 1, 1);
    add(&head->sum[MHA_MEASURE_BROAD], h / full > 0.78, 1, 1);
    if (words) add(&head->sum[MHA_MEASURE_CONFIDENCE], largest, 1 / (double)keys, 1);
    if (i >= 0) add(&head->sum[MHA_MEASURE_DISTANCE], distance, even, 1);
}

static void add_block(const map *m, int64_t t, ref_head *head)
{
    bool inside[64];
    const int64_t i = own(m, t);
    if (i < 0 || !m->text->segments) return;
    for (int64_t j = 0; j < m->S; j++) inside[j] = m->text->segments[j] == m->text->segments[i];
    const int64_t keys = count_keys(m, t), n = count_inside(m, t, inside);
    if (n >= 2 && n < keys)
        add(&head->sum[MHA_MEASURE_BLOCK], even_mass(m, t, inside), (double)n / (double)keys, 1);
}

static double cosine(const map *m, int64_t i, int64_t j)
{
    double ij = 0, ii = 0, jj = 0;
    for (int64_t c = 0; c < m->width; c++) {
        const double a = (double)m->x[i * m->width + c], b = (double)m->x[j * m->width + c];
        ij += a * b, ii += a * a, jj += b * b;
    }
    return ii > 0 && jj > 0 ? ij / sqrt(ii * jj) : 0;
}

static void add_cosine(const map *m, int64_t t, ref_head *head)
{
    const int64_t i = own(m, t);
    double n = 0, a = 0, c = 0, aa = 0, cc = 0, ac = 0;
    if (!m->x || i < 0 || count_keys(m, t) < 3) return;
    for (int64_t j = 0; j < m->S; j++)
        if (j != i && sees(m, t, j)) n++, a += at(m, t, j), c += cosine(m, i, j);
    for (int64_t j = 0; j < m->S; j++) {
        if (j == i || !sees(m, t, j)) continue;
        const double x = at(m, t, j) - a / n, y = cosine(m, i, j) - c / n;
        aa += x * x, cc += y * y, ac += x * y;
    }
    /* Constants have no correlation; random weights and inputs are far from this bound. */
    if (aa > 1e-13 * a * a / n && cc > 1e-12)
        add(&head->sum[MHA_MEASURE_COSINE], ac / sqrt(aa * cc), 0, 1);
}

static void add_offsets(const map *m, int64_t t, ref_head *head)
{
    const int64_t i = across(m) ? t + m->text->q_offset : own(m, t), keys = count_keys(m, t);
    int64_t best = -1;
    for (int64_t j = 0; j < m->S; j++)
        if (at(m, t, j) > 0 && (best < 0 || at(m, t, j) > at(m, t, best))) best = j;
    for (int64_t o = -REF_HEAD_OFFSETS; i >= 0 && o <= REF_HEAD_OFFSETS; o++) {
        if (!sees(m, t, i + o)) continue;
        add(&head->mass[o + REF_HEAD_OFFSETS], at(m, t, i + o), 1 / (double)keys, 1);
        add(&head->largest[o + REF_HEAD_OFFSETS], best == i + o, 1 / (double)keys, 1);
    }
}

/* ---- whole maps ------------------------------------------------------------------------------ */

static bool full_row(const map *m, int64_t t)
{
    return counts(m, t) && count_keys(m, t) > 1;
}

typedef struct column {
    double density, mass, even;
    int64_t rows, j;
} column;

static column make_column(const map *m, int64_t j)
{
    column c = {0, 0, 0, 0, j};
    for (int64_t t = 0; t < m->T; t++)
        if (full_row(m, t) && sees(m, t, j))
            c.mass += at(m, t, j), c.even += 1 / (double)count_keys(m, t), c.rows++;
    c.density = c.rows ? c.mass / (double)c.rows : 0;
    return c;
}

/* The columns that half of the rows see, in descending order of density; insertion sort keeps ties
 * in order. */
static int64_t list_columns(const map *m, int64_t rows, column *list)
{
    int64_t count = 0;
    for (int64_t j = 0; j < m->S; j++) {
        const column c = make_column(m, j);
        if (c.rows == 0 || 2 * c.rows < rows) continue;
        int64_t n = count++;
        for (; n > 0 && list[n - 1].density < c.density; n--) list[n] = list[n - 1];
        list[n] = c;
    }
    return count;
}

static void add_vertical(const column *list, int64_t count, ref_head *head)
{
    double best = -1, value = 0, chance = 0;
    int64_t best_rows = 0;
    for (int64_t k = 1; k <= 3 && k < count; k++) {
        double mass = 0, even = 0;
        int64_t rows = 0;
        for (int64_t n = 0; n < k; n++) {
            mass += list[n].mass, even += list[n].even;
            if (list[n].rows > rows) rows = list[n].rows;
        }
        const double v = mass / (double)rows, c = even / (double)rows;
        const double score = c < 1 ? (v - c) / (1 - c) : 0;
        if (score <= best) continue;
        best = score, value = fmin(v, 1), chance = fmin(c, 1), best_rows = rows;
    }
    if (best_rows > 0) add(&head->sum[MHA_MEASURE_VERTICAL], value, chance, best_rows);
}

static void add_rarest(const map *m, const column *list, int64_t count, ref_head *head)
{
    const int64_t rarest = largest_rank(m);
    int64_t second = -1, words = 0, top = -1;
    bool there = false, skipped = false;
    if (rarest < 0) return;
    for (int64_t j = 0; j < m->S; j++) {
        if (!is_word(m, j)) continue;
        if (m->text->ranks[j] == rarest && !skipped)
            skipped = true;
        else if (m->text->ranks[j] > second)
            second = m->text->ranks[j];
    }
    for (int64_t n = 0; n < count; n++) {
        if (!is_word(m, list[n].j)) continue;
        if (top < 0) top = list[n].j;
        words++;
        there = there || m->text->ranks[list[n].j] == rarest;
    }
    if (words < 2 || !there) return;
    add(&head->sum[MHA_MEASURE_RAREST], m->text->ranks[top] == rarest, 1 / (double)words, 1);
    add(&head->sum[MHA_MEASURE_RAREST_TWO], m->text->ranks[top] >= second, 2 / (double)words, 1);
}

static void add_cut(const map *m, ref_head *head)
{
    double best = -1;
    ref_head_sum chosen = {0, 0, 0};
    for (int64_t cut = 4; cut <= m->S - 4 && !across(m); cut++) {
        ref_head_sum sum = {0, 0, 0};
        for (int64_t t = 0; t < m->T; t++) {
            bool inside[64];
            if (!full_row(m, t) || own(m, t) < 0) continue;
            for (int64_t j = 0; j < m->S; j++) inside[j] = (j < cut) == (own(m, t) < cut);
            const int64_t n = count_inside(m, t, inside), keys = count_keys(m, t);
            if (n >= 2 && n < keys) add(&sum, even_mass(m, t, inside), (double)n / (double)keys, 1);
        }
        if (sum.rows < 4) continue;
        const double v = sum.value / (double)sum.rows, c = sum.chance / (double)sum.rows;
        if ((v - c) / (1 - c) > best) best = (v - c) / (1 - c), chosen = sum;
    }
    head->sum[MHA_MEASURE_CUT].value += chosen.value;
    head->sum[MHA_MEASURE_CUT].chance += chosen.chance;
    head->sum[MHA_MEASURE_CUT].rows += chosen.rows;
}

/* The part of a family that a pair belongs to. */
static int64_t part_of(const map *m, mha_head_measure family, int64_t t, int64_t j)
{
    if (family == MHA_MEASURE_FAMILY_VERTICAL) return j;
    if (family == MHA_MEASURE_FAMILY_DIAGONAL) return j - t + m->T - 1;
    return t * 16 / m->T * 16 + j * 16 / m->S;
}

static void add_family(const map *m, mha_head_measure family, int64_t rows, ref_head *head)
{
    enum { MOST = 256 };
    double mass[MOST] = {0}, area[MOST] = {0}, all = 0, sum = 0;
    bool used[MOST] = {false};
    for (int64_t t = 0; t < m->T; t++)
        for (int64_t j = 0; full_row(m, t) && j < m->S; j++) {
            if (!sees(m, t, j)) continue;
            mass[part_of(m, family, t, j)] += at(m, t, j);
            area[part_of(m, family, t, j)] += 1;
            all += 1;
        }
    if (all < 8) return;
    for (double left = all / 8; left > 0;) {
        int best = -1;
        for (int n = 0; n < MOST; n++)
            if (area[n] > 0 && !used[n] &&
                (best < 0 || mass[n] / area[n] > mass[best] / area[best]))
                best = n;
        if (best < 0) break;
        used[best] = true;
        const double taken = fmin(left, area[best]);
        sum += mass[best] / area[best] * taken;
        left -= taken;
    }
    add(&head->sum[family], sum / (double)rows, 0.125, rows);
}

static void add_whole(const map *m, ref_head *head)
{
    column list[64];
    int64_t rows = 0, broad = 0, sharp = 0;
    for (int64_t t = 0; t < m->T; t++) {
        if (!full_row(m, t)) continue;
        const double e = entropy(m, t) / log((double)count_keys(m, t));
        rows++, broad += e > 0.9, sharp += e < 0.6;
    }
    if (rows == 0) return;
    const int64_t count = list_columns(m, rows, list);
    add_vertical(list, count, head);
    add_rarest(m, list, count, head);
    add_cut(m, head);
    for (int f = MHA_MEASURE_FAMILY_DIAGONAL; f <= MHA_MEASURE_FAMILY_BLOCK; f++)
        add_family(m, (mha_head_measure)f, rows, head);
    add(&head->sum[MHA_MEASURE_HORIZONTAL], 2 * sharp > rows ? (double)broad / (double)rows : 0, 0,
        rows);
}

/* ---- links ----------------------------------------------------------------------------------- */

static int64_t word_of(const map *m, int64_t j)
{
    return m->text->words ? m->text->words[j] : j;
}

static double word_weight(const map *m, int64_t first, int64_t end, int64_t word)
{
    double sum = 0;
    for (int64_t t = first; t < end; t++)
        for (int64_t j = 0; j < m->S; j++)
            if (word_of(m, j) == word) sum += at(m, t, j);
    return sum / (double)(end - first);
}

static bool word_seen(const map *m, int64_t t, int64_t word)
{
    for (int64_t j = 0; j < m->S; j++)
        if (word_of(m, j) == word && sees(m, t, j)) return true;
    return false;
}

static bool word_open(const map *m, int64_t word)
{
    for (int64_t j = 0; j < m->S; j++)
        if (word_of(m, j) == word && !is_word(m, j)) return false;
    return true;
}

static void add_link(const map *m, int64_t from, int64_t to, ref_head_sum *sum, ref_head_sum *mass)
{
    const bool predicts = m->text->flags & MHA_HEADS_QUERY_PREDICTS;
    int64_t first = -1, end = 0, best = -1, candidates = 0, seen = 0, words = 0;
    double best_weight = 0, total = 0;
    for (int64_t j = 0; j < m->S; j++) {
        if (word_of(m, j) >= words) words = word_of(m, j) + 1;
        if (word_of(m, j) != from) continue;
        if (first < 0) first = j;
        end = j + 1;
    }
    first -= m->text->q_offset, end -= m->text->q_offset;
    if (predicts) first -= 1, end = first + 1;
    if (across(m)) first = from, end = from + 1;
    if (first < 0 || end > m->T) return;
    for (int64_t t = first; t < end; t++)
        if (is_set(m->text->skip_queries, t)) return;
    const bool apart = !predicts && !across(m);
    if (apart && from == to) return;
    if (!word_open(m, to) || !word_seen(m, end - 1, to)) return;
    for (int64_t w = 0; w < words; w++) {
        if (!word_seen(m, end - 1, w)) continue;
        const double weight = word_weight(m, first, end, w);
        seen++, total += weight;
        if (!word_open(m, w) || (apart && w == from)) continue;
        candidates++;
        if (weight > best_weight) best_weight = weight, best = w;
    }
    if (candidates < 2 || !(total > 0)) return;
    add(sum, best == to, 1 / (double)candidates, 1);
    add(mass, word_weight(m, first, end, to), 1 / (double)seen, 1);
}

/* ---- all measures ---------------------------------------------------------------------------- */

void ref_head_add(ref_head *head, const mha_heads_text *text, const mha_attention_desc *window,
                  const double *a, const float *x, int64_t width)
{
    const map m = {text, window, a, x, width, text->queries, text->keys};
    if (m.S > 64 || m.T > 64) abort();
    for (int64_t t = 0; t < m.T; t++) {
        const int64_t keys = count_keys(&m, t);
        if (!counts(&m, t)) continue;
        if (sees(&m, t, 0)) add(&head->sum[MHA_MEASURE_SINK], at(&m, t, 0), 1 / (double)keys, 1);
        if (keys < 2) continue;
        for (int which = 0; which < MHA_MEASURES; which++)
            add_mass(&m, (mha_head_measure)which, t, head);
        add_form(&m, t, head);
        add_block(&m, t, head);
        add_cosine(&m, t, head);
        add_offsets(&m, t, head);
    }
    add_whole(&m, head);
    for (int64_t n = 0; n < text->links_count; n++) {
        const mha_heads_link *l = &text->links[n];
        add_link(&m, l->query, l->key, &head->link[l->relation][0],
                 &head->link_mass[l->relation][0]);
        if (!across(&m))
            add_link(&m, l->key, l->query, &head->link[l->relation][1],
                     &head->link_mass[l->relation][1]);
    }
}

int64_t ref_head_best_offset(const ref_head *head, bool largest)
{
    const ref_head_sum *sums = largest ? head->largest : head->mass;
    int64_t best = 0, most = 0;
    double best_score = -2;
    for (int n = 0; n <= 2 * REF_HEAD_OFFSETS; n++)
        if (sums[n].rows > most) most = sums[n].rows;
    for (int64_t far = 0; far <= REF_HEAD_OFFSETS; far++)
        for (int side = -1; side <= 1; side += 2) {
            const ref_head_sum *s = &sums[REF_HEAD_OFFSETS + side * far];
            if (s->rows == 0 || 2 * s->rows < most) continue;
            const double v = s->value / (double)s->rows, c = s->chance / (double)s->rows;
            const double score = c < 1 ? (v - c) / (1 - c) : 0;
            if (score > best_score) best_score = score, best = side * far;
        }
    return best;
}
