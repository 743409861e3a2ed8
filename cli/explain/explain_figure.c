/* The picture of a problem: what happens to the shapes step by step, which heads share keys and
 * values, the mask, position encodings, and the totals. Composed from boxes, arrows and grids
 * (render.h); independent of the machine, so the same problem gives the same bytes. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/maps.h"
#include "common/words.h"
#include "explain/explain.h"
#include "explain/sketch.h"

#include <multihead/component.h>
#include <multihead/position.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define I64 PRId64
#define SQRT "\xE2\x88\x9A"
#define TRANSPOSED "\xE1\xB5\x80"
#define TIMES "\xC3\x97"

enum { GRID = 64, TABLE_ROWS = 64, TABLE_COLS = 128, MOST_CAPTION = 640 };

typedef struct picture {
    const explain_problem *p;
    sketch steps, heads, mask, positions, numbers;
    char title[256], subtitle[512], footnote[512];
    char captions[5][MOST_CAPTION];
    uint8_t grid[GRID * GRID];
    int64_t grid_rows, grid_cols;
    float table[TABLE_ROWS * TABLE_COLS];
    mha_panel table_panel;
    mha_figure table_figure, bar_figure;
    float bar[TABLE_COLS];
    mha_panel bar_panel;
} picture;

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Five columns and four lanes of boxes. */
enum {
    FULL_WIDTH = 1104,
    BOX_W = 172,
    BOX_H = 68,
    COLUMN = 233,
    LANE = 98,
    STEPS_HEIGHT = 4 * LANE - (LANE - BOX_H) + 26
};

static double column(int i)
{
    return i * COLUMN;
}

static double lane(double i)
{
    return 8 + i * LANE;
}

static mha_mark *step(picture *f, mha_ink ink, int at_column, double at_lane, const char *text,
                      const char *detail)
{
    const double at[4] = {column(at_column), lane(at_lane), BOX_W, BOX_H};
    mha_mark *mark = sketch_box(&f->steps, ink, at, text, detail);
    mark->size = 14;
    return mark;
}

/* Cards behind a box: there are several of it. */
static void stack(picture *f, mha_ink ink, int at_column, double at_lane, int64_t count)
{
    for (int i = count > 2 ? 2 : (int)count - 1; i > 0; i--) {
        const double at[4] = {column(at_column) + 6 * i, lane(at_lane) - 6 * i, BOX_W, BOX_H};
        sketch_box(&f->steps, ink, at, NULL, NULL);
    }
}

/* From the right edge of one box to the left edge of another. */
static void flow(picture *f, mha_ink ink, int c0, double l0, int c1, double l1, double from_stack)
{
    const double at[4] = {column(c0) + BOX_W + from_stack, lane(l0) + BOX_H / 2.0, column(c1) - 3,
                          lane(l1) + BOX_H / 2.0};
    sketch_line(&f->steps, ink, at, MHA_MARK_ARROW | (l0 != l1 ? MHA_MARK_ACROSS : 0u));
}

static void draw_projections(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->steps;
    static const char *const names[] = {"q", "k", "v"};
    static const mha_ink inks[] = {MHA_INK_BLUE, MHA_INK_ORANGE, MHA_INK_GREEN};
    const int64_t heads[] = {p->H, p->k.shape[1], p->v.shape[1]}, rows[] = {p->T, p->S, p->S};
    const int64_t sizes[] = {p->D, p->D, p->Dv};
    step(f, MHA_INK_GREY, 0, 1, "x, the tokens",
         p->T == p->S ? sketch_text(s, "[%" I64 ", %" I64 ", %" I64 "]", p->B, p->S, p->E)
                      : sketch_text(s,
                                    "q: [%" I64 ", %" I64 ", %" I64 "]\nk, v: [%" I64 ", %" I64
                                    ", %" I64 "]",
                                    p->B, p->T, p->E, p->B, p->S, p->E));
    for (int i = 0; i < 3; i++) {
        flow(f, MHA_INK_GREY, 0, 1, 1, i, 0);
        step(f, inks[i], 1, i, sketch_text(s, "W_%s", names[i]),
             sketch_text(s, "[%" I64 ", %" I64 "]", p->E, heads[i] * sizes[i]));
        flow(f, inks[i], 1, i, 2, i, 0);
        stack(f, inks[i], 2, i, heads[i]);
        step(f, inks[i], 2, i,
             sketch_text(s, "%s, %s head%s", names[i], words_count(heads[i]).text,
                         heads[i] == 1 ? "" : "s"),
             sketch_text(s, "[%" I64 ", %" I64 ", %" I64 ", %" I64 "]", p->B, heads[i], rows[i],
                         sizes[i]));
    }
}

