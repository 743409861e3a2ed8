/* Runs of a cache (kernels.h). For few rows, numbers are converted in registers. If several
 * register blocks need them, they are converted to floats in L1. */

enum {
    RUN_ROWS = 8,                                        /* up to this many rows, nothing
                                                          * is copied */
    RUN_PART = VF_LANES == 16 ? 8 : 4,                   /* vectors per step */
    RUN_SUMS = BLOCK_ROWS * TILE_VECTORS < 24 ? 10 : 24, /* registers for sums, out of 16 or 32 */
    RUN_LINE = 64                                        /* bytes of a cache line */
};

#define BY_RUN_TYPE(type, function, ...)                   \
    switch (type) {                                        \
    case MHA_I8: function(MHA_I8, __VA_ARGS__); break;     \
    case MHA_F16: function(MHA_F16, __VA_ARGS__); break;   \
    case MHA_BF16: function(MHA_BF16, __VA_ARGS__); break; \
    default: function(MHA_F32, __VA_ARGS__);               \
    }
/* No run has type MHA_U8. For keys, it stands for MHA_I8 with powers. */
#define RUN_POWERS MHA_U8
#define BY_KEY_TYPE(run, function, ...)                 \
    if ((run)->powers) {                                \
        function(RUN_POWERS, __VA_ARGS__);              \
    } else {                                            \
        BY_RUN_TYPE((run)->type, function, __VA_ARGS__) \
    }

ALWAYS_INLINE int64_t run_size(mha_dtype type)
{
    return type == MHA_F32 ? 4 : type == MHA_I8 || type == RUN_POWERS ? 1 : 2;
}

/* Factors of channels c .. c + n - 1, with n <= VF_LANES. */
ALWAYS_INLINE vf run_factors(const mhai_run *run, int64_t c, int64_t n)
{
    const vf power = load_n_as(MHA_I8, run->powers, c, n);
    return vf_where_below(power, vf_set1(MHAI_BAD_POWER),
                          vf_times_power(vf_set1(1), vf_nearest(power)),
                          vf_set1(__builtin_nanf("")));
}

/* Elements of VF_LANES positions of a run of keys. factor: the factor of channel c, for
 * RUN_POWERS. */
ALWAYS_INLINE vf key_lanes(mha_dtype type, const mhai_run *run, int64_t c, int lane,
                           const float *factor)
{
    const vf x = load_as(type == RUN_POWERS ? MHA_I8 : type, run->at, c * MHAI_RUN + lane);
    return type == MHA_I8       ? vf_mul(x, vf_load(run->scale + lane))
           : type == RUN_POWERS ? vf_mul1(factor, x)
                                : x;
}

