/* The curve as a picture: what the model is worth against the heads that are left. */
#include "common/json_out.h"
#include "prune/prune.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 640, HEIGHT = 412, LEFT = 64, RIGHT = 624, TOP = 56, BOTTOM = 340 };

/* Place of a point: more heads on the left, so that heads go from left to right. */
static double x_of(const prune_job *job, int64_t heads)
{
    const double part = job->heads > 0 ? (double)(job->heads - heads) / (double)job->heads : 0;
    return LEFT + part * (RIGHT - LEFT);
}

/* From `low`, where the axis begins, to 1. */
static double y_of(double quality, double low)
{
    const double part = quality < low ? 0 : quality > 1 ? 1 : (quality - low) / (1 - low);
    return BOTTOM - part * (BOTTOM - TOP);
}

static double quality_at(const prune_point *p, int order)
{
    return order == 0   ? p->ours.measure
           : order == 1 ? p->reversed.measure
                        : p->random[order - 2].measure;
}

/* The tenth below everything that is drawn. */
static double lowest(const prune_job *job)
{
    double low = 1;
    for (int64_t i = 0; i < job->point_count; i++)
        for (int k = 0; k < 2 + PRUNE_RANDOM; k++)
            if (quality_at(&job->points[i], k) < low) low = quality_at(&job->points[i], k);
    int tenths = 9;
    while (tenths > -10 && tenths > low * 10) tenths--;
    return tenths / 10.0;
}

static void text(json_out *out, double x, double y, const char *anchor, const char *words)
{
    json_print(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (const char *end = words + strlen(words); words < end;) {
        const char *from = words;
        bool hidden;
        const uint32_t code = mha_text_next(&words, end, &hidden);
        if (hidden)
            json_print(out, "\xEF\xBF\xBD");
        else if (code == '<' || code == '>' || code == '&') /* ">" for the sake of "]]>" */
            json_print(out, "&#%d;", (int)code);
        else
            json_put(out, from, (size_t)(words - from));
    }
    json_print(out, "</text>\n");
}

static void axes(json_out *out, const prune_job *job, double low)
{
    char words[48];
    for (int i = 0; i <= 4; i++) {
        const double quality = low + i * (1 - low) / 4, y = y_of(quality, low);
        json_print(out, "<path d=\"M%d %.1fH%d\" stroke=\"#ccc\"/>\n", LEFT, y, RIGHT);
        snprintf(words, sizeof words, "%.3g", quality);
        text(out, LEFT - 8, y + 4, "end", words);
        const int64_t heads = job->heads - i * job->heads / 4;
        snprintf(words, sizeof words, "%" PRId64, heads);
        text(out, x_of(job, heads), BOTTOM + 20, "middle", words);
    }
    text(out, (LEFT + RIGHT) / 2.0, BOTTOM + 42, "middle", "heads left");
    text(out, LEFT, TOP - 12, "start", prune_measured(job));
}

static void line(json_out *out, const prune_job *job, int order, double low, const char *style)
{
    json_print(out, "<path fill=\"none\" d=\"");
    for (int64_t i = 0; i < job->point_count; i++)
        json_print(out, "%s%.1f %.1f", i ? "L" : "M", x_of(job, job->points[i].heads),
                   y_of(quality_at(&job->points[i], order), low));
    json_print(out, "\" %s/>\n", style);
}

mha_status prune_write_svg(const void *user, const mha_sink *sink)
{
    static const char *const styles[] = {
        "stroke=\"#0072b2\" stroke-width=\"2.5\"",
        "stroke=\"#d55e00\" stroke-width=\"2\" stroke-dasharray=\"6 4\"",
        "stroke=\"#777\" stroke-width=\"1\""};
    static const char *const names[] = {"least important first", "most important first",
                                        "5 random orders"};
    const prune_job *job = user;
    json_out out = {.sink = sink};
    const double low = lowest(job);
    json_print(&out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\"", WIDTH,
               HEIGHT);
    json_print(&out, " font-family=\"sans-serif\" font-size=\"13\">\n");
    json_print(&out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, HEIGHT);
    text(&out, LEFT, 22, "start", job->model.name);
    axes(&out, job, low);
    for (int k = 1 + PRUNE_RANDOM; k >= 0; k--) line(&out, job, k, low, styles[k > 2 ? 2 : k]);
    for (int k = 0; k < 3; k++) {
        const double x = LEFT + 190.0 * k;
        json_print(&out, "<path d=\"M%.1f %dh24\" %s/>\n", x, HEIGHT - 6, styles[k]);
        text(&out, x + 30, HEIGHT - 2, "start", names[k]);
    }
    json_print(&out, "</svg>\n");
    return out.status;
}