static void draw_attention(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->steps;
    const char *square =
        sketch_text(s, "[%" I64 ", %" I64 ", %" I64 ", %" I64 "]", p->B, p->H, p->T, p->S);
    double behind_k = p->k.shape[1] > 1 ? 12 : 0, behind_q = p->H > 1 ? 12 : 0;
    flow(f, MHA_INK_BLUE, 2, 0, 3, 0.5, behind_q);
    flow(f, MHA_INK_ORANGE, 2, 1, 3, 0.5, behind_k);
    stack(f, MHA_INK_PURPLE, 3, 0.5, p->H);
    bool masked = (double)p->mask_pairs != p->pairs || p->desc.keep_mask;
    step(f, MHA_INK_PURPLE, 3, 0.5, masked ? "scores, masked" : "scores",
         sketch_text(s, "q k" TRANSPOSED " / " SQRT "%" I64 "\n%s", p->D, square));
    flow(f, MHA_INK_PURPLE, 3, 0.5, 4, 0.5, behind_q);
    stack(f, MHA_INK_PURPLE, 4, 0.5, p->H);
    step(f, MHA_INK_PURPLE, 4, 0.5, "weights p",
         sketch_text(s, "softmax, rows sum to 1\n%s", square));
    flow(f, MHA_INK_GREEN, 2, 2, 4, 2, p->v.shape[1] > 1 ? 12 : 0);
    const double down[4] = {column(4) + BOX_W / 2.0, lane(0.5) + BOX_H, column(4) + BOX_W / 2.0,
                            lane(2) - (p->H > 1 ? 14 : 2)};
    sketch_line(s, MHA_INK_PURPLE, down, MHA_MARK_ARROW);
    stack(f, MHA_INK_ROSE, 4, 2, p->H);
    step(f, MHA_INK_ROSE, 4, 2, "heads",
         sketch_text(s, "p v, sums of values\n[%" I64 ", %" I64 ", %" I64 ", %" I64 "]", p->B, p->H,
                     p->T, p->Dv));
}

static void draw_output(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->steps;
    double middle = lane(3.2) + BOX_H / 2.0;
    const double down[4] = {column(4) + BOX_W / 2.0, lane(2) + BOX_H, column(4) + BOX_W / 2.0,
                            lane(3.2) - 3};
    sketch_line(s, MHA_INK_ROSE, down, MHA_MARK_ARROW);
    step(f, MHA_INK_ROSE, 4, 3.2, "concatenated",
         sketch_text(s, "[%" I64 ", %" I64 ", %" I64 "]", p->B, p->T, p->H * p->Dv));
    step(f, MHA_INK_ROSE, 3, 3.2, "W_o",
         sketch_text(s, "[%" I64 ", %" I64 "]", p->H * p->Dv, p->E));
    step(f, MHA_INK_GREY, 2, 3.2, "out",
         sketch_text(s, "[%" I64 ", %" I64 ", %" I64 "]", p->B, p->T, p->E));
    for (int i = 4; i > 2; i--) {
        const double left[4] = {column(i), middle, column(i - 1) + BOX_W + 3, middle};
        sketch_line(s, i == 4 ? MHA_INK_ROSE : MHA_INK_GREY, left, MHA_MARK_ARROW);
    }
    double x = 2, y = lane(3.2) + 22;
    sketch_words(s, MHA_INK_MUTED, x, y, 0,
                 sketch_text(s, "%s numbers a token, %s for each of %s head%s.",
                             words_count(p->E).text, words_count(p->D).text, words_count(p->H).text,
                             p->H == 1 ? "" : "s"));
    sketch_words(s, MHA_INK_MUTED, x, y + 20, 0,
                 "Side by side again, W_o mixes what the heads found.");
}

static void draw_steps(picture *f)
{
    draw_projections(f);
    draw_attention(f);
    draw_output(f);
    snprintf(f->captions[0], MOST_CAPTION,
             "Attention(q, k, v) = softmax(q k" TRANSPOSED " / " SQRT "D) v, in every head by "
             "itself. Each box has its shape below its name: [sequences, tokens, width], and "
             "[sequences, heads, tokens, head size] once the width is split into heads.");
}

