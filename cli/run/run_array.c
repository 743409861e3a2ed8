/* Arrays that `multihead run` reads: lists on the command line, .npy files, tensors of safetensors
 * files; and their elements in the type that is wanted. */
#include "run/run.h"

#include <multihead/io.h>

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void run_array_free(run_array *array)
{
    mha_npy_destroy(array->memory[0]);
    mha_safetensors_close(array->memory[1]);
    free(array->memory[2]);
    *array = (run_array){0};
}

cli_exit run_array_make(mha_dtype dtype, int ndim, const int64_t *shape, run_array *array)
{
    int64_t count;
    *array = (run_array){.tensor = mha_tensor_contiguous(NULL, dtype, ndim, shape)};
    mha_status status = mha_tensor_count(&array->tensor, &count);
    if (status != MHA_OK) return cli_fail_status(RUN, status);
    size_t elements = count > 0 ? (size_t)count : 1;
    array->tensor.data = array->memory[2] = calloc(elements, mha_dtype_size(dtype));
    if (array->tensor.data) return CLI_OK;
    return cli_fail(CLI_NO_MEMORY, RUN,
                    "out of memory: an array of %" PRId64 " elements of %zu bytes; of weights and "
                    "scores, --pick-heads and --pick-rows want less",
                    count, mha_dtype_size(dtype));
}

cli_exit run_array_convert(const mha_tensor *tensor, mha_dtype dtype, run_array *array)
{
    cli_exit code = run_array_make(dtype, tensor->ndim, tensor->shape, array);
    if (code != CLI_OK) return code;
    mha_status status = mha_tensor_convert(tensor, &array->tensor);
    if (status == MHA_OK) return CLI_OK;
    run_array_free(array);
    return cli_fail_status(RUN, status);
}

/* ---- Elements -------------------------------------------------------------------------------- */

static bool is_whole(mha_dtype dtype)
{
    return dtype == MHA_I8 || dtype == MHA_U8 || dtype == MHA_I32 || dtype == MHA_I64;
}

static int64_t whole_element(const mha_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case MHA_I8: return ((const int8_t *)tensor->data)[i];
    case MHA_U8: return ((const uint8_t *)tensor->data)[i];
    case MHA_I32: return ((const int32_t *)tensor->data)[i];
    default: return ((const int64_t *)tensor->data)[i];
    }
}

static double real_element(const mha_tensor *tensor, int64_t i)
{
    return tensor->dtype == MHA_F64 ? ((const double *)tensor->data)[i]
                                    : (double)whole_element(tensor, i);
}

/* ---- Changing the type ----------------------------------------------------------------------- */

/* One array on its way: what messages call it, and where it comes from. */
typedef struct conversion {
    const char *option, *name;
    const mha_tensor *from;
    int64_t count;
    bool quiet;
} conversion;

static cli_exit to_real(const conversion *c, mha_tensor *to)
{
    if (c->from->dtype == MHA_F16 || c->from->dtype == MHA_BF16) {
        mha_status status = mha_tensor_convert(c->from, to);
        return status == MHA_OK ? CLI_OK : cli_fail_status(RUN, status);
    }
    int64_t rounded = 0;
    for (int64_t i = 0; i < c->count; i++) {
        double value = real_element(c->from, i);
        float near = (float)value;
        if (isinf(near) && !isinf(value))
            return cli_fail(CLI_BAD_INPUT, RUN,
                            "%s (%s): element %" PRId64 " is %g, beyond float32; scale the array",
                            c->name, c->option, i, value);
        rounded += !isnan(value) && (double)near != value;
        ((float *)to->data)[i] = near;
    }
    if (rounded > 0 && c->from->dtype != MHA_F64)
        cli_note(c->quiet, "%s: %s, %" PRId64 " of %" PRId64 " numbers rounded to float32", c->name,
                 mha_dtype_name(c->from->dtype), rounded, c->count);
    else if (c->from->dtype == MHA_F64)
        cli_note(c->quiet,
                 "%s: float64, taken as float32 (a.astype('f4')), in which all is computed",
                 c->name);
    return CLI_OK;
}