/* Elements of one position of a run of values. */
ALWAYS_INLINE vf value_lanes(mha_dtype type, const mhai_run *run, int64_t cols, int key, int64_t c)
{
    const vf x = load_as(type, run->at, key * cols + c);
    return type == MHA_I8 ? vf_mul1(run->scale + key, x) : x;
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Convert half a panel. Positions >= keys are zeros. */
ALWAYS_INLINE void run_columns_as(mha_dtype type, const mhai_run *run, int64_t keys, int64_t dim,
                                  float *panel)
{
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vf end = vf_set1(keys < MHAI_RUN ? (float)keys : (float)MHAI_RUN);
    float factors[VF_LANES];
    for (int64_t c = 0; c < dim; c++) {
        const float *factor = factors + c % VF_LANES;
        if (type == RUN_POWERS && c % VF_LANES == 0)
            vf_store(factors, run_factors(run, c, dim - c < VF_LANES ? dim - c : VF_LANES));
        UNROLL for (int j = 0; j < MHAI_RUN; j += VF_LANES) vf_store(
            panel + c * MHAI_PANEL + j,
            vf_where_below(vf_load(lanes + j), end, key_lanes(type, run, c, j, factor), vf_zero()));
    }
}

/* A panel of 1 to 32 keys. */
static void run_panel(const mhai_run *runs, int64_t keys, int64_t dim, float *panel)
{
    BY_KEY_TYPE(runs, run_columns_as, runs, keys, dim, panel)
    panel += MHAI_RUN;
    if (keys > MHAI_RUN) {
        BY_KEY_TYPE(runs + 1, run_columns_as, runs + 1, keys - MHAI_RUN, dim, panel)
        return;
    }
    for (int64_t c = 0; c < dim; c++)
        UNROLL for (int j = 0; j < MHAI_RUN; j += VF_LANES)
            vf_store(panel + c * MHAI_PANEL + j, vf_zero());
}

ALWAYS_INLINE void run_rows_as(mha_dtype type, const mhai_run *run, int keys, int64_t dim,
                               int64_t cols, float *out)
{
    for (int key = 0; key < keys; key++, out += cols) {
        int64_t c = 0;
        for (; c < dim; c += VF_LANES) vf_store(out + c, value_lanes(type, run, dim, key, c));
        for (; c < cols; c += VF_LANES) vf_store(out + c, vf_zero());
    }
}

/* The values of some positions as rows of `cols` floats: in place, or converted in room. dim is a
 * multiple of 16, and cols of 32. */
static const float *run_rows(const mhai_run *run, int keys, int64_t dim, int64_t cols, float *room)
{
    if (run->type == MHA_F32 && dim == cols) return run->at;
    BY_RUN_TYPE(run->type, run_rows_as, run, keys, dim, cols, room)
    return room;
}

/* Prefetch bytes that are needed soon from L2 to L1, and later bytes from memory to L2. Each run is
 * a separate stream. Runs then reach 87 to 98 % of the read bandwidth (Zen 5). With loads instead
 * of the prefetches to L1, they reach only 76 to 84 %. */
ALWAYS_INLINE void fetch_run(const char *next, const char *later, int64_t bytes)
{
    UNROLL for (int64_t i = 0; i < bytes; i += RUN_LINE)
    {
        fetch(next + i);
        fetch_l2(later + i);
    }
}

/* The same for a run's factors, which hardware prefetchers do not find. */
ALWAYS_INLINE void fetch_scales(mha_dtype type, const mhai_run *next, const mhai_run *later,
                                int64_t dim)
{
    if (type == MHA_I8) fetch_run((const char *)next->scale, (const char *)later->scale, RUN_LINE);
    if (type == RUN_POWERS)
        for (int64_t c = 0; c < dim; c += RUN_LINE)
            fetch_run((const char *)next->powers + c, (const char *)later->powers + c, RUN_LINE);
}

/* sum[j] += *weight x[j]. Several vectors share one broadcast. */
ALWAYS_INLINE void run_add(const float *weight, int vectors, const vf *x, vf *sum)
{
#ifdef HAS_FMA1
    if (vectors == 1) {
        *sum = vf_fma1(weight, *x, *sum);
        return;
    }
#endif
    const vf all = vf_load1(weight);
    UNROLL for (int j = 0; j < vectors; j++) sum[j] = vf_fma(all, x[j], sum[j]);
}

/* For one row of bytes, use each vector before converting the next. Zen 4 assigns instructions to
 * its four pipes in order, so this takes 2.0 cycles per vector, the optimum, instead of 2.6. */
#ifdef HAS_FMA1
#define RUN_APART(rows, type) ((rows) == 1 && run_size(type) == 1)
#define RUN_KEEP_ORDER __asm__ volatile("" ::: "memory")
#else
#define RUN_APART(rows, type) false
#define RUN_KEEP_ORDER
#endif

/* ---- scores of few rows -------------------------------------------------------------------- */

/* Number of runs processed in parallel: enough for a whole cache line per element, if registers can
 * hold the sums. Two runs of floats if one has too few chains. */
#define RUNS_OF(rows, type)                                        \
    (run_size(type) == 1 && RUN_SUMS / ((rows)*LANES16) >= 4   ? 4 \
     : run_size(type) <= 2 && RUN_SUMS / ((rows)*LANES16) >= 2 ? 2 \
     : run_size(type) == 4 && (rows)*LANES16 <= 2              ? 2 \
                                                               : 1)

typedef struct run_scores {
    const mhai_run *runs; /* followed by runs to prefetch */
    int64_t dim;
    const float *q;
    float *s;       /* scores of the first run */
    float *factors; /* for RUN_POWERS: [runs][dim] */
} run_scores;

/* Compute the scores of `count` runs, and store the scores of the first `kept` runs. Also prefetch
 * the next runs, one line per element. Runs of floats are prefetched in parallel, runs of other
 * types one per part. */
ALWAYS_INLINE void run_body(int rows, int count, mha_dtype type, const run_scores *x, int kept)
{
    enum { MOST = 4 * LANES16 };
    vf sum[RUN_PART][MOST];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < count * LANES16; j++)
        sum[r][j] = vf_zero();
    const int together = type == MHA_F32 ? count : 1, parts = count / together;
    const int64_t dim = x->dim, ahead = parts * MHAI_RUN * run_size(type);
    const float *q = x->q, *factors = x->factors;
    mhai_run runs[4];
    UNROLL for (int n = 0; n < count; n++) runs[n] = x->runs[n];
    int64_t c = 0;
    for (int part = 0; part < parts; part++) {
        const mhai_run *next = x->runs + count + part;
        fetch_scales(type, next, next + count, dim);
        const int64_t end = dim * (part + 1) / parts;
        for (int64_t at = 0; c < end; c++, at += ahead) {
            vf column[MOST];
            UNROLL for (int n = 0; n < together; n++) fetch_run(
                (const char *)next[n].at + at, (const char *)next[count + n].at + at, ahead);
            UNROLL for (int n = 0; n < count; n++)
            {
                vf *lanes = column + n * LANES16;
                UNROLL for (int j = 0; j < LANES16; j++) lanes[j] =
                    key_lanes(type, &runs[n], c, j * VF_LANES, factors + n * dim + c);
                if (!RUN_APART(rows, type)) continue;
                run_add(q + c, LANES16, lanes, sum[0] + n * LANES16);
                RUN_KEEP_ORDER;
            }
            if (RUN_APART(rows, type)) continue;
            UNROLL for (int r = 0; r < rows; r++)
                run_add(q + r * dim + c, count * LANES16, column, sum[r]);
        }
    }
    UNROLL for (int n = 0; n < count; n++) UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int j = n * LANES16; j < (n + 1) * LANES16; j++) if (n < kept)
            vf_store(x->s + r * MHAI_SCORE_STRIDE + j * VF_LANES, sum[r][j]);
}

