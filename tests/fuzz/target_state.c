/* States of heads: given bytes with corrected length and checksum, or a measured state with some
 * overwritten words. An accepted state must be written to the same bytes, merge with itself until a
 * merge is rejected, accept further measurements, and be completely readable. */
#include "fuzz.h"

#include "support/state_words.h"

#include <multihead/head_state.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 9, MOST_BYTES = 1 << 20 };

FUZZ_MUTATOR("b")

/* Sets the length and the checksum by the header's definition. */
static void seal(uint8_t *bytes, size_t words)
{
    if (words < 4) return;
    state_set_word(bytes, 2, 8 * words);
    state_seal(bytes, words);
}

/* A text of equal weights for every layer that has heads. */
static void feed(mha_head_measures *m, int64_t layers, const int64_t *heads, mha_status wanted)
{
    static const int64_t ids[KEYS] = {0, 1, 0, 1, 1, 0, 0, 1, 0};
    const mha_heads_link link = {3, 1, 0};
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .flags = MHA_HEADS_CAUSAL,
                                 .queries = KEYS,
                                 .keys = KEYS,
                                 .ids = ids,
                                 .links = &link,
                                 .links_count = wanted == MHA_OK ? 1 : 0};
    if (mha_head_measures_begin(m, &text) != MHA_OK) {
        fuzz_must(wanted != MHA_OK, "a text is refused");
        return;
    }
    for (int64_t l = 0; l < layers; l++) {
        const int64_t H = heads ? heads[l] : 1;
        float map[4 * KEYS * KEYS] = {0};
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < KEYS; i++)
                for (int64_t j = 0; j <= i; j++)
                    map[(h * KEYS + i) * KEYS + j] = 1 / (float)(i + 1);
        const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){H, KEYS, KEYS});
        const mha_status status = H > 0 ? mha_head_measures_rows(m, l, 0, &p) : MHA_OK;
        fuzz_must(status == MHA_OK || wanted != MHA_OK, "rows are refused");
        if (status != MHA_OK) break;
    }
    (void)!mha_head_measures_end(m);
}

static mha_buffer made(fuzz_part *choices)
{
    int64_t heads[2] = {fuzz_pick(choices, 0, 2), fuzz_pick(choices, 0, 1)};
    static const char *const names[] = {"nsubj", "eight888"};
    const int64_t with_corpus = fuzz_pick(choices, 0, 1), texts = fuzz_pick(choices, 0, 3);
    const mha_head_measures_desc d = {.struct_size = sizeof d,
                                      .layers = 2,
                                      .heads = heads,
                                      .farthest_offset = fuzz_pick(choices, 1, 3),
                                      .rare_rank = -1,
                                      .names = names,
                                      .relations = fuzz_pick(choices, 1, 2)};
    const mha_head_corpus_desc c = {.struct_size = sizeof c,
                                    .vocab_size = 2,
                                    .places = fuzz_pick(choices, -1, 3),
                                    .replicates = 2,
                                    .permutations = -1};
    mha_context *context = fuzz_context(1, 0);
    mha_head_measures *m = NULL;
    mha_head_corpus *corpus = NULL;
    mha_buffer b = {0};
    const mha_sink sink = mha_buffer_sink(&b);
    fuzz_must(mha_head_measures_create(context, &d, &m) == MHA_OK, "no measures");
    if (with_corpus && c.places >= 0) {
        fuzz_must(mha_head_corpus_create(context, m, &c, &corpus) == MHA_OK, "no corpus");
        fuzz_must(mha_head_corpus_attach(m, corpus) == MHA_OK, "not attached");
    }
    for (int64_t i = 0; i < texts; i++) feed(m, 2, heads, MHA_OK);
    fuzz_must(mha_head_state_write(m, &sink) == MHA_OK, "not written");
    mha_head_corpus_destroy(corpus);
    mha_head_measures_destroy(m);
    return b;
}

