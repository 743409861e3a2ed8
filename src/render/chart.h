/* Shared by charts and reports: a checked curve. */
#ifndef MHAI_RENDER_CHART_H
#define MHAI_RENDER_CHART_H

#include <multihead/render.h>

/* Copy the curve at `at`, of `size` bytes, and check it; *points of all curves, which it adds to,
 * stay within 10^5. what and i are for messages: "report: curve 3 ...". */
MHA_NODISCARD mha_status mhai_curve_read(const char *what, const void *at, uint32_t size, int64_t i,
                                         int64_t *points, mha_curve *curve);

#endif
