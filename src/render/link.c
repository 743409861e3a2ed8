/* The most distinctive cell of each map. Pages open on this cell, and cards begin with it. */
#include "html.h"

#include <multihead/component.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* English function words: a link to one of them is rarely informative. Pronouns are not in the
 * list, because their referents are of interest. */
static const char function_words[] =
    " a an the this that these those and or but nor so if than as while because of in on at by to "
    "from for with about into onto near over under between behind beside through before after "
    "during is are was were be been being am do does did have has had will "
    "would can could may might shall should must not no very too s t d ll re ve didn doesn don "
    "isn wasn weren won wouldn couldn shouldn ";

enum { NEAR = 2, TIERS = 4, MOST_LETTERS = 15 };
/* relative to another link: then the other link is more informative */
static const double FAINT = 0.25;

/* Labels of word pieces begin with a space, U+2581 or U+0120. */
static const char *without_space(const char *label)
{
    while (*label == ' ') label++;
    if (!strncmp(label, "\xE2\x96\x81", 3)) return label + 3;
    return strncmp(label, "\xC4\xA0", 2) ? label : label + 2;
}

/* Whether a text has a letter or digit. Characters beyond ASCII count if they are outside the
 * blocks of punctuation. */
static bool has_letter(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if ((*c >= '0' && *c <= '9') || ((*c | 32) >= 'a' && (*c | 32) <= 'z')) return true;
        const bool punctuation = *c == 0xC2 || (*c == 0xE2 && (c[1] == 0x80 || c[1] == 0x81)) ||
                                 (*c == 0xE3 && c[1] == 0x80) || (*c == 0xEF && c[1] == 0xBC);
        if (*c >= 0xC2 && !punctuation) return true;
    }
    return false;
}

static bool is_function_word(const char *text)
{
    char word[MOST_LETTERS + 3] = " ";
    size_t length = 1;
    if (*text == '\'') text++; /* 's, 't */
    if (strlen(text) > MOST_LETTERS) return false;
    for (; *text; text++)
        word[length++] = (char)(*text >= 'A' && *text <= 'Z' ? *text | 32 : *text);
    const char *apostrophe = memchr(word, '\'', length); /* "didn't" counts as "didn" */
    if (apostrophe) length = (size_t)(apostrophe - word);
    word[length] = ' ';
    word[length + 1] = '\0';
    return strstr(function_words, word) != NULL;
}

/* The first tier of links that a label can belong to. */
static uint8_t tier_of(const mha_report *report, const char *label)
{
    if (!label) return 0;
    for (int64_t i = 0; i < report->special_count; i++)
        if (report->special[i] && !strcmp(report->special[i], label)) return 3;
    const char *text = without_space(label);
    if (!has_letter(text)) return 2;
    return is_function_word(text);
}

typedef struct link_search {
    const mha_figure *figure;
    double *mean;       /* [rows, cols] mean size of a cell over the maps that have it */
    uint8_t *row, *col; /* [rows], [cols] tiers of labels */
    bool same;          /* rows and columns are the same tokens with the same labels */
    const char *const *labels;
} link_search;

static double size_at(const mha_panel *panel, int64_t r, int64_t c)
{
    if (panel->masked && panel->masked[r * panel->mask_stride + c]) return -1;
    const double size = fabs((double)panel->values[r * panel->row_stride + c]);
    return isfinite(size) ? size : -1;
}

static void make_means(link_search *x)
{
    const mha_figure *f = x->figure;
    for (int64_t i = 0; i < f->panel_count; i++) {
        const mha_panel panel = mhai_figure_panel(f, i);
        for (int64_t r = 0; r < f->rows; r++)
            for (int64_t c = 0; c < f->cols; c++) {
                const double size = size_at(&panel, r, c);
                if (size > 0) x->mean[r * f->cols + c] += size / (double)f->panel_count;
            }
    }
}

/* Whether the column is another occurrence of the row's word. */
static bool is_again(const link_search *x, int64_t r, int64_t c)
{
    return x->labels && x->labels[r] && x->labels[c] && !strcmp(x->labels[r], x->labels[c]);
}

/* The tier of a cell. 0: different content words that are not neighbours; 1: words; 2: tokens that
 * are not special; 3: all cells. The diagonal and the first column of a causal map, the default
 * target of heads (Xiao et al. 2024), are in the last tier. */
