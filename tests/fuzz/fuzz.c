#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fuzz_must(bool condition, const char *what)
{
    if (condition) return;
    dprintf(2, "\nfinding: %s\n%s\n", what, mha_error_detail());
    abort();
}

void fuzz_must_speak(mha_status status)
{
    if (status == MHA_OK) return;
    fuzz_must(strcmp(mha_status_text(status), mha_status_text((mha_status)-1)) != 0,
              "a status that is not in the list");
    const char *line = mha_error_detail();
    fuzz_must(line[0] != '\0' && !strchr(line, '\n'), "an error that does not say one line");
}

void fuzz_cut(const uint8_t *data, size_t size, fuzz_part *parts, int most)
{
    const size_t cut = strlen(FUZZ_CUT);
    int part = 0;
    size_t begin = 0;
    memset(parts, 0, (size_t)most * sizeof *parts);
    for (size_t at = 0; part < most - 1 && at + cut <= size; at++) {
        if (memcmp(data + at, FUZZ_CUT, cut) != 0) continue;
        parts[part++] = (fuzz_part){data + begin, at - begin};
        begin = at + cut;
        at = begin - 1;
    }
    parts[part] = (fuzz_part){data + begin, size - begin};
}

/* ---- choices ------------------------------------------------------------------------------- */

uint64_t fuzz_take(fuzz_part *part, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes && part->size > 0; i++) {
        value = value << 8 | *part->data++;
        part->size--;
    }
    return value;
}

int64_t fuzz_pick(fuzz_part *part, int64_t low, int64_t high)
{
    return low + (int64_t)(fuzz_take(part, high - low < 256 ? 1 : 4) % (uint64_t)(high - low + 1));
}

double fuzz_double(fuzz_part *part)
{
    static const double odd[] = {0,       -0.0,      1,        -1,        0.5,  5e-324, 2.2e-308,
                                 1.7e308, 1e6,       1000001,  1e5,       -1e6, 1e-7,   1e15,
                                 1e16,    123456.75, INFINITY, -INFINITY, NAN};
    const int choice = (int)fuzz_pick(part, 0, 31);
    double value;
    if (choice < (int)(sizeof odd / sizeof *odd)) return odd[choice];
    if (choice < 28) return (double)fuzz_pick(part, -2000, 2000) / 16;
    uint64_t bits = fuzz_take(part, 8);
    memcpy(&value, &bits, sizeof value);
    return value;
}

char *fuzz_string(fuzz_part part)
{
    char *text = malloc(part.size + 1);
    fuzz_must(text != NULL, "out of memory");
    if (part.size > 0) memcpy(text, part.data, part.size);
    text[part.size] = '\0';
    return text;
}

char *fuzz_text(fuzz_part *part, size_t most)
{
    size_t bytes = (size_t)fuzz_pick(part, 0, 255);
    if (bytes == 255) return NULL;
    bytes %= most;
    if (bytes > part->size) bytes = part->size;
    char *text = fuzz_string((fuzz_part){part->data, bytes});
    part->data += bytes;
    part->size -= bytes;
    return text;
}

static int64_t odd_length(fuzz_part *part, int64_t was)
{
    static const int64_t odd[] = {0,
                                  1,
                                  -1,
                                  2,
                                  INT64_MAX,
                                  INT64_MIN,
                                  1 << 20,
                                  INT64_C(1) << 32,
                                  INT64_C(1) << 61,
                                  INT64_C(1) << 62,
                                  -(INT64_C(1) << 61),
                                  -2};
    const int choice = (int)fuzz_pick(part, 0, 15);
    if (choice < 12) return odd[choice];
    const int64_t step = choice - 13;
    return choice < 15 && was != INT64_MAX && was != INT64_MIN ? was + (step ? step : 2)
                                                               : (int64_t)fuzz_take(part, 8);
}

void fuzz_spoil_tensor(fuzz_part *part, mha_tensor *tensor)
{
    const int axis = (int)fuzz_pick(part, 0, MHA_MAX_DIMS - 1);
    switch (fuzz_pick(part, 0, 7)) {
    case 0: tensor->data = NULL; break;
    case 1: tensor->ndim = (int32_t)fuzz_pick(part, -1, MHA_MAX_DIMS + 1); break;
    case 2: tensor->dtype = (mha_dtype)fuzz_pick(part, -1, 9); break;
    case 3:
    case 4: tensor->shape[axis] = odd_length(part, tensor->shape[axis]); break;
    default: tensor->stride[axis] = odd_length(part, tensor->stride[axis]);
    }
}

bool fuzz_backed(const mha_tensor *view, const void *memory, size_t bytes)
{
    const __int128 size = (__int128)mha_dtype_size(view->dtype);
    __int128 least = 0, most = 0;
    if (!view->data || size == 0 || view->ndim < 0 || view->ndim > MHA_MAX_DIMS) return true;
    for (int i = 0; i < view->ndim; i++)
        if (view->shape[i] <= 0) return true; /* no element to read, or an error */
    for (int i = 0; i < view->ndim; i++) {
        const __int128 reach = (__int128)(view->shape[i] - 1) * view->stride[i];
        *(reach < 0 ? &least : &most) += reach;
    }
    const __int128 begin = (__int128)((const char *)view->data - (const char *)memory);
    return begin + least * size >= 0 && begin + (most + 1) * size <= (__int128)bytes;
}

mha_context *fuzz_context(int threads, unsigned isa)
{
    static mha_context *made[2][5];
    mha_context **slot = &made[threads == 2][isa % 5];
    mha_isa wanted = (mha_isa)(isa % 5);
    if (*slot) return *slot;
    if (!mha_isa_available(wanted)) wanted = MHA_ISA_AUTO;
    const mha_context_desc desc = {
        .struct_size = sizeof desc, .num_threads = threads, .isa = wanted};
    fuzz_must(mha_context_create(&desc, slot) == MHA_OK, "no context");
    return *slot;
}
