/* The rows to which each score applies: their visible keys, and the fraction of these that are
 * targets. All heads share this data, so it is computed once per block of rows. */
#include "analysis/grid.h"
#include "analysis/head_measures.h"

#include "base/checked.h"
#include "base/math.h"

#include <math.h>
#include <string.h>

typedef struct fact_job {
    const mha_head_measures *m;
    int64_t row;
    mhai_head_fact *facts;
    const double *unit; /* [S][width]: the inputs, normalised to length 1, or 0 */
    int64_t width;
} fact_job;

/* The keys that the causal mask and the window allow for row i, without sink keys. */
static void window_of(const mha_heads_text *x, int64_t i, int64_t *begin, int64_t *end)
{
    *begin = 0, *end = x->keys;
    if (x->flags & MHA_HEADS_WINDOW) {
        if (x->left_keys >= 0 && x->left_keys < i) *begin = i - x->left_keys;
        if (x->right_keys >= 0 && x->right_keys < INT32_MAX)
            *end = mhai_min_i64(*end, i + x->right_keys + 1);
    }
    if (x->flags & MHA_HEADS_CAUSAL) *end = mhai_min_i64(*end, i + 1);
    *end = mhai_max_i64(*end, 0);
    *begin = mhai_min_i64(*begin, *end);
}

/* Whether the layer's window and sinks allow a key, in addition to the masks of the text. */
static bool is_inside(const mhai_head_window *w, int64_t i, int64_t j)
{
    if (!w->on) return true;
    if (w->causal && j > i) return false;
    if (j < w->sinks) return true;
    return (w->left < 0 || i - j <= w->left) && (w->right < 0 || j - i <= w->right);
}

