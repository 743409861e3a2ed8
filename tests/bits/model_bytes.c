/* Writes a model's results for a text as bytes, for comparison between machines: the input of its output layer, the
 * logits of each token if it has any, and the most likely next tokens. Prints the seconds of both parts on stderr.
 *
 *   model_bytes MODEL TEXT COUNT FILE */
#include <multihead/sampling.h>
#include <multihead/study.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static FILE *numbers;

static void stop_if(mha_status status)
{
    if (!status) return;
    fprintf(stderr, "model_bytes: %s: %s\n", mha_status_text(status), mha_error_detail());
    exit(1);
}

static float *floats(int64_t count)
{
    float *x = calloc((size_t)count, sizeof *x);
    if (!x) stop_if(MHA_ERR_NOMEM);
    return x;
}

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* Only the last token's logits are kept. */
static void run_forward(mha_context *context, const mha_transformer *net, const mha_tokens *tokens,
                        const mha_transformer_desc *desc, float *logits)
{
    const int64_t t = tokens->count, e = desc->embed_dim, v = desc->vocab_size;
    float *last = floats(t * e);
    const mha_tensor ids = mha_tensor_contiguous(tokens->ids, MHA_I32, 2, (int64_t[]){1, t});
    const mha_tensor types = mha_tensor_contiguous(tokens->types, MHA_I32, 2, (int64_t[]){1, t});
    const mha_tensor hidden = mha_tensor_contiguous(last, MHA_F32, 3, (int64_t[]){1, t, e});
    const mha_transformer_input input = {.struct_size = sizeof input,
                                         .tokens = &ids,
                                         .token_types = desc->type_count ? &types : NULL,
                                         .last_hidden = &hidden};
    const double start = seconds();
    stop_if(mha_transformer_forward(context, net, &input, NULL, NULL, NULL, NULL));
    fprintf(stderr, "%d tokens: %.3f s\n", (int)t, seconds() - start);
    fwrite(last, sizeof *last, (size_t)(t * e), numbers);
    for (int64_t i = 0; logits && i < t; i++) {
        const mha_tensor row = mha_tensor_contiguous(last + i * e, MHA_F32, 2, (int64_t[]){1, e});
        const mha_tensor out = mha_tensor_contiguous(logits, MHA_F32, 2, (int64_t[]){1, v});
        stop_if(mha_transformer_logits(context, net, &row, &out));
        fwrite(logits, sizeof *logits, (size_t)v, numbers);
    }
    free(last);
}

static void run_greedy(mha_context *context, const mha_transformer *net, const mha_tokens *tokens,
                       const mha_transformer_desc *model, float *logits, int64_t count)
{
    const int64_t vocabulary = model->vocab_size, room = model->max_length - tokens->count;
    if (count > room) count = room;
    const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                   .batch = 1,
                                   .capacity = tokens->count + count,
                                   .max_step = tokens->count};
    mha_decoder *decoder;
    stop_if(mha_decoder_create(context, net, &desc, &decoder));
    const double start = seconds();
    const int64_t before = tokens->count - 1;
    const mha_tensor prompt =
        mha_tensor_contiguous(tokens->ids, MHA_I32, 2, (int64_t[]){1, before});
    if (before > 0) stop_if(mha_decoder_step(context, decoder, &prompt, NULL));
    int32_t id = tokens->ids[before];
    for (int64_t i = 0; i < count; i++) {
        const mha_tensor in = mha_tensor_contiguous(&id, MHA_I32, 2, (int64_t[]){1, 1});
        const mha_tensor out =
            mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, 1, vocabulary});
        stop_if(mha_decoder_step(context, decoder, &in, &out));
        stop_if(mha_sample_token(context, NULL, 0, logits, vocabulary, &id));
        fwrite(&id, sizeof id, 1, numbers);
    }
    fprintf(stderr, "%d more tokens: %.3f s\n", (int)count, seconds() - start);
    mha_decoder_destroy(decoder);
}

int main(int count, char **arguments)
{
    mha_context *context = NULL;
    mha_model *model = NULL;
    mha_tokens tokens = MHA_INIT(mha_tokens);
    if (count != 5) return 2;
    numbers = fopen(arguments[4], "wb");
    if (!numbers) return 2;
    const mha_context_desc one = {.struct_size = sizeof one, .num_threads = 1};
    stop_if(mha_context_create(&one, &context));
    stop_if(mha_model_load(context, arguments[1], NULL, &model));
    stop_if(mha_tokens_read(model, NULL, arguments[2], strlen(arguments[2]), NULL, 0, &tokens));
    const mha_transformer *net = mha_model_transformer(model);
    mha_transformer_desc desc = MHA_INIT(mha_transformer_desc);
    mha_transformer_describe(net, &desc);
    const bool predicts =
        desc.flags & MHA_TRANSFORMER_CAUSAL && !(desc.flags & MHA_TRANSFORMER_NO_OUTPUT);
    float *logits = predicts ? floats(desc.vocab_size) : NULL;
    run_forward(context, net, &tokens, &desc, logits);
    if (predicts) run_greedy(context, net, &tokens, &desc, logits, atoi(arguments[3]));
    free(logits);
    mha_tokens_free(&tokens);
    mha_model_destroy(model);
    mha_context_destroy(context);
    return fclose(numbers) ? 1 : 0;
}
