/* The picture of a problem: the shapes step by step, the heads that share keys and values, the
 * mask, position encodings, and the totals. It is composed of boxes, arrows and grids (render.h)
 * and independent of the machine, so the same problem gives the same bytes. */
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

typedef struct heat {
    float values[TABLE_ROWS * TABLE_COLS];
    mha_panel panel;
    mha_figure figure;
} heat;

typedef struct picture {
    const explain_problem *p;
    sketch steps, heads, mask, positions, numbers;
    char title[256], subtitle[512], footnote[512];
    char captions[5][MOST_CAPTION];
    uint8_t grid[GRID * GRID];
    int64_t grid_rows, grid_cols;
    heat table, bar;
} picture;

#define COUNT(n) words_count(n).text

/* "[2, 10, 64]" */
static const char *shape(sketch *s, int ndim, const int64_t *lengths)
{
    char text[SKETCH_TEXT] = "";
    size_t used = 0;
    for (int i = 0; i < ndim; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%" I64, i ? ", " : "[",
                                 lengths[i]);
    return sketch_text(s, "%s]", text);
}
#define SHAPE(s, ...) \
    shape(s, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
#define CAPTION(i, ...) snprintf(f->captions[i], MOST_CAPTION, __VA_ARGS__)

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

static double lane(double i)
{
    return 8 + i * LANE;
}

/* Draw a box, in front of up to two cards if there are several boxes of this kind. */
static void step(picture *f, mha_ink ink, int column, double at_lane, int64_t count,
                 const char *text, const char *detail)
{
    const double x = column * COLUMN, y = lane(at_lane);
    for (int i = count > 2 ? 2 : (int)count - 1; i > 0; i--)
        sketch_box(&f->steps, ink, x + 6 * i, y - 6 * i, BOX_W, BOX_H, NULL, NULL);
    sketch_box(&f->steps, ink, x, y, BOX_W, BOX_H, text, detail)->size = 14;
}

/* Draw an arrow from the right edge of a box, or of the cards behind it, to the left edge of
 * another box. */
static void flow(picture *f, mha_ink ink, int c0, double l0, int c1, double l1, int64_t count)
{
    sketch_line(&f->steps, ink, c0 * COLUMN + BOX_W + (count > 1 ? 12 : 0), lane(l0) + BOX_H / 2.0,
                c1 * COLUMN - 3, lane(l1) + BOX_H / 2.0,
                MHA_MARK_ARROW | (l0 != l1 ? MHA_MARK_ACROSS : 0u));
}

static void draw_projections(picture *f)
{
    static const char names[] = "qkv";
    static const mha_ink inks[] = {MHA_INK_BLUE, MHA_INK_ORANGE, MHA_INK_GREEN};
    const explain_problem *p = f->p;
    sketch *s = &f->steps;
    const mha_tensor *const all[] = {&p->q, &p->k, &p->v};
    const char *keys = SHAPE(s, p->B, p->S, p->E), *queries = SHAPE(s, p->B, p->T, p->E);
    step(f, MHA_INK_GREY, 0, 1, 1, "x, the tokens",
         p->T == p->S ? keys : sketch_text(s, "q: %s\nk, v: %s", queries, keys));
    for (int i = 0; i < 3; i++) {
        const int64_t *n = all[i]->shape, size = i < 2 ? p->D : p->Dv;
        flow(f, MHA_INK_GREY, 0, 1, 1, i, 1);
        step(f, inks[i], 1, i, 1, sketch_text(s, "W_%c", names[i]), SHAPE(s, p->E, n[1] * size));
        flow(f, inks[i], 1, i, 2, i, 1);
        step(f, inks[i], 2, i, n[1],
             sketch_text(s, "%c, %s head%s", names[i], COUNT(n[1]), words_s(n[1])),
             SHAPE(s, p->B, n[1], i ? p->S : p->T, size));
    }
}

static void draw_attention(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->steps;
    const double x = 4 * COLUMN + BOX_W / 2.0;
    const char *square = SHAPE(s, p->B, p->H, p->T, p->S);
    const bool masked = (double)p->mask_pairs != p->pairs || p->desc.keep_mask;
    flow(f, MHA_INK_BLUE, 2, 0, 3, 0.5, p->H);
    flow(f, MHA_INK_ORANGE, 2, 1, 3, 0.5, p->k.shape[1]);
    step(f, MHA_INK_PURPLE, 3, 0.5, p->H, masked ? "scores, masked" : "scores",
         sketch_text(s, "q k" TRANSPOSED " / " SQRT "%" I64 "\n%s", p->D, square));
    flow(f, MHA_INK_PURPLE, 3, 0.5, 4, 0.5, p->H);
    step(f, MHA_INK_PURPLE, 4, 0.5, p->H, "weights p",
         sketch_text(s, "softmax, rows sum to 1\n%s", square));
    flow(f, MHA_INK_GREEN, 2, 2, 4, 2, p->v.shape[1]);
    sketch_line(s, MHA_INK_PURPLE, x, lane(0.5) + BOX_H, x, lane(2) - (p->H > 1 ? 14 : 2),
                MHA_MARK_ARROW);
    step(f, MHA_INK_ROSE, 4, 2, p->H, "heads",
         sketch_text(s, "p v, sums of values\n%s", SHAPE(s, p->B, p->H, p->T, p->Dv)));
}

static void draw_output(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->steps;
    const double x = 4 * COLUMN + BOX_W / 2.0, middle = lane(3.2) + BOX_H / 2.0;
    const double below = lane(3.2) + 22;
    sketch_line(s, MHA_INK_ROSE, x, lane(2) + BOX_H, x, lane(3.2) - 3, MHA_MARK_ARROW);
    step(f, MHA_INK_ROSE, 4, 3.2, 1, "concatenated", SHAPE(s, p->B, p->T, p->H * p->Dv));
    step(f, MHA_INK_ROSE, 3, 3.2, 1, "W_o", SHAPE(s, p->H * p->Dv, p->E));
    step(f, MHA_INK_GREY, 2, 3.2, 1, "out", SHAPE(s, p->B, p->T, p->E));
    for (int i = 4; i > 2; i--)
        sketch_line(s, i == 4 ? MHA_INK_ROSE : MHA_INK_GREY, i * COLUMN, middle,
                    (i - 1) * COLUMN + BOX_W + 3, middle, MHA_MARK_ARROW);
    sketch_words(s, MHA_INK_MUTED, 2, below, 0, 0,
                 "%s numbers per token, %s for each of %s head%s.", COUNT(p->E), COUNT(p->D),
                 COUNT(p->H), words_s(p->H));
    sketch_words(s, MHA_INK_MUTED, 2, below + 20, 0, 0,
                 "W_o mixes the concatenated results of the heads.");
}

static void draw_steps(picture *f)
{
    draw_projections(f);
    draw_attention(f);
    draw_output(f);
    CAPTION(0, "Attention(q, k, v) = softmax(q k" TRANSPOSED " / " SQRT
               "D) v, separately in each head. The shape of each box is below its name: "
               "[sequences, tokens, width], and [sequences, heads, tokens, head size] once the "
               "width is split into heads.");
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

/* Draw the query heads and, below them, the key/value heads that they read. */
static void draw_sharing(picture *f, double x, const char *name, int64_t kv_heads, bool asked)
{
    const explain_problem *p = f->p;
    sketch *s = &f->heads;
    const int64_t group = p->H / kv_heads, fit = group > MOST_HEADS ? 1 : MOST_HEADS / group;
    const int64_t groups = fit > kv_heads ? kv_heads : fit;
    const int64_t shown = groups * group > MOST_HEADS ? MOST_HEADS : groups * group;
    char more[128] = "";
    if (asked) sketch_box(s, MHA_INK_MUTED, x, 0, SHARE_W, SHARE_H, NULL, NULL);
    sketch_words(s, MHA_INK_TEXT, x + 14, 22, MHA_MARK_BOLD, 0, "%s%s", name,
                 asked ? ", this one" : "");
    sketch_words(s, MHA_INK_MUTED, x + SHARE_W - 14, 22, MHA_MARK_END, 12, "%s group%s of %s",
                 COUNT(kv_heads), words_s(kv_heads), COUNT(group));
    for (int64_t h = 0; h < shown; h++) {
        double width, kv_width, left = row_place(x, shown, h, 30, &width);
        double kv = row_place(x, groups, h / group, 44, &kv_width);
        sketch_line(s, group_ink(h / group), left + width / 2, HEAD_TOP + 26, kv + kv_width / 2,
                    KV_TOP, MHA_MARK_DOWN);
        sketch_box(s, group_ink(h / group), left, HEAD_TOP, width, 26, width > 18 ? "q" : NULL,
                   NULL);
    }
    for (int64_t g = 0; g < groups; g++) {
        double width, left = row_place(x, groups, g, 44, &width);
        sketch_box(s, group_ink(g), left, KV_TOP, width, 28, width > 24 ? "k, v" : NULL, NULL)
            ->flags |= MHA_MARK_FULL;
    }
    if (shown < p->H) snprintf(more, sizeof more, "%" I64 " of %s drawn, ", shown, COUNT(p->H));
    sketch_words(s, MHA_INK_MUTED, x + SHARE_W / 2.0, SHARE_H - 14, MHA_MARK_MIDDLE, 12,
                 "%s%s numbers kept per token", more, COUNT(kv_heads * (p->D + p->Dv)));
}

static void draw_heads(picture *f)
{
    const explain_problem *p = f->p;
    const int64_t kv = p->k.shape[1], group = counts_group_example(&f->p->config.shape);
    const int64_t count = 1 + (group > 0) + (p->H > 1);
    const double step_x = SHARE_W + SHARE_GAP;
    double x = (FULL_WIDTH - (step_x * (double)count - SHARE_GAP)) / 2;
    draw_sharing(f, x, "MHA", p->H, kv == p->H);
    if (group) draw_sharing(f, x + step_x, "GQA", group, kv == group);
    if (p->H > 1) draw_sharing(f, x + step_x * (double)(count - 1), "MQA", 1, kv == 1);
    if (p->H == 1)
        CAPTION(1, "One head has nothing to share: MHA, GQA and MQA are the same. With more heads, "
                   "the same width gives several patterns instead of one.");
    else
        CAPTION(1,
                "Multi-head: every query head has keys and values of its own. Grouped-query: a "
                "group of query heads shares them. Multi-query: all query heads share them. The "
                "fewer key/value heads, the smaller the cache during generation%s%s%s.",
                kv < p->H ? ": here " : "", kv < p->H ? COUNT(p->H / kv) : "",
                kv < p->H ? TIMES " smaller than with MHA" : "");
}

/* ---- Mask ------------------------------------------------------------------------------------ */

enum { MASK_W = 408, MASK_SIDE = 300, MASK_H = 386, SAMPLES = 8 };

/* The visibility of keys s0 .. s1 for queries t0 .. t1; many queries are sampled. */
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

/* The start of part i of n of `all`, without all * i, which may overflow. */
static int64_t part_begin(int64_t all, int64_t n, int64_t i)
{
    return all / n * i + all % n * i / n;
}

static void fill_grid(picture *f)
{
    const explain_problem *p = f->p;
    const int64_t rows = f->grid_rows = p->T < GRID ? p->T : GRID;
    const int64_t cols = f->grid_cols = p->S < GRID ? p->S : GRID;
    for (int64_t i = 0; i < rows * cols; i++) {
        const int64_t r = i / cols, c = i % cols;
        const int64_t t[2] = {part_begin(p->T, rows, r), part_begin(p->T, rows, r + 1)};
        const int64_t s[2] = {part_begin(p->S, cols, c), part_begin(p->S, cols, c + 1)};
        f->grid[i] = mask_cell(p, t, s);
    }
}

/* A swatch and its label, if the grid has such a cell; *x advances to the next one. */
static void legend(picture *f, double *x, int cell, const char *word)
{
    static const uint8_t cells[8][2] = {{0, 128}, {1, 129}, {2, 130}, {3, 131},
                                        {4, 132}, {5, 133}, {6, 134}, {7, 135}};
    const int ink = cell & ~MHA_CELL_SOFT;
    sketch *s = &f->mask;
    mha_mark *swatch = sketch_add(s, MHA_MARK_CELLS, (mha_ink)ink, *x, MASK_H - 22, 14, 14);
    swatch->rows = swatch->cols = 1;
    swatch->cells = &cells[ink][ink != cell];
    sketch_words(s, MHA_INK_MUTED, *x + 19, MASK_H - 11, 0, 12, "%s", word);
    *x += 30 + 7.0 * (double)strlen(word);
}

static bool grid_holds(const picture *f, int cell)
{
    return memchr(f->grid, cell, (size_t)(f->grid_rows * f->grid_cols)) != NULL;
}

static void draw_legend(picture *f)
{
    double at = 20;
    legend(f, &at, MHA_INK_BLUE, "seen");
    if (grid_holds(f, MHA_INK_BLUE | MHA_CELL_SOFT))
        legend(f, &at, MHA_INK_BLUE | MHA_CELL_SOFT, "seen in part");
    if (grid_holds(f, MHA_INK_MUTED | MHA_CELL_SOFT))
        legend(f, &at, MHA_INK_MUTED | MHA_CELL_SOFT, "hidden");
    if (grid_holds(f, MHA_INK_ORANGE) || grid_holds(f, MHA_INK_ORANGE | MHA_CELL_SOFT))
        legend(f, &at, MHA_INK_ORANGE, "exempt: first keys");
}

static void draw_mask(picture *f)
{
    const explain_problem *p = f->p;
    sketch *s = &f->mask;
    const double width = MASK_SIDE, x = (MASK_W - width) / 2 + 12, y = 34;
    const double height = p->T < 4                         ? 40.0 * (double)p->T
                          : p->T < p->S && p->T * 2 < p->S ? MASK_SIDE / 2.0
                                                           : MASK_SIDE;
    fill_grid(f);
    mha_mark *cells = sketch_add(s, MHA_MARK_CELLS, MHA_INK_BLUE, x, y, width, height);
    cells->rows = f->grid_rows;
    cells->cols = f->grid_cols;
    cells->cells = f->grid;
    sketch_words(s, MHA_INK_TEXT, x, 12, MHA_MARK_BOLD, 12, "keys");
    sketch_line(s, MHA_INK_MUTED, x + 38, 8, x + width, 8, MHA_MARK_ARROW)->size = 1.2;
    sketch_words(s, MHA_INK_MUTED, x, 28, 0, 11, "0");
    sketch_words(s, MHA_INK_MUTED, x + width, 28, MHA_MARK_END, 11, "%s", COUNT(p->S - 1));
    sketch_words(s, MHA_INK_TEXT, x - 10, y + 12, MHA_MARK_END | MHA_MARK_BOLD, 12, "queries");
    if (p->T > 1)
        sketch_words(s, MHA_INK_MUTED, x - 10, y + height, MHA_MARK_END, 11, "%s", COUNT(p->T - 1));
    draw_legend(f);
}

static void caption_mask(picture *f)
{
    const explain_problem *p = f->p;
    char cells[160] = "", share[128] = "Blocks that the pattern omits are not computed.";
    if (f->grid_rows < p->T || f->grid_cols < p->S)
        snprintf(cells, sizeof cells, " One cell represents about %s " TIMES " %s pairs.",
                 COUNT((p->T + f->grid_rows / 2) / f->grid_rows),
                 COUNT((p->S + f->grid_cols / 2) / f->grid_cols));
    if (p->mask_pairs >= 0 && (double)p->mask_pairs == p->pairs)
        snprintf(share, sizeof share, "Every query sees every key: nothing is hidden.");
    else if (p->mask_pairs >= 0)
        snprintf(share, sizeof share, "%.3g%% of the pairs are computed; the rest has weight 0.",
                 100 * (double)p->mask_pairs / p->pairs);
    CAPTION(2, "%s%s", share, cells);
}

/* ---- Positions and numbers ------------------------------------------------------------------- */

enum { TABLE_W = 634, TABLE_H = MASK_H, TABLE_LEFT = 48, TABLE_TOP = 34, TABLE_MAP_H = 300 };

/* A heat map of values in -1 .. 1, stretched over a rectangle. */
static void heat_map(sketch *s, double x, double y, double width, double height, heat *map,
                     int64_t rows, int64_t cols)
{
    map->panel = (mha_panel){.values = map->values};
    map->figure = (mha_figure){.struct_size = sizeof map->figure,
                               .panel_size = sizeof map->panel,
                               .panels = &map->panel,
                               .panel_count = 1,
                               .rows = rows,
                               .cols = cols,
                               .cmap = MHA_CMAP_DIVERGING,
                               .range = MHA_RANGE_FIXED,
                               .lo = -1,
                               .hi = 1};
    mha_mark *mark = sketch_add(s, MHA_MARK_FIGURE, MHA_INK_TEXT, x, y, width, height);
    mark->flags = MHA_MARK_BARE;
    mark->figure = &map->figure;
}

static void label_table(picture *f, int64_t cols)
{
    sketch *s = &f->positions;
    const double width = TABLE_W - TABLE_LEFT, bottom = TABLE_TOP + TABLE_MAP_H, size = 11.5;
    const double bar_x = TABLE_W - 210, bar_y = bottom + 34, bar_w = 160;
    const int64_t stride = cols > 64 ? 16 : cols > 16 ? 8 : 1;
    sketch_words(s, MHA_INK_TEXT, TABLE_LEFT, 12, MHA_MARK_BOLD, size, "dimension");
    sketch_line(s, MHA_INK_MUTED, TABLE_LEFT + 74, 8, TABLE_W, 8, MHA_MARK_ARROW)->size = 1.2;
    for (int64_t c = 0; c < cols; c += stride)
        sketch_words(s, MHA_INK_MUTED, TABLE_LEFT + width * ((double)c + 0.5) / (double)cols, 28,
                     MHA_MARK_MIDDLE, size, "%" I64, c);
    for (int r = 0; r < TABLE_ROWS; r += 16)
        sketch_words(s, MHA_INK_MUTED, TABLE_LEFT - 8,
                     TABLE_TOP + TABLE_MAP_H * (r + 0.5) / TABLE_ROWS + 4, MHA_MARK_END, size, "%d",
                     r);
    sketch_words(s, MHA_INK_TEXT, 0, bottom + 16, MHA_MARK_BOLD, size, "position");
    for (int i = 0; i < TABLE_COLS; i++) f->bar.values[i] = (float)(2.0 * i / (TABLE_COLS - 1) - 1);
    heat_map(s, bar_x, bar_y, bar_w, 12, &f->bar, 1, TABLE_COLS);
    sketch_words(s, MHA_INK_MUTED, bar_x - 8, bar_y + 10, MHA_MARK_END, size, "-1");
    sketch_words(s, MHA_INK_MUTED, bar_x + bar_w + 8, bar_y + 10, 0, size, "1");
}

static mha_status draw_positions(picture *f)
{
    const int64_t cols = f->p->E < TABLE_COLS ? f->p->E : TABLE_COLS;
    const mha_tensor table =
        mha_tensor_contiguous(f->table.values, MHA_F32, 2, (int64_t[]){TABLE_ROWS, cols});
    mha_context *context = NULL;
    mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = 1};
    MHA_TRY(mha_context_create(&desc, &context));
    mha_status status = mha_sinusoidal_encoding(context, 0, &table);
    mha_context_destroy(context);
    heat_map(&f->positions, TABLE_LEFT, TABLE_TOP, TABLE_W - TABLE_LEFT, TABLE_MAP_H, &f->table,
             TABLE_ROWS, cols);
    label_table(f, cols);
    CAPTION(3,
            "sin(pos / 10000^(2i/E)) in even dimensions, cos in odd ones: every position has its "
            "own pattern of slow and fast waves (Vaswani et al. 2017). %sModels with RoPE rotate q "
            "and k by the same frequencies.",
            f->p->E > TABLE_COLS ? "Drawn 128 wide; wider tables are the same with finer steps. "
                                 : "");
    return status;
}

static void draw_numbers(picture *f)
{
    const explain_problem *p = f->p;
    const double kv = (double)p->k.shape[1], value_kv = (double)p->v.shape[1], h = (double)p->H;
    const double all = (double)p->E * (h * (double)p->D + kv * (double)p->D +
                                       value_kv * (double)p->Dv + h * (double)p->Dv);
    const double kept = (double)p->B * (double)p->S * kv * (double)(p->D + p->Dv);
    const int64_t pairs = p->plan.visible_pairs;
    const struct {
        mha_ink ink;
        words value;
        const char *name, *formula;
    } numbers[] = {
        {MHA_INK_GREY, all < 1e12 ? words_count((int64_t)all) : words_rough(all),
         "weights in W_q, k, v, o", "E (H + Hk) (D + Dv)"},
        {MHA_INK_PURPLE, pairs < 1000000 ? words_count(pairs) : words_rough((double)pairs),
         "query-key pairs of all heads", "B H T S, if visible"},
        {MHA_INK_ROSE, words_flops(p->plan.flops), "for scores and sums", "2 (D + Dv) per pair"},
        {MHA_INK_BLUE, words_bytes(p->matrix_bytes), "of weights p in f32, if kept", "4 B H T S"},
        {MHA_INK_ORANGE, words_bytes(2 * kept), "keys and values in f16", "2 B Hk (D + Dv) S"},
    };
    const double width = (FULL_WIDTH - 4 * 18) / 5.0;
    sketch *s = &f->numbers;
    for (int i = 0; i < 5; i++) {
        const double x = i * (width + 18);
        sketch_box(s, numbers[i].ink, x, 0, width, 92, NULL, NULL);
        sketch_words(s, numbers[i].ink, x + 14, 32, MHA_MARK_BOLD, 19, "%s", numbers[i].value.text);
        sketch_words(s, MHA_INK_TEXT, x + 14, 55, 0, 12.5, "%s", numbers[i].name);
        sketch_words(s, MHA_INK_MUTED, x + 14, 76, MHA_MARK_MONO, 11, "%s", numbers[i].formula);
    }
    CAPTION(4, "One layer. The tiled computation never stores the matrix of weights: it processes "
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
        snprintf(tokens, sizeof tokens, "%s token%s", COUNT(p->T), words_s(p->T));
    else
        snprintf(tokens, sizeof tokens, "%s quer%s and %s key%s", COUNT(p->T),
                 p->T == 1 ? "y" : "ies", COUNT(p->S), words_s(p->S));
    snprintf(f->subtitle, sizeof f->subtitle,
             "One layer: %s sequence%s of %s, %s numbers wide, %s query head%s of %s, %s key/value "
             "head%s%s.",
             COUNT(p->B), words_s(p->B), tokens, COUNT(p->E), COUNT(p->H), words_s(p->H),
             COUNT(p->D), COUNT(p->k.shape[1]), words_s(p->k.shape[1]),
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
        {"Which keys each query sees", f->captions[2], MASK_W, MASK_H, f->mask.marks,
         f->mask.count},
        {"Positions: the sinusoidal table", f->captions[3], TABLE_W, TABLE_H, f->positions.marks,
         f->positions.count},
        {"Totals", f->captions[4], FULL_WIDTH, 92, f->numbers.marks, f->numbers.count},
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
    if (!f) return mha_fail(MHA_ERR_NOMEM, "out of memory for the picture");
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