/* ---- Heads ----------------------------------------------------------------------------------- */

enum { SHARE_W = 344, SHARE_GAP = 36, SHARE_H = 182, MOST_HEADS = 32, HEAD_TOP = 34, KV_TOP = 118 };

static mha_ink group_ink(int64_t group)
{
    static const mha_ink inks[] = {MHA_INK_BLUE, MHA_INK_ORANGE, MHA_INK_GREEN, MHA_INK_PURPLE,
                                   MHA_INK_ROSE};
    return inks[group % (int64_t)(sizeof inks / sizeof *inks)];
}

/* The left edge and the width of box i of n that share a row. */
static double row_place(double x, int64_t n, int64_t i, double most, double *width)
{
    double gap = n > 16 ? 2 : 4, size = (SHARE_W - 24 - gap * (double)(n - 1)) / (double)n;
    if (size > most) size = most;
    double used = size * (double)n + gap * (double)(n - 1);
    *width = size;
    return x + (SHARE_W - used) / 2 + (size + gap) * (double)i;
}

/* Query heads above, the key/value heads they read below. */
static void draw_sharing(picture *f, double x, const char *name, int64_t kv_heads, bool asked)
{
    const explain_problem *p = f->p;
    sketch *s = &f->heads;
    int64_t group = p->H / kv_heads;
    int64_t groups = group > MOST_HEADS ? 1 : MOST_HEADS / group;
    if (groups > kv_heads) groups = kv_heads;
    int64_t shown = groups * group > MOST_HEADS ? MOST_HEADS : groups * group;
    const double frame[4] = {x, 0, SHARE_W, SHARE_H};
    if (asked) sketch_box(s, MHA_INK_MUTED, frame, NULL, NULL);
    sketch_words(s, MHA_INK_TEXT, x + 14, 22, MHA_MARK_BOLD,
                 sketch_text(s, "%s%s", name, asked ? ", this one" : ""));
    sketch_words(s, MHA_INK_MUTED, x + SHARE_W - 14, 22, MHA_MARK_END,
                 sketch_text(s, "%s group%s of %s", words_count(kv_heads).text,
                             kv_heads == 1 ? "" : "s", words_count(group).text))
        ->size = 12;
    for (int64_t h = 0; h < shown; h++) {
        double width, kv_width, left = row_place(x, shown, h, 30, &width);
        double kv = row_place(x, groups, h / group, 44, &kv_width);
        const double line[4] = {left + width / 2, HEAD_TOP + 26, kv + kv_width / 2, KV_TOP};
        sketch_line(s, group_ink(h / group), line, MHA_MARK_DOWN);
        const double box[4] = {left, HEAD_TOP, width, 26};
        sketch_box(s, group_ink(h / group), box, width > 18 ? "q" : NULL, NULL);
    }
    for (int64_t g = 0; g < groups; g++) {
        double width, left = row_place(x, groups, g, 44, &width);
        const double box[4] = {left, KV_TOP, width, 28};
        sketch_box(s, group_ink(g), box, width > 24 ? "k, v" : NULL, NULL)->flags |= MHA_MARK_FULL;
    }
    char more[128] = "";
    if (shown < p->H)
        snprintf(more, sizeof more, "%" I64 " of %s drawn, ", shown, words_count(p->H).text);
    sketch_words(s, MHA_INK_MUTED, x + SHARE_W / 2.0, SHARE_H - 14, MHA_MARK_MIDDLE,
                 sketch_text(s, "%s%s numbers kept a token", more,
                             words_count(kv_heads * (p->D + p->Dv)).text))
        ->size = 12;
}