ALWAYS_INLINE void run_loop(int rows, mha_dtype type, run_scores x, int runs)
{
    const int count = RUNS_OF(rows, type);
    for (; runs > 0; runs -= count) {
        run_body(rows, count, type, &x, runs);
        x.runs += count;
        x.s += count * MHAI_RUN;
        x.factors += count * x.dim;
    }
}

#define RUN_CASE(n)                                                         \
    case n:                                                                 \
        if (n <= RUN_PART) run_loop(n <= RUN_PART ? n : 1, type, *x, runs); \
        return;
#define DEFINE_RUN_SCORES(name, of_type)                                                        \
    static __attribute__((noinline)) void name(int rows, const run_scores *x, int runs)         \
    {                                                                                           \
        const mha_dtype type = of_type;                                                         \
        switch (rows) {                                                                         \
            RUN_CASE(1)                                                                         \
            RUN_CASE(2) RUN_CASE(3) RUN_CASE(4) RUN_CASE(5) RUN_CASE(6) RUN_CASE(7) RUN_CASE(8) \
        }                                                                                       \
    }
DEFINE_RUN_SCORES(run_scores_f32, MHA_F32)
DEFINE_RUN_SCORES(run_scores_f16, MHA_F16)
DEFINE_RUN_SCORES(run_scores_bf16, MHA_BF16)
DEFINE_RUN_SCORES(run_scores_i8, MHA_I8)
DEFINE_RUN_SCORES(run_scores_powers, RUN_POWERS)
#undef RUN_CASE

/* Rows of the next part. Parts have nearly equal heights. */
ALWAYS_INLINE int run_part_rows(int left)
{
    return left <= RUN_PART ? left : left <= 2 * RUN_PART ? (left + 1) / 2 : RUN_PART;
}

/* Write factors [runs][dim]. May write some floats beyond them. */
static void find_factors(const mhai_run *run, int runs, int64_t dim, float *factors)
{
    for (; runs > 0; runs--, run++, factors += dim)
        for (int64_t c = 0; c < dim; c += VF_LANES)
            vf_store(factors + c, run_factors(run, c, dim - c < VF_LANES ? dim - c : VF_LANES));
}

/* Multiply all rows by a few runs while these are in L1. */
ALWAYS_INLINE void run_scores_as(mha_dtype type, int rows, const run_scores *all, int runs)
{
    const int step = run_size(type) == 1 ? 4 : 2;
    for (int run = 0; run < runs; run += step) {
        const int now = runs - run < step ? runs - run : step;
        if (type == RUN_POWERS) find_factors(all->runs + run, step, all->dim, all->factors);
        for (int row = 0, some; row < rows; row += some) {
            const run_scores x = {.runs = all->runs + run,
                                  .dim = all->dim,
                                  .q = all->q + row * all->dim,
                                  .s = all->s + row * MHAI_SCORE_STRIDE + run * MHAI_RUN,
                                  .factors = all->factors};
            some = run_part_rows(rows - row);
            (type == MHA_F32    ? run_scores_f32
             : type == MHA_F16  ? run_scores_f16
             : type == MHA_BF16 ? run_scores_bf16
             : type == MHA_I8   ? run_scores_i8
                                : run_scores_powers)(some, &x, now);
        }
    }
}

/* ---- values for few rows ------------------------------------------------------------------- */

/* Vectors of columns per row, limited by the registers for sums. Floats need no
 * registers for conversion. */
#define RUN_WIDTH(rows, type) ((RUN_SUMS + 2 * ((type) == MHA_F32)) / (rows) >= 4 ? 4 : 2)

