#include "reference/position_reference.h"

#include <math.h>

static const double unit = 0x1p-24, fine = 0x1p-53, tiny = 0x1p-150;

static long double element(const mha_tensor *x, const int64_t *index)
{
    const float *at = x->data;
    for (int i = 0; i < x->ndim; i++) at += index[i] * x->stride[i];
    return (long double)*at;
}

int64_t ref_position(const mha_positions *positions, int64_t b, int64_t t)
{
    const mha_tensor *ids = positions ? positions->ids : NULL;
    if (ids) {
        int64_t index[2] = {b, t}, offset = 0;
        for (int i = 0; i < ids->ndim; i++) {
            int64_t at = index[2 - ids->ndim + i];
            offset += (ids->shape[i] == 1 ? 0 : at) * ids->stride[i];
        }
        return ((const int64_t *)ids->data)[offset];
    }
    if (!positions) return t;
    return t + (positions->starts ? positions->starts[b] : positions->start);
}

/* Cosine and sine of pair i for the token, with a bound of their relative error. */
static void turn_of(const mha_rope_desc *desc, int64_t b, int64_t t, int64_t i, int64_t rotary,
                    long double *cosine, long double *sine, double *error)
{
    if (desc && desc->cos_table) {
        int64_t row[2] = {ref_position(&desc->positions, b, t), i}, token[3] = {b, t, i};
        const mha_tensor *tables[2] = {desc->cos_table, desc->sin_table};
        long double *to[2] = {cosine, sine};
        for (int n = 0; n < 2; n++) {
            int64_t index[3] = {tables[n]->shape[0] == 1 ? 0 : token[0],
                                tables[n]->shape[1] == 1 ? 0 : token[1], i};
            *to[n] = element(tables[n], tables[n]->ndim == 2 ? row : index);
        }
        *error = 2 * fine;
        return;
    }
    long double base = desc && desc->base != 0 ? (long double)desc->base : 10000.0L;
    long double factor = desc && desc->factor != 0 ? (long double)desc->factor : 1.0L;
    long double exponent = 2.0L * (long double)i / (long double)rotary;
    long double position = (long double)ref_position(desc ? &desc->positions : NULL, b, t);
    long double angle = position / factor / powl(base, exponent);
    *cosine = cosl(angle);
    *sine = sinl(angle);
    *error = ((5 + log((double)base)) * fabs((double)angle) + 4) * fine;
}

ref_bounded ref_rope(const mha_rope_desc *desc, const mha_tensor *x, const int64_t index[4])
{
    const int64_t rotary = desc && desc->rotary_dim ? desc->rotary_dim : x->shape[3];
    const int64_t d = index[3];
    bool halves = desc && desc->pairing == MHA_ROPE_HALVES;
    if (d >= rotary) return (ref_bounded){(double)element(x, index), 0};
    int64_t i = halves ? d % (rotary / 2) : d / 2;
    bool second = halves ? d >= rotary / 2 : d % 2 == 1;
    int64_t mate[4] = {index[0], index[1], index[2], 0};
    if (halves)
        mate[3] = second ? d - rotary / 2 : d + rotary / 2;
    else
        mate[3] = second ? d - 1 : d + 1;
    long double own = element(x, index), other = element(x, mate), cosine, sine;
    double error;
    turn_of(desc, index[0], index[2], i, rotary, &cosine, &sine, &error);
    if (desc && (desc->flags & MHA_ROPE_INVERSE)) sine = -sine;
    double exact = (double)(own * cosine + (second ? other * sine : -other * sine));
    double size = (double)(fabsl(own) + fabsl(other));
    return (ref_bounded){exact, unit * fabs(exact) + size * error * (1 + unit) + tiny};
}

ref_bounded ref_sinusoid(int64_t pos, int64_t e, int64_t E)
{
    long double angle =
        (long double)pos / powl(10000.0L, (long double)(e - e % 2) / (long double)E);
    double exact = (double)(e % 2 == 0 ? sinl(angle) : cosl(angle));
    double error = (15 * fabs((double)angle) + 4) * fine;
    return (ref_bounded){exact, unit * fabs(exact) + error * (1 + unit) + tiny};
}

double ref_alibi_slope(int64_t h, int64_t heads)
{
    int64_t power = 1;
    while (2 * power <= heads) power *= 2;
    if (h >= power) return ref_alibi_slope(2 * (h - power), 2 * power);
    /* A geometric sequence that begins with 2^(-2^-(log2 n - 3)), like in the paper's code. */
    double start = pow(2.0, -pow(2.0, -(log2((double)power) - 3.0)));
    return start * pow(start, (double)h);
}

ref_bounded ref_qk_norm(mha_qk_norm_kind kind, double epsilon, const mha_tensor *x,
                        const mha_tensor *weight, const int64_t index[4])
{
    const int64_t D = x->shape[3];
    long double squares = 0, norm;
    for (int64_t d = 0; d < D; d++) {
        long double value = element(x, (int64_t[]){index[0], index[1], index[2], d});
        squares += value * value;
    }
    if (kind == MHA_QK_NORM_RMS)
        norm = sqrtl(squares / (long double)D + (long double)epsilon);
    else
        norm = fmaxl(sqrtl(squares), (long double)epsilon);
    long double value = element(x, index);
    if (value != 0) value /= norm;
    if (weight && weight->ndim == 1) value *= element(weight, index + 3);
    if (weight && weight->ndim == 2) value *= element(weight, (int64_t[]){index[1], index[3]});
    double exact = (double)value;
    return (ref_bounded){exact, fabs(exact) * (unit + (double)(D + 8) * fine) + tiny};
}