static void draw_heads(picture *f)
{
    const explain_problem *p = f->p;
    int64_t kv = p->k.shape[1], group = counts_group_example(&f->p->config.shape), at = 0;
    int64_t count = 1 + (group > 0) + (p->H > 1);
    const double step_x = SHARE_W + SHARE_GAP;
    double x = (FULL_WIDTH - (step_x * (double)count - SHARE_GAP)) / 2;
    draw_sharing(f, x, "MHA", p->H, kv == p->H);
    if (group) draw_sharing(f, x + step_x * (double)++at, "GQA", group, kv == group);
    if (p->H > 1) draw_sharing(f, x + step_x * (double)++at, "MQA", 1, kv == 1);
    if (p->H == 1) {
        snprintf(f->captions[1], MOST_CAPTION,
                 "One head has nothing to share: MHA, GQA and MQA are the same. With more heads, "
                 "the same width gives several patterns instead of one.");
        return;
    }
    snprintf(f->captions[1], MOST_CAPTION,
             "Multi-head: every query head has keys and values of its own. Grouped-query: a group "
             "of query heads reads the same ones. Multi-query: all do. The fewer there are, the "
             "smaller the cache that a generator keeps of them%s.",
             kv < p->H ? sketch_text(&f->heads, ": here %s" TIMES " smaller than with MHA",
                                     words_count(p->H / kv).text)
                       : "");
}

/* ---- Mask ------------------------------------------------------------------------------------ */

enum { MASK_W = 408, MASK_SIDE = 300, MASK_H = 386, SAMPLES = 8 };

/* What queries t0 .. t1 see of keys s0 .. s1; of many queries a few are sampled. */
static uint8_t mask_cell(const explain_problem *p, const int64_t t[2], const int64_t s[2])
{
    int64_t rows = t[1] - t[0], asked = rows < SAMPLES ? rows : SAMPLES, seen = 0, exempt = 0;
    for (int64_t i = 0; i < asked; i++) {
        int64_t row = asked > 1 ? t[0] + (rows - 1) * i / (asked - 1) : t[0];
        explain_seen part = explain_visible(p, row, s[0], s[1]);
        seen += part.seen;
        exempt += part.exempt;
    }
    mha_ink ink = 2 * exempt > seen ? MHA_INK_ORANGE : MHA_INK_BLUE;
    if (seen == 0) return MHA_INK_MUTED | MHA_CELL_SOFT;
    return (uint8_t)(seen == asked * (s[1] - s[0]) ? (int)ink : (int)ink | MHA_CELL_SOFT);
}

static void fill_grid(picture *f)
{
    const explain_problem *p = f->p;
    f->grid_rows = p->T < GRID ? p->T : GRID;
    f->grid_cols = p->S < GRID ? p->S : GRID;
    for (int64_t r = 0; r < f->grid_rows; r++)
        for (int64_t c = 0; c < f->grid_cols; c++) {
            const int64_t t[2] = {p->T / f->grid_rows * r + p->T % f->grid_rows * r / f->grid_rows,
                                  p->T / f->grid_rows * (r + 1) +
                                      p->T % f->grid_rows * (r + 1) / f->grid_rows};
            const int64_t s[2] = {p->S / f->grid_cols * c + p->S % f->grid_cols * c / f->grid_cols,
                                  p->S / f->grid_cols * (c + 1) +
                                      p->S % f->grid_cols * (c + 1) / f->grid_cols};
            f->grid[r * f->grid_cols + c] = mask_cell(p, t, s);
        }
}

/* A swatch and its word; returns where the next one goes. */
static double legend(sketch *s, double x, mha_ink ink, uint8_t soft, const char *word)
{
    static const uint8_t cells[8][2] = {{0, 128}, {1, 129}, {2, 130}, {3, 131},
                                        {4, 132}, {5, 133}, {6, 134}, {7, 135}};
    mha_mark *swatch = sketch_add(s, MHA_MARK_CELLS, ink, x, MASK_H - 22);
    swatch->width = swatch->height = 14;
    swatch->rows = swatch->cols = 1;
    swatch->cells = &cells[ink][soft != 0];
    sketch_words(s, MHA_INK_MUTED, x + 19, MASK_H - 11, 0, word)->size = 12;
    return x + 30 + 7.0 * (double)strlen(word);
}

static bool grid_holds(const picture *f, int cell)
{
    return memchr(f->grid, cell, (size_t)(f->grid_rows * f->grid_cols)) != NULL;
}

