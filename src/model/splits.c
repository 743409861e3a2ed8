/* Splitting texts at white space, at punctuation, or into characters. The rules match the
 * pre-tokenizers WhitespaceSplit, Punctuation and Split, which checkpoint_words.c writes, so that
 * other programs split texts the same way. */
#include <multihead/checkpoint.h>
#include <multihead/component.h>

#include <utf8proc.h>

/* White space as defined by Unicode. */
static bool is_space(utf8proc_int32_t code)
{
    const utf8proc_category_t c = utf8proc_category(code);
    return (code >= 9 && code <= 13) || code == 0x85 || c == UTF8PROC_CATEGORY_ZS ||
           c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

/* Punctuation as defined by Unicode, plus $ + < = > ^ ` | ~ */
static bool is_punctuation(utf8proc_int32_t code)
{
    const utf8proc_category_t c = utf8proc_category(code);
    if (code < 0x80)
        return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) ||
               (code >= 91 && code <= 96) || (code >= 123 && code <= 126);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

/* Find the size and class of the character at text + at. */
static mha_status look(const char *text, size_t at, size_t bytes, size_t *step,
                       utf8proc_int32_t *code)
{
    const utf8proc_ssize_t length =
        utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), code);
    if (length == 1 && *code == 0)
        return mha_fail(MHA_ERR_UTF8, "text: byte %zu is a zero byte; no word holds one", at);
    if (length < 1)
        return mha_fail(MHA_ERR_UTF8, "text: byte %zu does not begin a valid UTF-8 character", at);
    *step = (size_t)length;
    return MHA_OK;
}

mha_status mha_split_next(mha_splitting splitting, const char *text, size_t bytes, size_t *at,
                          size_t *from)
{
    size_t step = 0;
    utf8proc_int32_t code = 0;
    MHA_NEED_AS("mha_split_next", "text, at, from", text || bytes == 0, at, from);
    if ((unsigned)splitting > MHA_SPLIT_CHARACTERS || *at > bytes || bytes > PTRDIFF_MAX)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_split_next: splitting %d, at %zu of %zu bytes",
                        (int)splitting, *at, bytes);
    size_t begin = *at;
    for (; begin < bytes; begin += step) {
        MHA_TRY(look(text, begin, bytes, &step, &code));
        if (splitting == MHA_SPLIT_CHARACTERS || !is_space(code)) break;
    }
    size_t end = begin < bytes ? begin + step : begin;
    const bool alone = splitting == MHA_SPLIT_CHARACTERS ||
                       (splitting == MHA_SPLIT_PUNCTUATION && is_punctuation(code));
    for (; !alone && end < bytes; end += step) {
        MHA_TRY(look(text, end, bytes, &step, &code));
        if (is_space(code) || (splitting == MHA_SPLIT_PUNCTUATION && is_punctuation(code))) break;
    }
    *from = begin;
    *at = end;
    return MHA_OK;
}
