#include "support/stored.h"
#include "support/expect.h"

#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

/* mha_transformer_source.read: copies numbers of the other transformer's array, and checks the
 * request. */
void stored_read(const void *user, int64_t parameter, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float *to)
{
    const stored *s = user;
    mha_parameter p;
    float line[4096];
    if (s->reads) ++*s->reads;
    if (mha_transformer_parameter(s->like, parameter, &p) != MHA_OK) fail_msg("no such parameter");
    const int64_t width = p.ndim == 2 ? p.shape[1] : 1;
    assert_true(row >= 0 && rows >= 0 && row + rows <= p.shape[0] && column >= 0 && columns >= 0 &&
                column + columns <= width && width <= 4096);
    for (int64_t i = 0; i < rows; i++) {
        expect_ok(mha_transformer_read(s->like, &p, row + i, 1, line));
        memcpy(to + i * columns, line + column, (size_t)columns * sizeof *to);
    }
}

/* mha_transformer_source.find_rows. */
static const void *find_rows(const void *user, int64_t parameter, int64_t row, int64_t rows,
                             mha_dtype *type, int64_t *stride)
{
    const stored *s = user;
    mha_parameter p;
    if (mha_transformer_parameter(s->like, parameter, &p) != MHA_OK) fail_msg("no such parameter");
    assert_true(p.ndim == 2 && row >= 0 && rows > 0 && row + rows <= p.shape[0]);
    *type = s->type;
    *stride = p.shape[1];
    return s->halves + p.offset + row * p.shape[1];
}

void stored_release(void *user)
{
    stored *s = user;
    s->released++;
    free(s->halves);
    s->halves = NULL;
}

static mha_transformer *make(mha_context *context, const mha_transformer *like, uint32_t flags,
                             stored *s)
{
    mha_transformer *t = NULL;
    mha_transformer_desc d;
    mha_transformer_describe(like, &d);
    const mha_transformer_source source = {.struct_size = sizeof source,
                                           .flags = flags,
                                           .read = stored_read,
                                           .release = stored_release,
                                           .user = s,
                                           .find_rows = s->halves ? find_rows : NULL};
    if (mha_transformer_create_from(context, &d, &source, &t) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    expect_ok(mha_transformer_update(context, t));
    assert_null(mha_transformer_data(t));
    assert_int_equal(mha_transformer_size(t), mha_transformer_size(like));
    return t;
}

mha_transformer *stored_transformer(mha_context *context, const mha_transformer *like,
                                    uint32_t flags, stored *s)
{
    *s = (stored){.like = like};
    return make(context, like, flags, s);
}

mha_transformer *stored_as_halves(mha_context *context, mha_transformer *like, mha_dtype type,
                                  stored *s)
{
    const int64_t count = mha_transformer_size(like);
    float *data = mha_transformer_data(like);
    *s = (stored){.like = like, .type = type, .halves = malloc((size_t)count * sizeof(uint16_t))};
    assert_non_null(s->halves);
    const mha_tensor f32 = mha_tensor_contiguous(data, MHA_F32, 1, &count);
    const mha_tensor halves = mha_tensor_contiguous(s->halves, type, 1, &count);
    expect_ok(mha_tensor_convert(&f32, &halves));
    expect_ok(mha_tensor_convert(&halves, &f32));
    expect_ok(mha_transformer_update(context, like));
    return make(context, like, 0, s);
}