static cli_exit wrong_type(const conversion *c, const char *wanted, const char *fix)
{
    return cli_fail(CLI_BAD_INPUT, RUN, "%s (%s): holds %s, expected %s: %s", c->name, c->option,
                    mha_dtype_name(c->from->dtype), wanted, fix);
}

/* Whether the type can be turned into that of the kind, which *dtype then is. */
static cli_exit check_type(const conversion *c, run_kind kind, mha_dtype *dtype)
{
    static const mha_dtype types[] = {[RUN_FLOAT] = MHA_F32,
                                      [RUN_REAL] = MHA_F32,
                                      [RUN_KEEP] = MHA_U8,
                                      [RUN_INDEX] = MHA_I64,
                                      [RUN_INDEX32] = MHA_I32};
    const mha_dtype from = c->from->dtype;
    *dtype = kind == RUN_FLOAT && (from == MHA_F16 || from == MHA_BF16) ? from : types[kind];
    if (types[kind] == MHA_F32 || is_whole(from)) return CLI_OK;
    return kind == RUN_KEEP
               ? wrong_type(c, "booleans, true where something is kept",
                            "save mask.astype(bool), or add numbers to the scores with --bias")
               : wrong_type(c, "whole numbers", "save a.astype('i8')");
}

static cli_exit to_keep(const conversion *c, mha_tensor *to)
{
    for (int64_t i = 0; i < c->count; i++)
        ((uint8_t *)to->data)[i] = whole_element(c->from, i) != 0;
    return CLI_OK;
}

static cli_exit to_index(const conversion *c, mha_tensor *to)
{
    for (int64_t i = 0; i < c->count; i++) {
        int64_t value = whole_element(c->from, i);
        if (to->dtype == MHA_I64) {
            ((int64_t *)to->data)[i] = value;
            continue;
        }
        if (value < INT32_MIN || value > INT32_MAX)
            return cli_fail(CLI_BAD_INPUT, RUN,
                            "%s (%s): element %" PRId64 " is %" PRId64 ", beyond 32 bits; number "
                            "the documents from 0",
                            c->name, c->option, i, value);
        ((int32_t *)to->data)[i] = (int32_t)value;
    }
    return CLI_OK;
}

/* The same array in the type of its kind; array keeps what it read only if that is the type. */
static cli_exit convert(const char *option, const char *name, run_kind kind, bool quiet,
                        run_array *array)
{
    mha_dtype dtype;
    conversion c = {.option = option, .name = name, .from = &array->tensor, .quiet = quiet};
    cli_exit code = check_type(&c, kind, &dtype);
    if (code != CLI_OK || dtype == array->tensor.dtype) return code;
    mha_status status = mha_tensor_count(&array->tensor, &c.count);
    if (status != MHA_OK) return cli_fail_status(RUN, status);
    run_array made;
    code = run_array_make(dtype, array->tensor.ndim, array->tensor.shape, &made);
    if (code == CLI_OK) {
        code = dtype == MHA_F32   ? to_real(&c, &made.tensor)
               : kind == RUN_KEEP ? to_keep(&c, &made.tensor)
                                  : to_index(&c, &made.tensor);
    }
    run_array_free(code == CLI_OK ? array : &made);
    if (code == CLI_OK) *array = made;
    return code;
}

/* ---- Where they come from -------------------------------------------------------------------- */

/* "1,2.5,-inf": how many numbers, 0 if it is not such a list. No file is called so by chance. */
static int64_t list_length(const char *text, bool *whole)
{
    int64_t count = 0;
    *whole = true;
    for (const char *at = text;; at++) {
        char *end;
        (void)strtod(at, &end);
        if (end == at || isspace((unsigned char)*at)) return 0;
        for (; at < end; at++) *whole = *whole && (isdigit((unsigned char)*at) || *at == '-');
        count++;
        if (*at != ',') return *at ? 0 : count;
    }
}