typedef struct run_values {
    const mhai_run *run; /* followed by runs to prefetch */
    int runs;            /* number of runs to process while sums stay in registers */
    int end;             /* number of positions */
    int64_t dim, cols;   /* columns of values, and of o */
    const float *p;      /* [rows][MHAI_SCORE_STRIDE], starting at position 0 */
    float *o;            /* [rows][cols] */
} run_values;

/* Add one position to `vectors` registers of columns. */
ALWAYS_INLINE void run_values_key(int rows, int vectors, mha_dtype type, const mhai_run *run,
                                  int64_t dim, int key, int64_t col, const float *p,
                                  vf sum[RUN_PART][4])
{
    vf value[4];
    UNROLL for (int j = 0; j < vectors; j++)
    {
        value[j] = value_lanes(type, run, dim, key, col + j * VF_LANES);
        if (!RUN_APART(rows, type)) continue;
        run_add(p, 1, value + j, sum[0] + j);
        RUN_KEEP_ORDER;
    }
    if (RUN_APART(rows, type)) return;
    UNROLL for (int r = 0; r < rows; r++)
        run_add(p + r * MHAI_SCORE_STRIDE, vectors, value, sum[r]);
}

/* o += P V over `vectors` registers of columns, continuing the chains. */
ALWAYS_INLINE void run_values_body(int rows, int vectors, mha_dtype type, const run_values *x,
                                   int64_t col)
{
    vf sum[RUN_PART][4];
    const int64_t piece = vectors * VF_LANES * run_size(type), dim = x->dim;
    int64_t cols = x->cols;
    float *o = x->o + col;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_load(o + r * cols + j * VF_LANES);
    for (int first = 0; first < x->end; first += MHAI_RUN) {
        const mhai_run *at_run = x->run + first / MHAI_RUN, run = *at_run;
        const int64_t ahead = col * MHAI_RUN * run_size(type);
        const char *next = (const char *)at_run[x->runs].at + ahead;
        const char *later = (const char *)at_run[2 * x->runs].at + ahead;
        const int keys = x->end - first < MHAI_RUN ? x->end - first : MHAI_RUN;
        fetch_scales(type, at_run + x->runs, at_run + 2 * x->runs, dim);
        for (int key = 0; key < keys; key++, next += piece, later += piece) {
            fetch_run(next, later, piece);
            run_values_key(rows, vectors, type, &run, dim, key, col, x->p + first + key, sum);
        }
    }
    __asm__("" : "+r"(o), "+r"(cols)); /* keeps addresses out of vector registers */
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++)
        vf_store(o + r * cols + j * VF_LANES, sum[r][j]);
}

ALWAYS_INLINE void run_values_loop(int rows, mha_dtype type, const run_values *x)
{
    const int width = RUN_WIDTH(rows, type);
    int64_t col = 0;
    for (; width > 2 && col + width * VF_LANES <= x->dim; col += width * VF_LANES)
        run_values_body(rows, width, type, x, col);
    for (; col + 2 * VF_LANES <= x->dim; col += 2 * VF_LANES)
        run_values_body(rows, 2, type, x, col);
    if (VF_LANES == 16 && col < x->dim) run_values_body(rows, 1, type, x, col);
}

#define RUN_CASE(n)                                                         \
    case n:                                                                 \
        if (n <= RUN_PART) run_values_loop(n <= RUN_PART ? n : 1, type, x); \
        return;
#define DEFINE_RUN_VALUES(name, of_type)                                                        \
    static __attribute__((noinline)) void name(int rows, const run_values *x)                   \
    {                                                                                           \
        const mha_dtype type = of_type;                                                         \
        switch (rows) {                                                                         \
            RUN_CASE(1)                                                                         \
            RUN_CASE(2) RUN_CASE(3) RUN_CASE(4) RUN_CASE(5) RUN_CASE(6) RUN_CASE(7) RUN_CASE(8) \
        }                                                                                       \
    }
DEFINE_RUN_VALUES(run_values_f32, MHA_F32)
DEFINE_RUN_VALUES(run_values_f16, MHA_F16)
DEFINE_RUN_VALUES(run_values_bf16, MHA_BF16)
DEFINE_RUN_VALUES(run_values_i8, MHA_I8)
#undef RUN_CASE

/* Number of runs per step: at most 8 KB for heads of 128. */
ALWAYS_INLINE int run_step(mha_dtype type)
{
    return type == MHA_F32 ? 1 : 2;
}

ALWAYS_INLINE void run_values_as(mha_dtype type, int rows, const run_values *all)
{
    run_values x = *all;
    for (int row = 0, some; row < rows; row += some) {
        some = run_part_rows(rows - row);
        (type == MHA_F32    ? run_values_f32
         : type == MHA_F16  ? run_values_f16
         : type == MHA_BF16 ? run_values_bf16
                            : run_values_i8)(some, &x);
        x.p += some * MHAI_SCORE_STRIDE;
        x.o += some * x.cols;
    }
}
