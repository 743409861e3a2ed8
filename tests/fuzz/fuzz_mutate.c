/* Mutants that pass the first checks. See fuzz.h. */
#include "fuzz.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

/* A text in its own buffer, in which it can grow and shrink. */
typedef struct piece {
    uint8_t *data;
    size_t size, room;
} piece;

/* libFuzzer extends empty data to one byte, even without capacity. */
static void change_bytes(piece *p)
{
    if (p->room > 0) p->size = LLVMFuzzerMutate(p->data, p->size, p->room);
}

static void replace(piece *p, size_t at, size_t bytes, const char *by)
{
    const size_t new = strlen(by);
    if (p->size - bytes + new > p->room) return;
    memmove(p->data + at + new, p->data + at + bytes, p->size - at - bytes);
    memcpy(p->data + at, by, new);
    p->size += new - bytes;
}

/* Replaces one number of the text, usually by a neighbour or a power of two. */
static bool change_number(rng *r, piece *p)
{
    static const uint64_t odd[] = {0,     1,         2,          3,         4,          8,
                                   16,    64,        127,        255,       65535,      1 << 20,
                                   10000, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, 1000000};
    int64_t runs = 0;
    for (size_t i = 0; i < p->size; i++)
        runs += isdigit(p->data[i]) && (i == 0 || !isdigit(p->data[i - 1]));
    if (runs == 0) return false;
    int64_t wanted = rng_between(r, 0, runs - 1);
    size_t at = 0, end;
    for (;; at++)
        if (isdigit(p->data[at]) && (at == 0 || !isdigit(p->data[at - 1])) && wanted-- == 0) break;
    uint64_t value = 0;
    for (end = at; end < p->size && isdigit(p->data[end]); end++)
        value = value * 10 + (uint64_t)(p->data[end] - '0');
    char text[32];
    switch (rng_between(r, 0, 4)) {
    case 0: value = RNG_PICK(r, odd); break;
    case 1: value += (uint64_t)rng_between(r, -2, 2); break;
    case 2: value = value * 2; break;
    case 3: value = value / 2; break;
    default: value = (uint64_t)rng_between(r, 0, 70);
    }
    snprintf(text, sizeof text, "%s%" PRIu64, rng_chance(r, 0.05) ? "-" : "", value);
    replace(p, at, end - at, text);
    return true;
}

/* Finds the n-th quoted text of the piece, without its quotes, or returns false if there are fewer.
 * Escaped quotes are not recognised. */
static bool find_quoted(const piece *p, int64_t n, size_t *at, size_t *bytes)
{
    for (size_t i = 0; i < p->size; i++) {
        const uint8_t *end;
        if (p->data[i] != '"') continue;
        end = memchr(p->data + i + 1, '"', p->size - i - 1);
        if (!end) return false;
        *at = i + 1;
        *bytes = (size_t)(end - p->data) - *at;
        if (n-- == 0) return true;
        i = *at + *bytes;
    }
    return false;
}

/* Shortens a quoted text or replaces it by another quoted text of the piece, which removes or
 * duplicates keys and exchanges values. */
static bool change_quoted(rng *r, piece *p)
{
    size_t at, bytes, from, length;
    int64_t count = 0;
    char text[64];
    while (find_quoted(p, count, &at, &bytes)) count++;
    if (count == 0 || !find_quoted(p, rng_between(r, 0, count - 1), &at, &bytes) ||
        !find_quoted(p, rng_between(r, 0, count - 1), &from, &length))
        return false;
    if (length >= sizeof text || rng_chance(r, 0.5)) {
        from = at;
        length = bytes < sizeof text && bytes > 0 ? bytes - 1 : 0;
    }
    memcpy(text, p->data + from, length);
    text[length] = '\0';
    replace(p, at, bytes, text);
    return true;
}

static void change_text(rng *r, piece *p)
{
    if (rng_chance(r, 0.3) && change_number(r, p)) return;
    if (rng_chance(r, 0.2) && change_quoted(r, p)) return;
    change_bytes(p);
}

