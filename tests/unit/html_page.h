/* Writing and parsing reports in tests. */
#ifndef UNIT_HTML_PAGE_H
#define UNIT_HTML_PAGE_H

#include <multihead/render.h>

mha_figure html_figure(const mha_panel *panels, int64_t count, int64_t rows, int64_t cols);

mha_buffer html_render(const mha_figure *figure, const mha_report *report);

/* Invariants of every page. Base64 may contain "http" by chance, but not "http:". */
void html_check_page(const mha_buffer *page);

/* The JSON of a page, to be freed. */
char *html_data(const mha_buffer *page);

int64_t html_integer(const char *json, const char *name);

/* The bytes of the first map in this part of the JSON. */
unsigned char *html_decode(const char *json, size_t *size);

float *html_wave(int64_t count);

/* The status of a page that the library rejects without writing anything. */
mha_status html_refused(const mha_figure *figure, const mha_report *report);

#endif