/* A list as i64 if its numbers are whole, else as f64. */
static cli_exit read_list(const char *text, int64_t count, bool whole, run_array *array)
{
    cli_exit code = run_array_make(whole ? MHA_I64 : MHA_F64, 1, &count, array);
    const char *at = text;
    for (int64_t i = 0; i < count && code == CLI_OK; i++) {
        char *end;
        if (whole)
            ((int64_t *)array->tensor.data)[i] = strtoll(at, &end, 10);
        else
            ((double *)array->tensor.data)[i] = strtod(at, &end);
        at = end + 1;
    }
    return code;
}

/* The first names of a file, for messages. */
static void name_list(const mha_safetensors *file, char *text, size_t size)
{
    int64_t count = mha_safetensors_count(file);
    const int64_t most = 6;
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < count && i < most && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 mha_safetensors_name(file, i));
    if (count > most && used < size) snprintf(text + used, size - used, ", ...");
}

static cli_exit open_safetensors(const char *text, size_t path_bytes, bool head, run_array *array)
{
    char *path = malloc(path_bytes + 1), names[256];
    if (!path) return cli_fail(CLI_NO_MEMORY, RUN, "out of memory: a file's name");
    memcpy(path, text, path_bytes);
    path[path_bytes] = '\0';
    mha_safetensors *file = NULL;
    mha_status status = mha_safetensors_open(path, &file);
    free(path);
    if (status != MHA_OK) return cli_fail_status(RUN, status);
    array->memory[1] = file;
    const char *name = text[path_bytes] ? text + path_bytes + 1 : NULL;
    int64_t count = mha_safetensors_count(file);
    int64_t index = name ? mha_safetensors_find(file, name) : count == 1 ? 0 : -1;
    if (index < 0) {
        name_list(file, names, sizeof names);
        return cli_fail(name ? CLI_BAD_INPUT : CLI_USAGE, RUN,
                        "%.*s: %s%s%s it has %" PRId64 ": %s; write FILE.safetensors:NAME",
                        (int)path_bytes, text, name ? "no tensor '" : "which of its tensors?",
                        name ? name : "", name ? "';" : "", count, names);
    }
    status = head ? mha_safetensors_peek(file, index, &array->tensor)
                  : mha_safetensors_tensor(file, index, &array->tensor);
    return status == MHA_OK ? CLI_OK : cli_fail_status(RUN, status);
}

static cli_exit open_npy(const char *path, bool head, run_array *array)
{
    if (!strcmp(path, "-"))
        return cli_fail(CLI_USAGE, RUN,
                        "-: arrays are not read from a pipe; write a file, and name it");
    mha_npy *npy = NULL;
    mha_status status = head ? mha_npy_peek(path, &array->tensor) : mha_npy_read(path, &npy);
    if (status != MHA_OK) return cli_fail_status(RUN, status);
    array->memory[0] = npy;
    if (npy) array->tensor = mha_npy_tensor(npy);
    return CLI_OK;
}

/* Bytes of the path in "a.safetensors" or "a.safetensors:name"; 0 if it is neither. */
static size_t safetensors_path(const char *text)
{
    static const char end[] = ".safetensors";
    for (const char *at = text; (at = strstr(at, end)); at++)
        if (!at[sizeof end - 1] || at[sizeof end - 1] == ':')
            return (size_t)(at - text) + sizeof end - 1;
    return 0;
}

/* The array as it stands in its file, or only its head. */
static cli_exit open_array(const char *text, bool head, run_array *array, bool *list)
{
    *array = (run_array){0};
    bool whole;
    int64_t numbers = list_length(text, &whole);
    size_t path_bytes = safetensors_path(text);
    *list = numbers > 0;
    return numbers > 0      ? read_list(text, numbers, whole, array)
           : path_bytes > 0 ? open_safetensors(text, path_bytes, head, array)
                            : open_npy(text, head, array);
}