static void draw_mask(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->mask;
    fill_grid(f);
    double width = MASK_SIDE, height = MASK_SIDE;
    if (p->T < p->S && p->T * 2 < p->S) height = MASK_SIDE / 2.0;
    if (p->T < 4) height = 40.0 * (double)p->T;
    double x = (MASK_W - width) / 2 + 12, y = 34;
    mha_mark *cells = sketch_add(s, MHA_MARK_CELLS, MHA_INK_BLUE, x, y);
    cells->width = width;
    cells->height = height;
    cells->rows = f->grid_rows;
    cells->cols = f->grid_cols;
    cells->cells = f->grid;
    sketch_words(s, MHA_INK_TEXT, x, 12, MHA_MARK_BOLD, "keys")->size = 12;
    const double right[4] = {x + 38, 8, x + width, 8};
    sketch_line(s, MHA_INK_MUTED, right, MHA_MARK_ARROW)->size = 1.2;
    sketch_words(s, MHA_INK_MUTED, x, 28, 0, "0")->size = 11;
    sketch_words(s, MHA_INK_MUTED, x + width, 28, MHA_MARK_END, words_count(p->S - 1).text);
    s->marks[s->count - 1].text = sketch_text(s, "%s", words_count(p->S - 1).text);
    s->marks[s->count - 1].size = 11;
    sketch_words(s, MHA_INK_TEXT, x - 10, y + 12, MHA_MARK_END | MHA_MARK_BOLD, "queries")->size =
        12;
    if (p->T > 1)
        sketch_words(s, MHA_INK_MUTED, x - 10, y + height, MHA_MARK_END,
                     sketch_text(s, "%s", words_count(p->T - 1).text))
            ->size = 11;
    double at = 20;
    at = legend(s, at, MHA_INK_BLUE, 0, "seen");
    if (grid_holds(f, MHA_INK_BLUE | MHA_CELL_SOFT))
        at = legend(s, at, MHA_INK_BLUE, 1, "seen in part");
    if (grid_holds(f, MHA_INK_MUTED | MHA_CELL_SOFT))
        at = legend(s, at, MHA_INK_MUTED, 1, "hidden");
    if (grid_holds(f, MHA_INK_ORANGE) || grid_holds(f, MHA_INK_ORANGE | MHA_CELL_SOFT))
        legend(s, at, MHA_INK_ORANGE, 0, "exempt: first keys");
}

static void caption_mask(picture *f)
{
    const explain_problem *p = f->p;
    char cells[160] = "", share[128] = "What the pattern leaves out is not computed.";
    bool all = p->mask_pairs >= 0 && (double)p->mask_pairs == p->pairs;
    if (f->grid_rows < p->T || f->grid_cols < p->S)
        snprintf(cells, sizeof cells, " One cell stands for about %s " TIMES " %s pairs.",
                 words_count((p->T + f->grid_rows / 2) / f->grid_rows).text,
                 words_count((p->S + f->grid_cols / 2) / f->grid_cols).text);
    if (p->mask_pairs >= 0)
        snprintf(share, sizeof share, "%.3g%% of the pairs are computed; the rest has weight 0.",
                 100 * (double)p->mask_pairs / p->pairs);
    snprintf(f->captions[2], MOST_CAPTION, "%s%s",
             all ? "Every query sees every key: nothing is hidden." : share, cells);
}

/* ---- Positions and numbers ------------------------------------------------------------------- */

enum { TABLE_W = 634, TABLE_H = MASK_H, TABLE_LEFT = 48, TABLE_TOP = 34, TABLE_MAP_H = 300 };

/* A heat map of values in -1 .. 1, stretched over a rectangle. */
static void heat_map(sketch *s, const double at[4], mha_panel *panel, mha_figure *figure)
{
    figure->struct_size = sizeof *figure;
    figure->panel_size = sizeof *panel;
    figure->panels = panel;
    figure->panel_count = 1;
    figure->cmap = MHA_CMAP_DIVERGING;
    figure->range = MHA_RANGE_FIXED;
    figure->lo = -1;
    figure->hi = 1;
    mha_mark *mark = sketch_add(s, MHA_MARK_FIGURE, MHA_INK_TEXT, at[0], at[1]);
    mark->width = at[2];
    mark->height = at[3];
    mark->flags = MHA_MARK_BARE;
    mark->figure = figure;
}

static void small(sketch *s, mha_ink ink, double x, double y, uint32_t flags, const char *text)
{
    sketch_words(s, ink, x, y, flags, text)->size = 11.5;
}

