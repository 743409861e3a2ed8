/* The tokens of an image. */
#include "study/study.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdlib.h>

/* Longer than "[REG1023]" and "1023,1023". */
enum { LABEL = 12 };

static void fill(const mha_picture *picture, char *text, mha_tokens *tokens)
{
    const int64_t first = picture->first, cls = first - picture->registers;
    for (int64_t t = 0; t < tokens->count; t++, text += LABEL) {
        const int64_t at = t - first;
        if (t < cls)
            mha_format(text, LABEL, "[CLS]");
        else if (at < 0)
            mha_format(text, LABEL, "[REG%" PRId64 "]", t - cls);
        else
            mha_format(text, LABEL, "%" PRId64 ",%" PRId64, at / picture->cols, at % picture->cols);
        tokens->labels[t] = text;
        tokens->ids[t] = at < 0 ? (int32_t)(1 + t) : 0;
        tokens->special[t] = at < 0;
        tokens->sequence[t] = at < 0 ? -1 : 0;
        tokens->begin[t] = tokens->end[t] = -1;
    }
}

mha_status mha_tokens_read_image(const mha_model *model, const mha_image *image, mha_tokens *tokens)
{
    MHA_NEED("mha_tokens_read_image", model, image, tokens);
    MHA_TRY(mha_struct_check_size("mha_tokens", tokens->struct_size, sizeof *tokens));
    mha_picture *picture = calloc(1, sizeof *picture);
    if (!picture) return MHA_NO_MEMORY("image");
    picture->struct_size = sizeof *picture;
    mha_tokens made = {.struct_size = sizeof made};
    char *text;
    mha_status status = mha_model_read_image(model, image, picture);
    if (status == MHA_OK) {
        const int64_t count = picture->first + picture->rows * picture->cols;
        status = mhai_tokens_make(count, (size_t)count * LABEL, &made, &text);
    }
    if (status == MHA_OK) {
        fill(picture, text, &made);
        made.picture = picture;
        *tokens = made;
        return MHA_OK;
    }
    mha_picture_free(picture);
    free(picture);
    return status;
}
