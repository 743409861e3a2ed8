/* The steps of BPE tokenizers. */
#include "tokenizer/bpe.h"

#include "tokenizer/charsmap.h"
#include "tokenizer/pattern.h"

#include <multihead/component.h>

#include <string.h>

const char mhai_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Numeric characters in Rust, from Unicode 17, while patterns use Unicode 16. */
static const char digit_pattern[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";

/* ---- Letters of bytes ------------------------------------------------------------------------ */

/* Printable Latin-1 characters stand for themselves. The others are mapped to
 * U+0100 and up, in order. */
static bool stands_for_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

int32_t mhai_bpe_letter(int byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= ' ') return 0x100 + byte;
    return byte == 0xAD ? 0x143 : 0x121 + byte - 0x7F;
}

int mhai_bpe_byte(int32_t letter)
{
    if (letter >= 0 && letter < 0x100) return stands_for_itself(letter) ? letter : -1;
    if (letter >= 0x100 && letter <= 0x120) return letter - 0x100;
    if (letter >= 0x121 && letter <= 0x142) return letter - 0x121 + 0x7F;
    return letter == 0x143 ? 0xAD : -1;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

mha_status mhai_bpe_create(const mha_allocator *allocator, mhai_bpe **bpe)
{
    *bpe = mhai_vector_alloc(allocator, 1, sizeof **bpe);
    if (!*bpe) return MHA_NO_MEMORY("tokenizer");
    **bpe = (mhai_bpe){.allocator = *allocator, .unk = -1};
    (*bpe)->pairs = mhai_vector_make(&(*bpe)->allocator, sizeof(mhai_pair));
    return MHA_OK;
}

void mhai_bpe_destroy(mhai_bpe *bpe)
{
    if (!bpe) return;
    const mha_allocator allocator = bpe->allocator;
    for (int32_t i = 0; i < bpe->step_count; i++) {
        mhai_step *step = &bpe->steps[i];
        mhai_pattern_free(step->pattern);
        mhai_charsmap_free(step->charsmap);
        mhai_vector_release(&allocator, step->literal, step->literal_size, 1);
        mhai_vector_release(&allocator, step->text, step->text_size, 1);
    }
    mhai_vector_release(&allocator, bpe->scores, bpe->score_count, sizeof *bpe->scores);
    mhai_vector_release(&allocator, bpe->first, bpe->first_count, sizeof *bpe->first);
    mhai_vector_free(&bpe->pairs);
    mhai_vector_release(&allocator, bpe, 1, sizeof *bpe);
}

static mha_status copy(const mha_allocator *allocator, const char *from, char **to, size_t *size)
{
    if (!from) return MHA_OK;
    *size = strlen(from);
    *to = mhai_vector_alloc(allocator, *size, 1);
    if (!*to) return MHA_NO_MEMORY("tokenizer");
    memcpy(*to, from, *size);
    return MHA_OK;
}

mha_status mhai_bpe_add_step(mhai_bpe *bpe, const char *where, const mhai_step_desc *desc)
{
    if (bpe->step_count == MHAI_BPE_STEPS)
        return mha_fail(MHA_ERR_UNSUPPORTED, "%s: more than %d steps of normalizing and splitting",
                        where, (int)MHAI_BPE_STEPS);
    mhai_step *step = &bpe->steps[bpe->step_count++];
    *step = desc->like;
    bpe->expands |= step->what == MHAI_STEP_CHARSMAP || step->form.compatible;
    if (step->what == MHAI_STEP_CHARSMAP)
        return mhai_charsmap_make(&bpe->allocator, where, desc->map, desc->map_size,
                                  &step->charsmap);
    MHA_TRY(copy(&bpe->allocator, desc->text, &step->text, &step->text_size));
    MHA_TRY(copy(&bpe->allocator, desc->literal, &step->literal, &step->literal_size));
    return desc->pattern ? mhai_pattern_make(&bpe->allocator, where, desc->pattern,
                                             strlen(desc->pattern), desc->own, &step->pattern)
                         : MHA_OK;
}

mha_status mhai_bpe_add_split(mhai_bpe *bpe, const char *where, const char *pattern)
{
    const mhai_step_desc desc = {
        .like = {.what = MHAI_STEP_SPLIT, .split = MHAI_ISOLATED}, .pattern = pattern, .own = true};
    return mhai_bpe_add_step(bpe, where, &desc);
}

mha_status mhai_bpe_add_digits(mhai_bpe *bpe, const char *where, bool individual)
{
    const mhai_step_desc desc = {
        .like = {.what = MHAI_STEP_SPLIT, .split = individual ? MHAI_ISOLATED : MHAI_CONTIGUOUS},
        .pattern = digit_pattern,
        .own = true};
    return mhai_bpe_add_step(bpe, where, &desc);
}

mha_status mhai_bpe_add_spaces(mhai_bpe *bpe, const char *where)
{
    const mhai_step_desc desc = {
        .like = {.what = MHAI_STEP_REPLACE}, .literal = " ", .text = "\xE2\x96\x81"};
    bpe->marks_spaces = true;
    return mhai_bpe_add_step(bpe, where, &desc);
}

mha_status mhai_bpe_add_whitespace(mhai_bpe *bpe, const char *where)
{
    const mhai_step_desc desc = {
        .like = {.what = MHAI_STEP_SPLIT, .split = MHAI_REMOVED}, .pattern = "\\s", .own = true};
    return mhai_bpe_add_step(bpe, where, &desc);
}
