/* Activations, their gradients, and exponentials for a loss. Contracts in kernels.h. */

/* Number of valid lanes in the vector at index i of n. */
static inline int64_t lanes_at(int64_t i, int64_t n)
{
    return n - i < VF_LANES ? n - i : VF_LANES;
}

static void activate_gelu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = vf_load_n(x + i, lanes_at(i, n));
        vf_store_n(x + i, lanes_at(i, n), vf_mul(v, vf_normal(v)));
    }
}

/* d/dx x Phi(x) = Phi(x) + x phi(x), phi(x) = exp(-x^2 / 2) / sqrt(2 pi). */
static void gelu_backward(float *dx, const float *x, const float *dy, int64_t n)
{
    const vf half = vf_set1(-0.5f * 0x1.715476p+0f), norm = vf_set1(0x1.988454p-2f);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = lanes_at(i, n);
        vf v = vf_load_n(x + i, lanes);
        vf density = vf_mul(norm, vf_exp2(vf_mul(vf_mul(v, v), half)));
        vf slope = vf_fma(v, density, vf_normal(v));
        vf_store_n(dx + i, lanes, vf_mul(vf_load_n(dy + i, lanes), slope));
    }
}

/* 2 sqrt(2 / pi), and 0.044715 times that. */
static const float gelu_slope = 0x1.988454p+0f, gelu_cube = 0x1.2444f2p-4f;

/* min(x^2, 1024). The limit prevents overflow; above it, the sigmoid is 0 or 1. */
ALWAYS_INLINE vf gelu_square(vf x)
{
    const vf most = vf_set1(1024.0f), square = vf_mul(x, x);
    return vf_where_below(square, most, square, most);
}

ALWAYS_INLINE vf gelu_sigmoid(vf x, vf square)
{
    return vf_sigmoid(vf_mul(x, vf_fma(square, vf_set1(gelu_cube), vf_set1(gelu_slope))));
}

static void activate_gelu_tanh(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const int64_t lanes = lanes_at(i, n);
        vf v = vf_load_n(x + i, lanes);
        vf_store_n(x + i, lanes, vf_mul(v, gelu_sigmoid(v, gelu_square(v))));
    }
}

/* The derivative is s + x s (1 - s) (2 z)', with s = sigmoid(2 z). */
static void gelu_tanh_backward(float *dx, const float *x, const float *dy, int64_t n)
{
    const vf one = vf_set1(1.0f), cube = vf_set1(3 * gelu_cube), line = vf_set1(gelu_slope);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const int64_t lanes = lanes_at(i, n);
        vf v = vf_load_n(x + i, lanes), square = gelu_square(v), s = gelu_sigmoid(v, square);
        vf bend = vf_mul(vf_mul(v, s), vf_sub(one, s));
        vf slope = vf_fma(bend, vf_fma(square, cube, line), s);
        vf_store_n(dx + i, lanes, vf_mul(vf_load_n(dy + i, lanes), slope));
    }
}

/* Prefetch distance in floats. Rows are short, and the next row usually follows in memory. */
enum { AHEAD = 512 };

/* Prefetch memory that will be written. */
ALWAYS_INLINE void fetch_output(const float *p)
{
    __builtin_prefetch(p, 1, 3);
}

static void swiglu(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = lanes_at(i, n);
        vf g = vf_load_n(gate + i, lanes);
        fetch(gate + i + AHEAD), fetch(up + i + AHEAD), fetch_output(y + i + AHEAD);
        vf silu = vf_mul(g, vf_sigmoid(g));
        vf_store_n(y + i, lanes, vf_mul(silu, vf_load_n(up + i, lanes)));
    }
}

/* With s = sigmoid(gate): dup = dy gate s, dgate = dy up s (1 + gate (1 - s)). */
static void swiglu_backward(float *dgate, float *dup, const float *gate, const float *up,
                            const float *dy, int64_t n)
{
    const vf one = vf_set1(1.0f);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = lanes_at(i, n);
        vf g = vf_load_n(gate + i, lanes), u = vf_load_n(up + i, lanes);
        fetch(gate + i + AHEAD), fetch(up + i + AHEAD), fetch(dy + i + AHEAD);
        fetch_output(dgate + i + AHEAD), fetch_output(dup + i + AHEAD);
        vf d = vf_load_n(dy + i, lanes), s = vf_sigmoid(g);
        vf slope = vf_mul(s, vf_fma(g, vf_sub(one, s), one));
        vf_store_n(dup + i, lanes, vf_mul(d, vf_mul(g, s)));
        vf_store_n(dgate + i, lanes, vf_mul(vf_mul(d, u), slope));
    }
}

/* Load VF_LANES elements of x, starting at i; lanes past n are -inf. */
ALWAYS_INLINE vf load_or_less(const float *x, int64_t i, int64_t n)
{
    float part[VF_LANES];
    if (i + VF_LANES <= n) return vf_load(x + i);
    for (int64_t j = 0; j < VF_LANES; j++) part[j] = i + j < n ? x[i + j] : -__builtin_inff();
    return vf_load(part);
}

static void exp_row(float *p, const float *x, int64_t n, float *max, float *sum)
{
    enum { PARTS = 16 / VF_LANES };
    vf top[PARTS], total[PARTS];
    for (int j = 0; j < PARTS; j++) top[j] = vf_set1(-__builtin_inff()), total[j] = vf_zero();
    for (int64_t i = 0; i < n; i += 16)
        for (int j = 0; j < PARTS; j++)
            top[j] = vf_max(load_or_less(x, i + j * VF_LANES, n), top[j]);
    *max = vf_max16(top);
    const vf m = vf_set1(*max), log2e = vf_set1(0x1.715476p+0f);
    for (int64_t i = 0; i < n; i += 16)
        for (int j = 0; j < PARTS; j++) {
            const int64_t at = i + j * VF_LANES;
            vf e = vf_exp2(vf_mul(vf_sub(load_or_less(x, at, n), m), log2e));
            total[j] = vf_add(total[j], e);
            if (at < n) vf_store_n(p + at, lanes_at(at, n), e);
        }
    *sum = vf_sum16(total);
}
