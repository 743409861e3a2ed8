/* A strip of rows times packed weights, for one block of inputs. Contract in kernels.h. */

/* A last panel with fewer columns than the register block is computed in a buffer. half_blocks:
 * the function for half panels; NULL: none. */
static void gemm_partial_panel(block_function blocks, block_function half_blocks, int rows,
                               block *t, int64_t cols)
{
    if (cols > HALF_PANEL) half_blocks = NULL;
    if (half_blocks && cols == HALF_PANEL) {
        half_product(half_blocks, rows, t);
        return;
    }
    const int width = half_blocks ? HALF_PANEL : MHAI_PANEL;
    float buffer[MHAI_MAX_ROWS * MHAI_PANEL], same[MHAI_PANEL];
    for (int c = 0; t->start_stride == 0 && c < width; c += VF_LANES)
        vf_store(same + c, c < cols ? vf_load_n(t->start + c, lanes_at(c, cols)) : vf_zero());
    for (int r = 0; t->start_stride != 0 && r < rows; r++)
        for (int c = 0; c < width; c += VF_LANES)
            vf_store(buffer + r * MHAI_PANEL + c,
                     c < cols ? vf_load_n(t->start + r * t->start_stride + c, lanes_at(c, cols))
                              : vf_zero());
    float *out = t->c;
    const int64_t stride = t->c_stride;
    t->start = t->start_stride != 0 ? buffer : same;
    t->start_stride = t->start_stride != 0 ? MHAI_PANEL : 0;
    t->c = buffer;
    t->c_stride = MHAI_PANEL;
    t->fetching = 0;
    if (half_blocks)
        half_product(half_blocks, rows, t);
    else
        panel_product(blocks, blocks, rows, t);
    for (int r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += VF_LANES)
            vf_store_n(out + r * stride + c, lanes_at(c, cols),
                       vf_load(buffer + r * MHAI_PANEL + c));
}

enum { FETCHED = 64 / sizeof(float) }; /* a cache line */

/* Prefetch a panel's share of the rows that the next block of inputs needs. */
static void fetch_next_rows(const mhai_gemm *g, int64_t panel)
{
    const int64_t end = (panel + 1) * g->next_rows / g->panels;
    for (int64_t r = panel * g->next_rows / g->panels; r < end; r++)
        for (int64_t line = 0; line < g->next_lines; line++)
            fetch_l2(g->next_x + r * g->next_stride + line * FETCHED);
}

/* Copy x to contiguous memory: rows with the stride of scores, or columns (gather_columns) with
 * stride MHAI_MAX_ROWS. */
static void gather_rows(const mhai_gemm *g)
{
    const int64_t whole = g->inner / VF_LANES * VF_LANES, left = g->inner - whole;
    const float *x = g->x;
    float *to = g->gather;
    for (int r = 0; r < g->rows; r++) {
        UNROLL_TIMES(4)
        for (int64_t i = 0; i < whole; i += VF_LANES) vf_store(to + i, vf_load(x + i));
        if (left > 0) vf_store_n(to + whole, left, vf_load_n(x + whole, left));
        x += g->x_stride;
        to += MHAI_SCORE_STRIDE;
    }
}

static void gather_columns(const mhai_gemm *g)
{
    for (int64_t i = 0; i < g->inner; i++)
        for (int r = 0; r < g->rows; r += VF_LANES) {
            const int64_t lanes = g->rows - r < VF_LANES ? g->rows - r : VF_LANES;
            vf_store_n(g->gather + i * MHAI_MAX_ROWS + r, lanes,
                       vf_load_n(g->x + i * g->x_stride + r, lanes));
        }
}

/* Set *calls to the number of a panel's register blocks that prefetch its share of the next
 * weights, and *step to the number of floats that each prefetches per input. With fewer than 4
 * floats, the same line would be prefetched repeatedly. */
static void share_fetching(const mhai_gemm *g, int *calls, int64_t *step)
{
    const int64_t most = MHAI_PANEL / BLOCK_COLS * ((g->rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
    const int64_t wanted = (g->next_floats + 4 * g->inner - 1) / (4 * g->inner);
    *calls = (int)(wanted < most ? wanted : most);
    *step = *calls > 0 ? (g->next_floats + *calls * g->inner - 1) / (*calls * g->inner) : 0;
}

static void gemm_strip(const mhai_gemm *g)
{
    static const float zeros[MHAI_PANEL] = {0};
    const float *x = g->x;
    int64_t x_stride = g->x_stride;
    if (g->gather) {
        if (g->transposed)
            gather_columns(g);
        else
            gather_rows(g);
        x = g->gather;
        x_stride = g->transposed ? (int64_t)MHAI_MAX_ROWS : (int64_t)MHAI_SCORE_STRIDE;
    }
    const block_function blocks =
        FOR_PAIRS(g->pairs, pair_add_score_rows,
                  g->transposed ? adding_columns(x_stride) : adding_rows(x_stride));
    const block_function fetching = fetching_rows(x_stride),
                         half_blocks = g->transposed || g->pairs       ? NULL
                                       : x_stride == MHAI_SCORE_STRIDE ? half_add_score_rows
                                                                       : half_add_rows;
    int calls = 0;
    int64_t step = 0;
    if (g->next_w && !g->transposed && !g->pairs) share_fetching(g, &calls, &step);
    for (int64_t panel = 0; panel < g->panels; panel++) {
        int64_t cols = g->cols - panel * MHAI_PANEL;
        float *out = g->out + panel * MHAI_PANEL;
        block t = {.inner = g->inner,
                   .a = x,
                   .a_stride = x_stride,
                   .transposed = g->transposed,
                   .b = g->w + panel * g->panel_stride,
                   .c = out,
                   .c_stride = g->out_stride,
                   .start = g->from ? g->from + panel * MHAI_PANEL : out,
                   .start_stride = g->from ? g->from_stride : g->out_stride};
        if (calls > 0) {
            t.fetching = calls;
            t.next = g->next_w + panel * g->next_floats;
            t.next_step = step;
        }
        if (g->next_x) fetch_next_rows(g, panel);
        if (g->first) {
            t.start = g->bias ? g->bias + panel * MHAI_PANEL : zeros;
            t.start_stride = 0;
        }
        if (cols < MHAI_PANEL)
            gemm_partial_panel(blocks, half_blocks, g->rows, &t, cols);
        else if (g->rows <= FEW_ROWS && !g->transposed && !g->pairs)
            few_add_rows(g->rows, &t); /* contiguous memory, read at full bandwidth */
        else
            panel_product(fetching, blocks, g->rows, &t);
    }
}