static void label_table(picture *f, int64_t cols)
{
    sketch *s = &f->positions;
    const double width = TABLE_W - TABLE_LEFT, bottom = TABLE_TOP + TABLE_MAP_H;
    small(s, MHA_INK_TEXT, TABLE_LEFT, 12, MHA_MARK_BOLD, "dimension");
    const double right[4] = {TABLE_LEFT + 74, 8, TABLE_W, 8};
    sketch_line(s, MHA_INK_MUTED, right, MHA_MARK_ARROW)->size = 1.2;
    for (int64_t c = 0; c<cols; c += cols> 64 ? 16 : cols > 16 ? 8 : 1)
        small(s, MHA_INK_MUTED, TABLE_LEFT + width * ((double)c + 0.5) / (double)cols, 28,
              MHA_MARK_MIDDLE, sketch_text(s, "%" I64, c));
    for (int r = 0; r < TABLE_ROWS; r += 16)
        small(s, MHA_INK_MUTED, TABLE_LEFT - 8,
              TABLE_TOP + TABLE_MAP_H * (r + 0.5) / TABLE_ROWS + 4, MHA_MARK_END,
              sketch_text(s, "%d", r));
    small(s, MHA_INK_TEXT, 0, bottom + 16, MHA_MARK_BOLD, "position");
    const double bar[4] = {TABLE_W - 210, bottom + 34, 160, 12};
    for (int i = 0; i < TABLE_COLS; i++) f->bar[i] = (float)(2.0 * i / (TABLE_COLS - 1) - 1);
    f->bar_panel = (mha_panel){.values = f->bar};
    f->bar_figure = (mha_figure){.rows = 1, .cols = TABLE_COLS};
    heat_map(s, bar, &f->bar_panel, &f->bar_figure);
    small(s, MHA_INK_MUTED, bar[0] - 8, bar[1] + 10, MHA_MARK_END, "-1");
    small(s, MHA_INK_MUTED, bar[0] + bar[2] + 8, bar[1] + 10, 0, "1");
}

static mha_status draw_positions(picture *f)
{
    int64_t cols = f->p->E < TABLE_COLS ? f->p->E : TABLE_COLS;
    const mha_tensor table =
        mha_tensor_contiguous(f->table, MHA_F32, 2, (int64_t[]){TABLE_ROWS, cols});
    mha_context *context = NULL;
    mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 1};
    MHA_TRY(mha_context_create(&desc, &context));
    mha_status status = mha_sinusoidal_encoding(context, 0, &table);
    mha_context_destroy(context);
    f->table_panel = (mha_panel){.values = f->table};
    f->table_figure = (mha_figure){.rows = TABLE_ROWS, .cols = cols};
    const double at[4] = {TABLE_LEFT, TABLE_TOP, TABLE_W - TABLE_LEFT, TABLE_MAP_H};
    heat_map(&f->positions, at, &f->table_panel, &f->table_figure);
    label_table(f, cols);
    snprintf(f->captions[3], MOST_CAPTION,
             "sin(pos / 10000^(2i/E)) in even dimensions, cos in odd ones: every position has its "
             "own pattern of slow and fast waves (Vaswani et al. 2017). %sModels with RoPE turn q "
             "and k by the same frequencies.",
             f->p->E > TABLE_COLS ? "Drawn 128 wide; wider tables are the same, finer. " : "");
    return status;
}

static void number(picture *f, int i, mha_ink ink, const char *value, const char *name,
                   const char *formula)
{
    sketch *s = &f->numbers;
    double width = (FULL_WIDTH - 4 * 18) / 5.0, x = i * (width + 18);
    const double at[4] = {x, 0, width, 92};
    sketch_box(s, ink, at, NULL, NULL);
    sketch_words(s, ink, x + 14, 32, MHA_MARK_BOLD, value)->size = 19;
    sketch_words(s, MHA_INK_TEXT, x + 14, 55, 0, name)->size = 12.5;
    sketch_words(s, MHA_INK_MUTED, x + 14, 76, MHA_MARK_MONO, formula)->size = 11;
}