cli_exit run_array_read(const char *option, const char *text, run_kind kind, bool quiet,
                        run_array *array)
{
    run_array head;
    bool list;
    cli_exit code = run_array_peek(option, text, kind, &head);
    if (code != CLI_OK) return code;
    run_array_free(&head);
    code = open_array(text, false, array, &list);
    /* A list has no type of its own: nothing to be said of rounding. */
    if (code == CLI_OK) code = convert(option, text, kind, quiet || list, array);
    if (code != CLI_OK) run_array_free(array);
    return code;
}

cli_exit run_array_peek(const char *option, const char *text, run_kind kind, run_array *array)
{
    bool list;
    mha_dtype dtype = MHA_F32;
    const conversion c = {.option = option, .name = text, .from = &array->tensor};
    cli_exit code = open_array(text, true, array, &list);
    if (code == CLI_OK) code = check_type(&c, kind, &dtype);
    array->tensor.dtype = dtype;
    array->tensor.data = NULL;
    if (code != CLI_OK) run_array_free(array);
    return code;
}

/* ---- Lists of heads, rows and keys ----------------------------------------------------------- */

/* A number without sign; *at steps behind it. */
static bool take_number(const char **at, int64_t *number)
{
    const int64_t too_large = INT64_C(1) << 40;
    const char *start = *at;
    for (*number = 0; isdigit((unsigned char)**at); ++*at)
        if (*number < too_large) *number = *number * 10 + (**at - '0');
    return *at != start;
}

/* Walk over "0,2-4"; numbers NULL: only count them. Returns how many, -1 if it is no such list, -2
 * if a number is too large, which *beyond then is. */
static int64_t walk_list(const char *text, int64_t limit, int64_t *numbers, int64_t *beyond)
{
    int64_t count = 0;
    for (const char *at = text;; at++) {
        int64_t first, last;
        if (!take_number(&at, &first)) return -1;
        last = first;
        if (*at == '-') {
            at++;
            if (!take_number(&at, &last) || last < first) return -1;
        }
        *beyond = last;
        if (last >= limit) return -2;
        for (int64_t i = first; i <= last; i++, count++)
            if (numbers) numbers[count] = i;
        if (*at != ',') return *at ? -1 : count;
    }
}

static cli_exit check_list(const char *option, const char *text, const char *what, int64_t limit,
                           const run_array *list)
{
    char shape[128];
    if (list->tensor.ndim != 1)
        return cli_fail(CLI_BAD_INPUT, RUN, "%s %s: has shape %s, expected a list such as 0,2-4",
                        option, text, run_shape_text(&list->tensor, shape, sizeof shape));
    for (int64_t i = 0; i < list->tensor.shape[0]; i++) {
        int64_t number = ((const int64_t *)list->tensor.data)[i];
        if (number < 0 || number >= limit)
            return cli_fail(CLI_USAGE, RUN,
                            "%s %s: there is no %s %" PRId64 "; they are 0 to %" PRId64, option,
                            text, what, number, limit - 1);
    }
    return CLI_OK;
}

cli_exit run_list_read(const char *option, const char *text, const char *what, int64_t count,
                       run_array *list)
{
    *list = (run_array){0};
    int64_t beyond, items = walk_list(text, count, NULL, &beyond);
    if (items == -2)
        return cli_fail(CLI_USAGE, RUN, "%s %s: there is no %s %" PRId64 "; they are 0 to %" PRId64,
                        option, text, what, beyond, count - 1);
    if (items == -1 && text[strspn(text, "0123456789,-")] == '\0')
        return cli_fail(CLI_USAGE, RUN, "%s %s: expected a list such as 0,2-4", option, text);
    cli_exit code = items == -1 ? run_array_read(option, text, RUN_INDEX, true, list)
                                : run_array_make(MHA_I64, 1, &items, list);
    if (code != CLI_OK) return code;
    if (items >= 0)
        (void)walk_list(text, count, list->tensor.data, &beyond);
    else
        code = check_list(option, text, what, count, list);
    if (code != CLI_OK) run_array_free(list);
    return code;
}
