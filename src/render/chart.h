/* Shared by charts and reports: a checked curve. */
#ifndef MHAI_RENDER_CHART_H
#define MHAI_RENDER_CHART_H

#include <multihead/render.h>

/* Copy the curve at `at`, of `size` bytes, and check it. Its points are added to *points, the total
 * of all curves, which may not exceed 10^5. Messages use what and i: "report: curve 3 ...". */
MHA_NODISCARD mha_status mhai_curve_read(const char *what, const void *at, uint32_t size, int64_t i,
                                         int64_t *points, mha_curve *curve);

#endif
