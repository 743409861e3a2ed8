/* A strip of rows times packed weights, one block of inputs. Contract in kernels.h. */

/* The last panel may have fewer columns than registers: it goes through a buffer. */
static void gemm_partial_panel(const mhai_gemm *g, block t, int64_t cols)
{
    float buffer[MHAI_MAX_ROWS * MHAI_PANEL] = {0};
    float *out = t.c;
    t.c = buffer;
    t.c_stride = MHAI_PANEL;
    panel_product(g->transposed ? block_add_columns : block_store_rows, g->rows, t);
    for (int r = 0; r < g->rows; r++)
        for (int64_t c = 0; c < cols; c++) out[r * g->out_stride + c] += buffer[r * MHAI_PANEL + c];
}

static void start_from_bias(const mhai_gemm *g)
{
    for (int r = 0; r < g->rows; r++)
        for (int64_t c = 0; c < g->cols; c++)
            g->out[r * g->out_stride + c] = g->bias ? g->bias[c] : 0.0f;
}

static void gemm_strip(const mhai_gemm *g)
{
    if (g->first) start_from_bias(g);
    for (int64_t panel = 0; panel < g->panels; panel++) {
        int64_t cols = g->cols - panel * MHAI_PANEL;
        block t = {.inner = g->inner,
                   .a = g->x,
                   .a_stride = g->x_stride,
                   .b = g->w + panel * g->panel_stride,
                   .c = g->out + panel * MHAI_PANEL,
                   .c_stride = g->out_stride};
        if (cols >= MHAI_PANEL)
            panel_product(g->transposed ? block_add_columns : block_add_rows, g->rows, t);
        else
            gemm_partial_panel(g, t, cols);
    }
}
