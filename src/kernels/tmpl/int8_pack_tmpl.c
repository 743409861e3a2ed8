/* From f32 to small numbers: queries by row, keys by key without their mean, values by channel.
 * Steps are max / 127; what is all below int8_least becomes 0, so that no step is subnormal. */

static const float int8_least = 0x1p-80f;
static const float int8_query_limit =
    0x1p93f;                                  /* units of queries times those of keys stay finite */
static const float int8_key_limit = 0x1p126f; /* k - mean stays finite */
static const float int8_query_shift = 0x1p24f, int8_key_shift = 0x1p-24f;

static float scalar_abs(float x)
{
    return __builtin_fabsf(x);
}

static void int8_query(const float *q, int64_t n, int32_t *out, float *unit, int32_t *start)
{
    float lanes[VF_LANES], most = 0;
    vf max = vf_zero();
    for (int64_t i = 0; i < n; i += VF_LANES) max = vf_max(vf_abs(vf_load_n(q + i, n - i)), max);
    vf_store(lanes, max);
    for (int i = 0; i < VF_LANES; i++) most = lanes[i] > most ? lanes[i] : most;
    const bool fits = most < int8_query_limit, zero = !fits || most < int8_least;
    const vf steps = vf_set1(zero ? 0.0f : 127.0f / most);
    vi sum = vi_zero();
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf x = zero ? vf_zero() : vf_load_n(q + i, n - i);
        vi small = vf_int(vf_mul(x, steps));
        store_small(out + i / GROUP, small);
        sum = vi_add(sum, small);
    }
    *unit = !fits ? __builtin_nanf("") : zero ? 1.0f : most / 127.0f * int8_query_shift;
    *start = -KEY_OFFSET * vi_total(sum);
}

/* 127 / max and max / 127, or 0 where max is less than int8_least. */
ALWAYS_INLINE vf int8_steps(vf max)
{
    return vf_zero_below(max, vf_set1(int8_least), vf_div(vf_set1(127.0f), max));
}
ALWAYS_INLINE vf int8_unit(vf max)
{
    return vf_zero_below(max, vf_set1(int8_least), vf_div(max, vf_set1(127.0f)));
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The mean over keys, summed in 16 lanes by key position and then in one tree, as a row's sum is.
 * Panels are padded with zeros. */
static void int8_mean(const mhai_int8_keys *k)
{
    const int64_t panels = (k->keys + MHAI_PANEL - 1) / MHAI_PANEL;
    const float each = 1.0f / (float)k->keys;
    for (int64_t d = 0; d < k->head_dim; d++) {
        vf sum[LANES16];
        UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
        for (int64_t p = 0; p < panels; p++) {
            const float *row = k->in + (p * k->head_dim + d) * MHAI_PANEL;
            for (int j = 0; j < MHAI_PANEL; j += 16)
                UNROLL for (int i = 0; i < LANES16; i++) sum[i] =
                    vf_add(sum[i], vf_load(row + j + i * VF_LANES));
        }
        const float mean = vf_sum16(sum) * each;
        k->mean[d] = scalar_abs(mean) < int8_key_limit ? mean : 0.0f;
    }
    for (int64_t d = k->head_dim; d % 16 != 0; d++) k->mean[d] = 0;
}

/* VF_LANES keys of a panel. */
static void int8_key_columns(const mhai_int8_keys *k, int64_t key)
{
    const int64_t at = key / MHAI_PANEL * MHAI_PANEL, n = k->head_dim;
    const int64_t dwords = (n + GROUP - 1) / GROUP;
    const float *in = k->in + at * n + key % MHAI_PANEL;
    int32_t *out = k->out + at * dwords + key % MHAI_PANEL;
    const vf limit = vf_set1(int8_key_limit);
    vf max = vf_zero();
    for (int64_t d = 0; d < n; d++)
        max = vf_max(vf_abs(vf_sub(vf_load(in + d * MHAI_PANEL), vf_set1(k->mean[d]))), max);
    float lanes[VF_LANES];
    vf_store(lanes, max);
    for (int j = 0; j < VF_LANES && key + j < k->keys; j++) {
        if (lanes[j] < int8_key_limit) continue;
        k->bad[key + j] = 1;
        *k->any_bad = true;
    }
    max = vf_where_below(max, limit, max, vf_zero());
    const vf steps = int8_steps(max);
    vf_store(k->unit + key, vf_mul(int8_unit(max), vf_set1(int8_key_shift)));
    for (int64_t d = 0; d < n; d += GROUP) {
        vi small[GROUP];
        UNROLL for (int g = 0; g < GROUP; g++)
        {
            small[g] = vi_zero();
            if (d + g >= n) continue;
            vf x = vf_sub(vf_load(in + (d + g) * MHAI_PANEL), vf_set1(k->mean[d + g]));
            x = vf_where_below(vf_abs(x), limit, x, vf_zero());
            small[g] = vi_add(vf_int(vf_mul(x, steps)), vi_set1(KEY_OFFSET));
        }
        vi_store(out + d / GROUP * MHAI_PANEL, vi_pack(small));
    }
}

enum { INT8_GRAIN = 64 }; /* keys are weighed in multiples of it */

static void int8_keys(const mhai_int8_keys *k)
{
    const int64_t dwords = (k->head_dim + GROUP - 1) / GROUP;
    const int64_t packed = (k->keys + MHAI_PANEL - 1) / MHAI_PANEL * MHAI_PANEL;
    const int64_t padded = (k->keys + INT8_GRAIN - 1) / INT8_GRAIN * INT8_GRAIN;
    int8_mean(k);
    for (int64_t key = 0; key < packed; key += VF_LANES) int8_key_columns(k, key);
    memset(k->unit + k->keys, 0, (size_t)(padded - k->keys) * sizeof *k->unit);
    memset(k->out + packed * dwords, 0, (size_t)((padded - packed) * dwords) * sizeof *k->out);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* VF_LANES channels. */
static void int8_value_columns(const mhai_int8_values *v, const float *in, int32_t *out,
                               float *unit)
{
    const int64_t padded = (v->keys + 15) / 16 * 16; /* by zeros */
    const int64_t end = (v->keys + INT8_GRAIN - 1) / INT8_GRAIN * INT8_GRAIN;
    vf max = vf_zero();
    for (int64_t r = 0; r < padded; r++) max = vf_max(vf_abs(vf_load(in + r * MHAI_PANEL)), max);
    const vf steps = int8_steps(max);
    vf_store(unit, vf_mul(int8_unit(max), vf_set1(0x1p-8f)));
    for (int64_t r = 0; r < end; r += GROUP) {
        vi small[GROUP];
        UNROLL for (int g = 0; g < GROUP; g++) small[g] =
            r < padded ? vf_int(vf_mul(vf_load(in + (r + g) * MHAI_PANEL), steps)) : vi_zero();
        vi_store(out + r / GROUP * MHAI_PANEL, vi_pack(small));
    }
}

static void int8_values(const mhai_int8_values *v)
{
    for (int64_t panel = 0; panel < v->panels; panel++)
        for (int j = 0; j < MHAI_PANEL; j += VF_LANES)
            int8_value_columns(v, v->in + panel * MHAI_KEY_BLOCK * MHAI_PANEL + j,
                               v->out + panel * (MHAI_KEY_BLOCK / GROUP) * MHAI_PANEL + j,
                               v->unit + panel * MHAI_PANEL + j);
}
