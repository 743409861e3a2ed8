/* See charsmap.h. The file is hostile: a walk never leaves the arrays, whatever the units hold. */
#include "tokenizer/charsmap.h"

#include "io/utf8.h"
#include "tokenizer/pattern.h"

#include <multihead/component.h>
#include <multihead/io.h>

#include <string.h>

#include <utf8proc.h>

struct mhai_charsmap {
    mha_allocator allocator;
    uint32_t *units; /* [unit_count] */
    size_t unit_count;
    char *texts; /* [text_size], the last byte is a NUL */
    size_t text_size;
};

/* ---- Units ----------------------------------------------------------------------------------- */

/* A unit has a label, whether a value follows, and the distance to its children; or, with
 * bit 31, a value. */
static bool has_value(uint32_t unit)
{
    return unit >> 8 & 1;
}

static uint32_t label(uint32_t unit)
{
    return unit & 0x800000FFU;
}

static size_t distance(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 0x200U) >> 6);
}

/* The replacement at a value; NULL if it is outside the texts or inside a character. */
static const char *text_at(const mhai_charsmap *map, uint32_t unit)
{
    const size_t at = unit & 0x7FFFFFFFU;
    if (at >= map->text_size || ((unsigned char)map->texts[at] & 0xC0) == 0x80) return NULL;
    return map->texts + at;
}

const char *mhai_charsmap_longest(const mhai_charsmap *map, const char *text, size_t size,
                                  size_t *matched)
{
    enum { MOST_KEY = 64 }; /* far above the keys of any real map; bounds the work per byte */
    const char *made = NULL;
    size_t at = distance(map->units[0]);
    *matched = 0;
    for (size_t i = 0; i < size && i < MOST_KEY && text[i] != '\0'; i++) {
        const unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= map->unit_count || label(map->units[at]) != byte) break;
        const bool found = has_value(map->units[at]);
        at ^= distance(map->units[at]);
        if (at >= map->unit_count) break;
        if (!found || (i + 1 < size && ((unsigned char)text[i + 1] & 0xC0) == 0x80)) continue;
        made = text_at(map, map->units[at]);
        *matched = i + 1;
    }
    return made;
}

const char *mhai_charsmap_find(const mhai_charsmap *map, const char *text, size_t size)
{
    size_t at = distance(map->units[0]);
    for (size_t i = 0; i < size && text[i] != '\0'; i++) {
        const unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= map->unit_count || label(map->units[at]) != byte) return NULL;
        const bool found = has_value(map->units[at]);
        at ^= distance(map->units[at]);
        if (found) return at < map->unit_count ? text_at(map, map->units[at]) : NULL;
    }
    return NULL;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static uint32_t little(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Check all values, whether a key reaches them or not. */
static mha_status check_values(const mhai_charsmap *map, const char *where)
{
    for (size_t i = 0; i < map->unit_count; i++)
        if (map->units[i] >> 31 && !text_at(map, map->units[i]))
            return mha_fail(MHA_ERR_FORMAT,
                            "%s: precompiled_charsmap: unit %zu refers to byte %u of %zu bytes of "
                            "replacements",
                            where, i, map->units[i] & 0x7FFFFFFFU, map->text_size);
    return MHA_OK;
}

static mha_status fill(mhai_charsmap *map, const char *where, const unsigned char *bytes,
                       size_t trie_size, size_t text_size)
{
    const mha_allocator *allocator = &map->allocator;
    map->unit_count = trie_size / 4;
    map->text_size = text_size + 1;
    map->units = mhai_vector_alloc(allocator, map->unit_count, sizeof *map->units);
    map->texts = mhai_vector_alloc(allocator, map->text_size, 1);
    if (!map->units || !map->texts) return MHA_NO_MEMORY("tokenizer: charsmap");
    for (size_t i = 0; i < map->unit_count; i++) map->units[i] = little(bytes + 4 + 4 * i);
    if (text_size > 0) memcpy(map->texts, bytes + 4 + trie_size, text_size);
    map->texts[text_size] = '\0';
    const size_t valid = mha_utf8_span(map->texts, text_size, NULL);
    if (valid < text_size)
        return mha_fail(MHA_ERR_UTF8,
                        "%s: precompiled_charsmap: byte %zu of the replacements does not begin a "
                        "valid UTF-8 character",
                        where, valid);
    return check_values(map, where);
}

mha_status mhai_charsmap_make(const mha_allocator *allocator, const char *where, const void *bytes,
                              size_t size, mhai_charsmap **map)
{
    const size_t trie_size = size >= 4 ? little(bytes) : 0;
    if (trie_size == 0 || trie_size % 4 != 0 || trie_size > size - 4)
        return mha_fail(MHA_ERR_FORMAT,
                        "%s: precompiled_charsmap: a trie of %zu bytes in a map of %zu, expected "
                        "a multiple of 4 that fits",
                        where, trie_size, size);
    *map = mhai_vector_alloc(allocator, 1, sizeof **map);
    if (!*map) return MHA_NO_MEMORY("tokenizer: charsmap");
    **map = (mhai_charsmap){.allocator = *allocator};
    return fill(*map, where, bytes, trie_size, size - 4 - trie_size);
}

void mhai_charsmap_free(mhai_charsmap *map)
{
    if (!map) return;
    const mha_allocator allocator = map->allocator;
    mhai_vector_release(&allocator, map->units, map->unit_count, sizeof *map->units);
    mhai_vector_release(&allocator, map->texts, map->text_size, 1);
    mhai_vector_release(&allocator, map, 1, sizeof *map);
}

/* ---- Grapheme clusters ----------------------------------------------------------------------- */

/* A character that utf8proc treats as Unicode 17 treats c. */
static int32_t stand_in(int32_t c)
{
    enum { CONTROL = 0x200B, EXTEND = 0x300, LETTER = 0x10000, PREPEND = 0x600 };
    static const struct {
        int32_t first, last, like;
    } newer[] = {
        {0x1ACF, 0x1ADD, EXTEND},    {0x1AE0, 0x1AEB, EXTEND},    {0x10EFA, 0x10EFB, EXTEND},
        {0x113D1, 0x113D1, PREPEND}, {0x11A3A, 0x11A3A, LETTER},  {0x11B60, 0x11B67, EXTEND},
        {0x11F02, 0x11F02, PREPEND}, {0x13439, 0x1343F, CONTROL}, {0x1E6E3, 0x1E6E3, EXTEND},
        {0x1E6E6, 0x1E6E6, EXTEND},  {0x1E6EE, 0x1E6EF, EXTEND},  {0x1E6F5, 0x1E6F5, EXTEND}};
    for (size_t i = 0; c >= 0x1ACF && i < sizeof newer / sizeof newer[0]; i++)
        if (c >= newer[i].first && c <= newer[i].last) return newer[i].like;
    return mhai_pattern_stand_in(c);
}

/* Without two rules of newer versions, which matter only for the mark after a cluster of three or
 * more characters: utf8proc 2.8 does not join Indic conjuncts, and joins pictographs that are no
 * emoji. */
size_t mhai_grapheme_end(const char *text, size_t size, size_t at)
{
    utf8proc_int32_t state = 0;
    int32_t last = stand_in(mhai_utf8_next(text, &at));
    while (at < size) {
        size_t next = at;
        const int32_t c = stand_in(mhai_utf8_next(text, &next));
        if (utf8proc_grapheme_break_stateful(last, c, &state)) break;
        last = c;
        at = next;
    }
    return at;
}