/* The largest end in any "data_offsets": [a, b]. */
static size_t last_offset(const uint8_t *text, size_t size)
{
    static const char key[] = "data_offsets";
    unsigned long most = 0;
    for (size_t i = 0; i + sizeof key < size; i++) {
        if (memcmp(text + i, key, sizeof key - 1) != 0) continue;
        const uint8_t *comma = memchr(text + i, ',', size - i);
        const unsigned long end = comma ? strtoul((const char *)comma + 1, NULL, 10) : 0;
        if (end > most) most = end;
    }
    return most;
}

/* Mutates a frame: a length of `width` bytes at `at`, a header of that length, and data. */
static void change_framed(rng *r, piece *p, size_t at, size_t width, bool offsets)
{
    const size_t begin = at + width;
    if (p->size < begin + 2 || p->room < begin + 16) {
        change_bytes(p);
        return;
    }
    uint64_t length = 0;
    for (size_t i = width; i-- > 0;) length = length << 8 | p->data[at + i];
    if (length > p->size - begin) length = p->size - begin;
    const size_t data = p->size - begin - (size_t)length;
    const int choice = (int)rng_between(r, 0, 9);
    if (choice == 0) { /* mutate the frame itself */
        LLVMFuzzerMutate(p->data, begin, begin);
        return;
    }
    piece part = {malloc(p->room + 1), 0, 0};
    fuzz_must(part.data != NULL, "out of memory");
    const bool of_data = choice == 1 && data > 0;
    uint8_t *from = p->data + begin + (of_data ? length : 0);
    part.size = of_data ? data : (size_t)length;
    part.room = p->room - p->size + part.size;
    memcpy(part.data, from, part.size);
    change_text(r, &part);
    part.data[part.size] = '\0';
    if (of_data) {
        memcpy(from, part.data, part.size);
        p->size = begin + (size_t)length + part.size;
    } else {
        memmove(from + part.size, from + length, data);
        memcpy(from, part.data, part.size);
        p->size = begin + part.size + data;
        for (size_t i = 0; i < width; i++) p->data[at + i] = (uint8_t)(part.size >> (8 * i));
        const size_t end = offsets ? last_offset(part.data, part.size) : 0;
        if (end > 0 && rng_chance(r, 0.5) && end <= p->room - begin - part.size) {
            for (size_t i = data; i < end; i++) from[part.size + i] = (uint8_t)i;
            p->size = begin + part.size + end;
        }
    }
    free(part.data);
}

static void change(rng *r, piece *p, char kind)
{
    switch (kind) {
    case 's': change_framed(r, p, 0, 8, true); break;
    case 'n': change_framed(r, p, 8, p->size > 6 && p->data[6] > 1 ? 4 : 2, false); break;
    case 't': change_text(r, p); break;
    default: change_bytes(p);
    }
}

size_t fuzz_mutate(uint8_t *data, size_t size, size_t most, unsigned seed, const char *kinds)
{
    fuzz_part parts[FUZZ_MOST_PARTS];
    const int count = (int)strlen(kinds);
    rng r = rng_make(seed, 0);
    if (rng_chance(&r, 0.05)) return LLVMFuzzerMutate(data, size, most);
    fuzz_cut(data, size, parts, count);
    int chosen = (int)rng_between(&r, 0, count - 1);
    if (!parts[chosen].data) chosen = 0;
    const size_t begin = (size_t)(parts[chosen].data - data);
    const size_t behind = size - begin - parts[chosen].size;
    piece p = {malloc(most + 1), parts[chosen].size, most - begin - behind};
    uint8_t *rest = malloc(behind + 1);
    fuzz_must(p.data && rest, "out of memory");
    memcpy(p.data, parts[chosen].data, p.size);
    memcpy(rest, data + begin + parts[chosen].size, behind);
    for (int64_t n = rng_between(&r, 1, 3); n > 0; n--) change(&r, &p, kinds[chosen]);
    memcpy(data + begin, p.data, p.size);
    memcpy(data + begin + p.size, rest, behind);
    free(p.data);
    free(rest);
    return begin + p.size + behind;
}