bool mhai_head_facts_sees(const mhai_head_text *text, const mhai_head_window *window, int64_t t,
                          int64_t j)
{
    const mha_heads_text *x = &text->given;
    const int64_t i = t + x->q_offset;
    int64_t begin, end;
    window_of(x, i, &begin, &end);
    if ((x->hidden_keys && x->hidden_keys[j]) || !is_inside(window, i, j)) return false;
    if (j >= begin && j < end) return true;
    return j < x->sink_keys && (j <= i || !(x->flags & MHA_HEADS_CAUSAL));
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void find_keys(const mhai_head_text *text, const mhai_head_window *window,
                      mhai_head_fact *fact)
{
    const mha_heads_text *x = &text->given;
    const int64_t i = fact->t + x->q_offset;
    int64_t begin, end;
    window_of(x, i, &begin, &end);
    memset(fact->visible, 0, (size_t)x->keys);
    if (end > begin) memset(fact->visible + begin, 1, (size_t)(end - begin));
    int64_t sinks = mhai_min_i64(x->sink_keys, x->keys);
    if (x->flags & MHA_HEADS_CAUSAL) sinks = mhai_max_i64(0, mhai_min_i64(sinks, i + 1));
    if (sinks > 0) memset(fact->visible, 1, (size_t)sinks);
    fact->begin = sinks > 0 ? 0 : begin;
    fact->end = mhai_max_i64(end, sinks);
    for (int64_t j = fact->begin; x->hidden_keys && j < fact->end; j++)
        if (x->hidden_keys[j]) fact->visible[j] = 0;
    for (int64_t j = fact->begin; window->on && j < fact->end; j++)
        if (!is_inside(window, i, j)) fact->visible[j] = 0;
    const bool across = x->flags & MHA_HEADS_CROSS;
    fact->i = across || i < 0 || i >= x->keys ? -1 : i;
    fact->grid_row = x->queries ? fact->t * MHAI_HEAD_GRID / x->queries : 0;
}

static void count_keys(const mhai_head_text *text, mhai_head_fact *fact)
{
    const int64_t *segments = text->given.segments;
    memset(fact->bin, 0, sizeof fact->bin);
    memset(fact->cell, 0, sizeof fact->cell);
    fact->keys = fact->in_segment = 0;
    for (int64_t j = fact->begin; j < fact->end; j++) {
        if (!fact->visible[j]) continue;
        fact->keys++;
        fact->bin[text->cut_bin[j]]++;
        fact->cell[text->grid_bin[j]]++;
        if (segments && fact->i >= 0) fact->in_segment += segments[j] == segments[fact->i];
    }
}

/* ---- chances --------------------------------------------------------------------------------- */

/* The fraction of keys that are targets. The row is not eligible if none or all of them are. */
static double chance_of(const mhai_head_fact *fact, int64_t targets)
{
    if (targets < 1 || targets >= fact->keys) return -1;
    return (double)targets / (double)fact->keys;
}

static int64_t sees(const mhai_head_fact *fact, const mhai_head_text *text, int64_t j)
{
    return j >= 0 && j < text->given.keys && fact->visible[j];
}

static int64_t count_marked(const mhai_head_fact *fact, const uint8_t *marks)
{
    int64_t count = 0;
    for (int64_t j = fact->begin; marks && j < fact->end; j++)
        count += fact->visible[j] && marks[j];
    return count;
}

static int64_t count_rarest(const mhai_head_fact *fact, const mhai_head_text *text)
{
    int64_t count = 0;
    if (text->rarest < 0) return 0;
    for (int64_t j = fact->begin; j < fact->end; j++)
        count += fact->visible[j] && mhai_head_text_is_rarest(text, j);
    return count;
}

static void positions(const mha_head_measures *m, mhai_head_fact *fact)
{
    const mhai_head_text *text = &m->text;
    const int64_t i = fact->i;
    int64_t near = 0;
    for (int64_t j = i - m->near_tokens; j <= i + m->near_tokens; j++) near += sees(fact, text, j);
    fact->chance[MHA_MEASURE_PREVIOUS] = chance_of(fact, sees(fact, text, i - 1));
    fact->chance[MHA_MEASURE_NEXT] = chance_of(fact, sees(fact, text, i + 1));
    fact->chance[MHA_MEASURE_SELF] = chance_of(fact, sees(fact, text, i));
    fact->chance[MHA_MEASURE_NEAR] = chance_of(fact, near);
    double distance = 0;
    for (int64_t j = fact->begin; j < fact->end; j++)
        if (fact->visible[j]) distance += (double)(j > i ? j - i : i - j);
    fact->chance[MHA_MEASURE_DISTANCE] = distance / (double)fact->keys;
    if (text->given.segments) {
        fact->chance[MHA_MEASURE_SEGMENT] = chance_of(fact, fact->in_segment);
        if (fact->in_segment > 1) /* evenness needs two keys */
            fact->chance[MHA_MEASURE_BLOCK] = fact->chance[MHA_MEASURE_SEGMENT];
    }
}

static void repeats(const mhai_head_text *text, mhai_head_fact *fact)
{
    const int64_t i = fact->i;
    int64_t copies = 0, followers = 0;
    for (int64_t j = text->same_before[i]; j >= 0; j = text->same_before[j]) {
        copies += fact->visible[j];
        followers += mhai_head_text_is_follower(text, i, j) && fact->visible[j + 1];
    }
    for (int64_t j = text->same_after[i]; j >= 0; j = text->same_after[j])
        copies += fact->visible[j];
    fact->chance[MHA_MEASURE_DUPLICATE] = chance_of(fact, copies);
    fact->chance[MHA_MEASURE_INDUCTION] = chance_of(fact, followers);
    if (fact->chance[MHA_MEASURE_INDUCTION] >= 0)
        fact->chance[MHA_MEASURE_INDUCTION_MEAN] = 1 / (double)fact->keys;
    if (followers > 1) fact->chance[MHA_MEASURE_INDUCTION_LATEST] = 1 / (double)fact->keys;
}

/* A patch that sees all tokens. Rows are eligible even if all patches are targets, as in grid.h. */
static void patches(const mhai_head_text *text, mhai_head_fact *fact)
{
    const mha_grid *grid = text->given.grid;
    mha_grid_measures chance;
    fact->chance[MHA_MEASURE_SELF] = chance_of(fact, sees(fact, text, fact->i));
    if (fact->i < grid->first || fact->keys < text->given.keys) return;
    mhai_grid_row(grid, fact->i - grid->first, (mhai_patch_row){0}, &chance);
    fact->chance[MHA_MEASURE_PATCH_DISTANCE] = chance.distance;
    fact->chance[MHA_MEASURE_PATCH_LOCAL] = chance.local;
    fact->chance[MHA_MEASURE_SAME_ROW] = chance.same_row;
    fact->chance[MHA_MEASURE_SAME_COL] = chance.same_col;
    if (grid->first > grid->registers) fact->chance[MHA_MEASURE_CLS] = chance.cls;
    if (grid->registers > 0) fact->chance[MHA_MEASURE_REGISTERS] = chance.registers;
}

/* Scores of cross-attention. */
static void across(const mha_head_measures *m, mhai_head_fact *fact)
{
    const mhai_head_text *text = &m->text;
    int64_t near = 0;
    for (int64_t j = fact->begin; j < fact->end; j++)
        near += fact->visible[j] && mhai_head_text_is_level(m, fact->t, j);
    fact->chance[MHA_MEASURE_LAST] = chance_of(fact, sees(fact, text, text->given.keys - 1));
    fact->chance[MHA_MEASURE_MONOTONE] = chance_of(fact, near);
}

static void find_chances(const mha_head_measures *m, mhai_head_fact *fact)
{
    const mhai_head_text *text = &m->text;
    const double keys = (double)fact->keys;
    for (int n = 0; n < MHA_MEASURES; n++) fact->chance[n] = -1;
    if (fact->keys < 1) return;
    /* A softmax must put its mass somewhere, often on a sink. A signed row does not have to. */
    const bool signs = m->signed_layer == m->layer;
    if (!signs && !text->given.grid && sees(fact, text, 0))
        fact->chance[MHA_MEASURE_SINK] = 1 / keys;
    if (fact->keys < 2) return;
    if (signs) fact->chance[MHA_MEASURE_NEGATIVE] = 0;
    const int64_t separators = count_marked(fact, text->given.separators);
    if (!text->given.grid) {
        fact->chance[MHA_MEASURE_FIRST] = chance_of(fact, sees(fact, text, 0));
        fact->chance[MHA_MEASURE_SEPARATOR] = chance_of(fact, separators);
    }
    fact->chance[MHA_MEASURE_RARE] = chance_of(fact, count_rarest(fact, text));
    if (separators < fact->keys) fact->chance[MHA_MEASURE_CONFIDENCE] = 1 / keys;
    fact->chance[MHA_MEASURE_ENTROPY] = mhai_log(keys);
    fact->chance[MHA_MEASURE_EVENNESS] = fact->chance[MHA_MEASURE_BROAD] = 1;
    if (fact->cosine && fact->i >= 0 && fact->keys > 2) fact->chance[MHA_MEASURE_COSINE] = 0;
    if (text->given.flags & MHA_HEADS_CROSS) across(m, fact);
    if (text->given.grid) patches(text, fact);
    if (fact->i < 0 || text->given.grid) return;
    positions(m, fact);
    if (text->same_before) repeats(text, fact);
}

/* ---- cosines --------------------------------------------------------------------------------- */

enum { LANES = 8 }; /* separate partial sums let the compiler vectorise */

static double product(const double *a, const double *b, int64_t n) /* n is a multiple of LANES */
{
    double sum[LANES] = {0};
    for (int64_t c = 0; c < n; c += LANES)
        for (int lane = 0; lane < LANES; lane++) sum[lane] += a[c + lane] * b[c + lane];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static void find_cosines(const fact_job *job, mhai_head_fact *fact)
{
    const double *unit = job->unit + fact->i * job->width;
    for (int64_t j = fact->begin; j < fact->end; j++)
        fact->cosine[j] =
            fact->visible[j] ? product(unit, job->unit + j * job->width, job->width) : 0;
}

/* ---- a block of rows ------------------------------------------------------------------------- */

static void make_fact(void *argument, int64_t item, int worker)
{
    const fact_job *job = argument;
    const mhai_head_text *text = &job->m->text;
    mhai_head_fact *fact = &job->facts[item];
    (void)worker;
    fact->t = job->row + item;
    fact->skipped = (text->given.skip_queries && text->given.skip_queries[fact->t]) ||
                    (text->given.grid && fact->t < text->given.grid->first);
    find_keys(text, &job->m->windows[job->m->layer], fact);
    count_keys(text, fact);
    find_chances(job->m, fact);
    if (fact->cosine && fact->i >= 0) find_cosines(job, fact);
}

typedef struct unit_job {
    const mha_tensor *x;
    double *unit;
    int64_t width;
} unit_job;

static void make_unit(void *argument, int64_t s, int worker)
{
    const unit_job *job = argument;
    const float *x = (const float *)job->x->data + s * job->x->stride[0];
    double *unit = job->unit + s * job->width;
    (void)worker;
    memset(unit, 0, (size_t)job->width * sizeof *unit);
    for (int64_t c = 0; c < job->x->shape[1]; c++) unit[c] = (double)x[c * job->x->stride[1]];
    const double length = sqrt(product(unit, unit, job->width));
    for (int64_t c = 0; c < job->width; c++) unit[c] = length > 0 ? unit[c] / length : 0;
}

static mha_status take(mha_context *context, int64_t rows, int64_t width, size_t size,
                       void *pointer)
{
    return mha_scratch_alloc(context, mhai_times(rows, width), size, pointer);
}

mha_status mhai_head_facts_make(mha_head_measures *m, int64_t row, int64_t count,
                                mhai_head_fact **facts)
{
    const int64_t S = m->text.given.keys;
    const bool inputs = m->inputs_layer == m->layer;
    const int64_t width = inputs ? mhai_round_up(m->inputs.shape[1], LANES) : 0;
    uint8_t *visible;
    double *cosine = NULL, *unit = NULL;
    MHA_TRY(take(m->context, count, 1, sizeof **facts, facts));
    MHA_TRY(take(m->context, count, S, 1, &visible));
    if (inputs) {
        MHA_TRY(take(m->context, count, S, sizeof(double), &cosine));
        MHA_TRY(take(m->context, S, width, sizeof(double), &unit));
        mha_parallel_for(m->context, S, make_unit, &(unit_job){&m->inputs, unit, width});
    }
    fact_job job = {.m = m, .row = row, .facts = *facts, .unit = unit, .width = width};
    for (int64_t r = 0; r < count; r++)
        job.facts[r] =
            (mhai_head_fact){.visible = visible + r * S, .cosine = inputs ? cosine + r * S : NULL};
    mha_parallel_for(m->context, count, make_fact, &job);
    return MHA_OK;
}
