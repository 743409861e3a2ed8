/* See map_arrays.h. */
#include "common/map_arrays.h"

#include <math.h>

/* IEEE 754 half precision: 1 sign, 5 exponent, 10 fraction bits. */
static float float_of_half(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double value = exponent == 31  ? (fraction ? NAN : INFINITY)
                   : exponent == 0 ? ldexp(fraction, -24)
                                   : ldexp(fraction + 1024, exponent - 25);
    return (float)(half & 0x8000 ? -value : value);
}

float map_arrays_element(const mha_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case MHA_F32: return ((const float *)tensor->data)[i];
    case MHA_F64: return (float)((const double *)tensor->data)[i];
    default: return float_of_half(((const uint16_t *)tensor->data)[i]);
    }
}

cli_exit map_arrays_shape(const char *path, const mha_tensor *tensor, int64_t shape[4])
{
    const int64_t *axes = tensor->shape;
    const bool batch = tensor->ndim == 5 && (axes[0] == 1 || axes[1] == 1);
    if (tensor->ndim < 2 || (tensor->ndim > 4 && !batch))
        return cli_fail(
            CLI_BAD_INPUT,
            "%s: has %d dimensions; expected [rows, columns], [heads, rows, columns] or "
            "[layers, heads, rows, columns]%s",
            path, (int)tensor->ndim,
            tensor->ndim == 5 ? "; save each text of a batch separately" : "");
    if (tensor->dtype != MHA_F32 && tensor->dtype != MHA_F64 && tensor->dtype != MHA_F16)
        return cli_fail(CLI_UNSUPPORTED, "%s: holds %s; expected float32, float64 or float16", path,
                        mha_dtype_name(tensor->dtype));
    for (int axis = 0; axis < tensor->ndim; axis++)
        if (axes[axis] == 0)
            return cli_fail(CLI_BAD_INPUT, "%s: dimension %d is 0; it holds no weights", path,
                            axis);
    for (int i = 0; i < 4; i++) {
        const int axis = i - (4 - tensor->ndim);
        shape[i] = axis < 0 ? 1 : axes[axis];
    }
    if (batch) shape[0] = axes[0] * axes[1]; /* one of them is 1 */
    return CLI_OK;
}