static void use(mha_head_measures *m, mha_head_corpus *c)
{
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 2; h++) {
            mha_head_role roles[8];
            mha_head_place places[4];
            mha_head_token tokens[4];
            mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS];
            (void)mha_head_measures_roles(m, l, h, roles, 8);
            (void)mha_head_measures_details(m, l, h);
            (void)mha_head_measures_relation(m, l, h, 0, h);
            (void)mha_head_corpus_tokens(c, l, h, h ? MHA_HEAD_READS : MHA_HEAD_WRITES, 1, tokens,
                                         4);
            (void)mha_head_corpus_positions(c, l, h, bins);
            (void)mha_head_corpus_rest(c, l, h);
            for (int n = 0; n < MHA_MEASURES; n++) {
                const mha_head_measure which = (mha_head_measure)n;
                fuzz_must(!isnan(mha_head_measures_score(m, l, h, which).value), "not a number");
                fuzz_must(!isnan(mha_head_corpus_distribution(c, l, h, which).mean),
                          "not a number");
                (void)mha_head_corpus_places(c, l, h, which, l, places, 4);
            }
        }
    (void)mha_head_corpus_luck(c, MHA_MEASURE_SINK);
}

static void look(const uint8_t *bytes, size_t size)
{
    mha_context *context = fuzz_context(1, 0);
    mha_head_measures *m = NULL, *other = NULL;
    mha_head_corpus *c = NULL, *of_other = NULL;
    const mha_status status = mha_head_state_read(context, bytes, size, NULL, &m, &c);
    fuzz_must_speak(status);
    fuzz_must((status == MHA_OK) == (m != NULL) && (m || !c), "an output of a failure");
    if (status != MHA_OK) return;
    mha_buffer again = {0};
    const mha_sink sink = mha_buffer_sink(&again);
    fuzz_must(mha_head_state_write(m, &sink) == MHA_OK, "what was read cannot be written");
    fuzz_must(again.size == size && memcmp(again.data, bytes, size) == 0, "other bytes");
    mha_buffer_free(&again);
    fuzz_must(mha_head_state_read(context, bytes, size, NULL, &other, &of_other) == MHA_OK,
              "read only once");
    for (int i = 0; i < 3; i++) {
        const mha_status merged = mha_head_measures_merge(m, other);
        fuzz_must(merged == MHA_OK || merged == MHA_ERR_SIZE, "cannot be merged");
        const mha_status joined = c ? mha_head_corpus_merge(c, of_other) : MHA_OK;
        fuzz_must(joined == MHA_OK || joined == MHA_ERR_SIZE, "cannot be merged");
    }
    use(m, c);
    feed(other, 2, NULL, MHA_ERR_ARGUMENT);
    use(other, of_other);
    mha_head_corpus_destroy(c);
    mha_head_corpus_destroy(of_other);
    mha_head_measures_destroy(m);
    mha_head_measures_destroy(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_part rest = {data, size};
    if (fuzz_pick(&rest, 0, 1)) { /* unchanged */
        uint8_t *bytes = malloc(rest.size ? rest.size : 1);
        if (!bytes) return 0;
        if (rest.size) memcpy(bytes, rest.data, rest.size);
        if (rest.size % 8 == 0) seal(bytes, rest.size / 8);
        look(bytes, rest.size);
        free(bytes);
        return 0;
    }
    mha_buffer b = made(&rest);
    uint8_t *bytes = (uint8_t *)b.data;
    size_t words = b.size / 8;
    while (rest.size > 0) {
        const size_t at = (size_t)fuzz_pick(&rest, 0, fuzz_pick(&rest, 0, 1) ? 40 : MOST_BYTES);
        const uint64_t one = 1, bit = one << fuzz_pick(&rest, 0, 63);
        const int64_t add = fuzz_pick(&rest, -2, 2);
        if (at == 40) words = 4 + (size_t)fuzz_pick(&rest, 0, (int64_t)words - 4);
        if (at % words > 2)
            state_set_word(bytes, at % words,
                           fuzz_pick(&rest, 0, 1) ? state_word(bytes, at % words) + (uint64_t)add
                                                  : bit + (uint64_t)add);
    }
    seal(bytes, words);
    look(bytes, 8 * words);
    mha_buffer_free(&b);
    return 0;
}
