/* mha_transformer_logits(): one row or many are bit-identical to the rows of a forward call, with a
 * softcap and with tied weights; and misuse. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <string.h>

enum { MOST_WIDE = 24 };

/* Computes logits for rows of the last hidden state, in one call and in one call per row. */
static void rows_are_those_of_a_forward_call(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 100 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        small_model *m = small_model_make(context, &r, MHA_TRANSFORMER_CAUSAL);
        const int64_t rows = m->B * m->T, wide = m->desc.embed_dim;
        float hidden_data[SMALL_ROWS * MOST_WIDE], made[SMALL_ROWS * SMALL_WIDTH];
        mha_tensor hidden =
            mha_tensor_contiguous(hidden_data, MHA_F32, 3, (const int64_t[]){m->B, m->T, wide});
        assert_true(wide <= MOST_WIDE && !(m->desc.flags & MHA_TRANSFORMER_NO_OUTPUT));
        m->input.last_hidden = &hidden;
        small_model_run(context, m, NULL);
        for (int64_t step = 1; step <= rows; step += rows - 1) {
            memset(made, 0xFF, sizeof made);
            for (int64_t at = 0; at < rows; at += step) {
                const mha_tensor in = mha_tensor_contiguous(hidden_data + at * wide, MHA_F32, 2,
                                                            (const int64_t[]){step, wide}),
                                 out = mha_tensor_contiguous(made + at * m->width, MHA_F32, 2,
                                                             (const int64_t[]){step, m->width});
                expect_ok(mha_transformer_logits(context, m->t, &in, &out));
            }
            assert_memory_equal(made, m->output_data, (size_t)(rows * m->width) * sizeof *made);
            if (rows == 1) break;
        }
        small_model_free(m);
    }
}

static void misuse(void)
{
    mha_context *context = machines_context(1, 0);
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .vocab_size = 5,
                              .max_length = 4,
                              .embed_dim = 8,
                              .num_layers = 1,
                              .num_heads = 2};
    float x[16] = {0}, y[10];
    mha_transformer *t, *none;
    mha_tensor in = mha_tensor_contiguous(x, MHA_F32, 2, (const int64_t[]){2, 8}),
               out = mha_tensor_contiguous(y, MHA_F32, 2, (const int64_t[]){2, 5});
    expect_ok(mha_transformer_create(context, &d, &t));
    d.flags = MHA_TRANSFORMER_NO_OUTPUT;
    expect_ok(mha_transformer_create(context, &d, &none));
#define CALL mha_transformer_logits(context, t, &in, &out)
    expect_ok(CALL);
    expect_spoiled(in, CALL, MHA_ERR_SHAPE, "hidden", in.shape[1] = 7);
    expect_spoiled(in, CALL, MHA_ERR_SHAPE, "hidden", in.ndim = 3);
    expect_spoiled(in, CALL, MHA_ERR_SHAPE, "logits", in.shape[0] = 1);
    expect_spoiled(out, CALL, MHA_ERR_SHAPE, "logits", out.shape[1] = 6);
    expect_spoiled(out, CALL, MHA_ERR_DTYPE, "", out.dtype = MHA_F16);
    expect_spoiled(out, CALL, MHA_ERR_OVERLAP, "", out.data = x);
    expect_error(mha_transformer_logits(context, none, &in, &out), MHA_ERR_UNSUPPORTED,
                 "no logits");
    expect_error(mha_transformer_logits(NULL, t, &in, &out), MHA_ERR_NULL, "NULL");
    expect_error(mha_transformer_logits(context, t, NULL, &out), MHA_ERR_NULL, "NULL");
    expect_error(mha_transformer_logits(context, t, &in, NULL), MHA_ERR_NULL, "NULL");
    mha_transformer_destroy(t);
    mha_transformer_destroy(none);
}

RUN_TESTS(TEST(rows_are_those_of_a_forward_call), TEST(misuse))