static void draw_numbers(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->numbers;
    double width = (double)p->E, q = (double)p->H * (double)p->D * width;
    double k = (double)p->k.shape[1] * (double)p->D * width;
    double v = (double)p->v.shape[1] * (double)p->Dv * width;
    double o = (double)p->H * (double)p->Dv * width, all = q + k + v + o;
    double kept = (double)p->B * (double)p->S * (double)p->k.shape[1] * (double)(p->D + p->Dv);
    number(
        f, 0, MHA_INK_GREY,
        sketch_text(s, "%s", all < 1e12 ? words_count((int64_t)all).text : words_rough(all).text),
        "weights in W_q, k, v, o", "E (H + Hk) (D + Dv)");
    number(f, 1, MHA_INK_PURPLE,
           sketch_text(s, "%s",
                       p->plan.visible_pairs < 1000000
                           ? words_count(p->plan.visible_pairs).text
                           : words_rough((double)p->plan.visible_pairs).text),
           "query-key pairs of all heads", "B H T S, if seen");
    number(f, 2, MHA_INK_ROSE, sketch_text(s, "%s", words_flops(p->plan.flops).text),
           "for scores and sums", "2 (D + Dv) a pair");
    number(f, 3, MHA_INK_BLUE, sketch_text(s, "%s", words_bytes(p->matrix_bytes).text),
           "of weights p in f32, if kept", "4 B H T S");
    number(f, 4, MHA_INK_ORANGE, sketch_text(s, "%s", words_bytes(2 * kept).text),
           "keys and values in f16", "2 B Hk (D + Dv) S");
    snprintf(f->captions[4], MOST_CAPTION,
             "One layer. The tiled computation never keeps the matrix of weights: it walks over "
             "blocks of keys with a running maximum, sum and output for each query.");
}

/* ---- The page -------------------------------------------------------------------------------- */

static void describe(picture *f)
{
    const explain_problem *p = f->p;
    snprintf(f->title, sizeof f->title, "Attention in %s", p->config.name);
    if (!strncmp(p->config.name, "width ", 6))
        snprintf(f->title, sizeof f->title, "Attention with %s", p->config.name);
    char tokens[128];
    if (p->T == p->S)
        snprintf(tokens, sizeof tokens, "%s token%s", words_count(p->T).text, p->T == 1 ? "" : "s");
    else
        snprintf(tokens, sizeof tokens, "%s quer%s and %s key%s", words_count(p->T).text,
                 p->T == 1 ? "y" : "ies", words_count(p->S).text, p->S == 1 ? "" : "s");
    snprintf(f->subtitle, sizeof f->subtitle,
             "One layer: %s sequence%s of %s, %s numbers wide, %s query head%s of %s, %s key/value "
             "head%s%s.",
             words_count(p->B).text, p->B == 1 ? "" : "s", tokens, words_count(p->E).text,
             words_count(p->H).text, p->H == 1 ? "" : "s", words_count(p->D).text,
             words_count(p->k.shape[1]).text, p->k.shape[1] == 1 ? "" : "s",
             p->config.causal ? ", causal" : "");
    snprintf(f->footnote, sizeof f->footnote, "multihead explain, version " CLI_VERSION ".%s%s",
             p->config.source ? " Sizes: " : "", p->config.source ? p->config.source : "");
}

static mha_status render(picture *f, bool dark, bool pdf, const mha_sink *sink)
{
    const mha_diagram_panel panels[] = {
        {"From tokens to output, step by step", f->captions[0], FULL_WIDTH, STEPS_HEIGHT,
         f->steps.marks, f->steps.count},
        {"Which heads share keys and values", f->captions[1], FULL_WIDTH, SHARE_H, f->heads.marks,
         f->heads.count},
        {"Who sees whom", f->captions[2], MASK_W, MASK_H, f->mask.marks, f->mask.count},
        {"Telling positions apart: the sinusoidal table", f->captions[3], TABLE_W, TABLE_H,
         f->positions.marks, f->positions.count},
        {"What it comes to", f->captions[4], FULL_WIDTH, 92, f->numbers.marks, f->numbers.count},
    };
    const mha_diagram diagram = {.struct_size = sizeof diagram,
                                 .panel_size = sizeof *panels,
                                 .mark_size = sizeof(mha_mark),
                                 .dark = dark,
                                 .title = f->title,
                                 .subtitle = f->subtitle,
                                 .footnote = f->footnote,
                                 .panels = panels,
                                 .panel_count = sizeof panels / sizeof *panels,
                                 .pdf = pdf};
    return mha_render_diagram(&diagram, sink);
}

mha_status explain_draw(const explain_problem *problem, bool dark, bool pdf, const mha_sink *sink)
{
    picture *f = arena_try(1, sizeof *f);
    if (!f) return mha_fail(MHA_ERR_NOMEM, "no memory for the picture");
    f->p = problem;
    describe(f);
    draw_steps(f);
    draw_heads(f);
    draw_mask(f);
    caption_mask(f);
    draw_numbers(f);
    MHA_TRY(draw_positions(f));
    return render(f, dark, pdf, sink);
}