static int tier_at(const link_search *x, bool causal, int64_t r, int64_t c)
{
    const int tier = x->row[r] > x->col[c] ? x->row[r] : x->col[c];
    if (!x->same) return tier;
    if (r == c || (causal && c == 0)) return 3;
    return tier == 0 && (llabs(r - c) <= NEAR || is_again(x, r, c)) ? 1 : tier;
}

/* The best link of each tier. */
static void search_tiers(const link_search *x, const mha_panel *panel, mha_link best[TIERS])
{
    const mha_figure *f = x->figure;
    const bool causal = x->same && f->cols > 1 && panel->masked && size_at(panel, 0, 1) < 0;
    for (int tier = 0; tier < TIERS; tier++) best[tier] = (mha_link){.row = -1, .col = -1};
    for (int64_t r = 0; r < f->rows; r++)
        for (int64_t c = 0; c < f->cols; c++) {
            const double size = size_at(panel, r, c), mean = x->mean[r * f->cols + c];
            if (size < 0) continue;
            const int tier = tier_at(x, causal, r, c);
            /* The cell's term of the divergence of this map from the mean map. */
            const double score = size > mean ? size * log(size / mean) : 0;
            mha_link *known = &best[tier];
            if (known->row >= 0 &&
                (score < known->score || (score == known->score && size <= fabs(known->value))))
                continue;
            *known = (mha_link){r,    c,     (double)panel->values[r * panel->row_stride + c],
                                mean, score, tier == 0};
        }
}

static mha_link search(const link_search *x, int64_t i)
{
    const mha_panel panel = mhai_figure_panel(x->figure, i);
    mha_link best[TIERS];
    int tier = 0;
    search_tiers(x, &panel, best);
    for (int next = 1; next < TIERS; next++) {
        const bool faint =
            next < TIERS - 1 && fabs(best[tier].value) < FAINT * fabs(best[next].value);
        if (best[next].row >= 0 && (best[tier].row < 0 || faint)) tier = next;
    }
    return best[tier];
}

static mha_status open_search(const mha_figure *figure, const mha_report *report, link_search *x)
{
    const size_t rows = (size_t)figure->rows, cols = (size_t)figure->cols;
    *x = (link_search){.figure = figure,
                       .mean = calloc(rows * cols + 1, sizeof *x->mean),
                       .row = malloc(rows + cols + 1),
                       .same = (report->same_labels || report->tokens) && rows == cols};
    if (!x->mean || !x->row) return mha_fail(MHA_ERR_NOMEM, "mha_figure_links: out of memory");
    x->col = x->row + rows;
    const char *const *row_labels = figure->row_labels, *const *col_labels = figure->col_labels;
    x->labels = x->same ? row_labels ? row_labels : col_labels : NULL;
    if (x->same) row_labels = col_labels = x->labels;
    for (int64_t r = 0; r < figure->rows; r++)
        x->row[r] = tier_of(report, row_labels ? row_labels[r] : NULL);
    for (int64_t c = 0; c < figure->cols; c++)
        x->col[c] = tier_of(report, col_labels ? col_labels[c] : NULL);
    make_means(x);
    return MHA_OK;
}

mha_status mhai_html_links(const mha_figure *figure, const mha_report *report, mha_link *links,
                           int64_t *strongest)
{
    link_search x;
    mha_status status = open_search(figure, report, &x);
    *strongest = 0;
    for (int64_t i = 0; !status && i < figure->panel_count; i++) {
        links[i] = search(&x, i);
        const mha_link *best = &links[*strongest];
        if (links[i].content != best->content ? links[i].content : links[i].score > best->score)
            *strongest = i;
    }
    free(x.mean);
    free(x.row);
    return status;
}

mha_status mha_figure_links(const mha_figure *figure, const mha_report *report, mha_link *links,
                            int64_t *strongest)
{
    mha_figure own;
    mha_report own_report;
    MHA_NEED("mha_figure_links", links, strongest);
    MHA_TRY(mhai_figure_check(figure, &own));
    MHA_TRY(mhai_html_check(report, &own, &own_report));
    return mhai_html_links(&own, &own_report, links, strongest);
}
