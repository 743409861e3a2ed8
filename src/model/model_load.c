/* Loading a model: a transformer and its tokenizer. */
#include "model/model.h"

#include "io/file.h"
#include "model/audio_stem.h"
#include "model/folder.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* ---- tokens -------------------------------------------------------------------------------- */

static mha_status check_count(const char *folder, int64_t count, int64_t vocab_size)
{
    if (count <= vocab_size) return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, folder,
                          "the tokenizer has %lld tokens, config.json's vocab_size is %lld; they "
                          "belong to different models",
                          (long long)count, (long long)vocab_size);
}

static mha_status check_vocabulary(const char *folder, const mha_model *model)
{
    mha_tokenizer_info info = {.struct_size = sizeof info};
    MHA_TRY(mha_tokenizer_describe(model->tokenizer, &info));
    return check_count(folder, info.vocab_size, model->info.vocab_size);
}

/* Load WordPiece, BPE, or whole words from mha_checkpoint_save(). */
static mha_status load_tokenizer(const char *folder, mha_model *model)
{
    mha_status status = mha_tokenizer_load(folder, NULL, &model->tokenizer);
    if (status == MHA_ERR_UNSUPPORTED) {
        status = mha_vocabulary_load(folder, &model->vocabulary);
        if (status == MHA_OK)
            return check_count(folder, mha_vocabulary_count(model->vocabulary),
                               model->info.vocab_size);
        if (status == MHA_ERR_UNSUPPORTED) /* both failed: the first error is more specific */
            status = mha_tokenizer_load(folder, NULL, &model->tokenizer);
    }
    MHA_TRY(status);
    return check_vocabulary(folder, model);
}

/* ---- transformers -------------------------------------------------------------------------- */

static void describe(const mhai_loaded *loaded, mha_model *model)
{
    mha_transformer_desc d;
    mha_transformer_describe(loaded->transformer, &d);
    model->info = (mha_model_info){.architecture = loaded->family->model_type,
                                   .layers = d.num_layers,
                                   .heads = d.num_heads,
                                   .kv_heads = d.kv_heads,
                                   .hidden_size = d.embed_dim,
                                   .head_dim = d.head_dim,
                                   .intermediate_size = d.ff_dim,
                                   .max_positions = d.max_length,
                                   .vocab_size = d.vocab_size,
                                   .type_vocab_size = loaded->types ? loaded->types : 1,
                                   .patch_rows = loaded->picture.rows,
                                   .patch_cols = loaded->picture.cols,
                                   .patch_size = loaded->picture.patch,
                                   .patch_first = loaded->picture.first,
                                   .parameters = mha_transformer_size(loaded->transformer)};
    model->transformer = loaded->transformer;
    model->towers = loaded->family->encoder;
    model->ends = loaded->ends;
    model->picture = loaded->picture;
    model->begins = loaded->begins;
    model->audio_stem = loaded->audio_stem;
}

/* Add the tokenizer's end token to those of the files. */
static mha_status add_end(mha_model *model)
{
    mha_tokenizer_info info = {.struct_size = sizeof info, .eos_id = -1};
    if (model->tokenizer) MHA_TRY(mha_tokenizer_describe(model->tokenizer, &info));
    if (model->vocabulary) info.eos_id = mha_vocabulary_end(model->vocabulary);
    return mhai_ends_add(&model->ends, info.eos_id, model->info.vocab_size);
}

/* Load a folder or a GGUF file. encoder: the encoder of a folder with two towers. */
static mha_status load_one(mha_context *context, const char *path, const mha_model_options *options,
                           bool encoder, mha_model *model)
{
    mhai_loaded loaded;
    const bool tokens = !(options->flags & MHA_MODEL_NO_TOKENIZER);
    MHA_TRY(mhai_model_load_part(context, path, options, encoder, tokens ? &model->tokenizer : NULL,
                                 &loaded));
    describe(&loaded, model);
    if (model->tokenizer)
        MHA_TRY(check_vocabulary(path, model));
    else if (tokens && !mhai_model_is_gguf(path) && model->picture.patch == 0)
        MHA_TRY(load_tokenizer(path, model));
    return add_end(model);
}

static bool is_cross(const mha_model *model)
{
    mha_transformer_desc d;
    mha_transformer_describe(model->transformer, &d);
    return d.flags & MHA_TRANSFORMER_CROSS;
}

static mha_status check_parts(const char *folder, const mha_model *decoder)
{
    mha_transformer_desc d, e;
    mha_transformer_describe(decoder->transformer, &d);
    mha_transformer_describe(decoder->encoder->transformer, &e);
    if (d.flags & MHA_TRANSFORMER_CROSS && !(e.flags & MHA_TRANSFORMER_CROSS) &&
        e.flags & MHA_TRANSFORMER_NO_OUTPUT && d.memory_dim == e.embed_dim &&
        d.vocab_size == e.vocab_size)
        return MHA_OK;
    if (!(d.flags & MHA_TRANSFORMER_CROSS) || e.flags & MHA_TRANSFORMER_CROSS ||
        !(e.flags & MHA_TRANSFORMER_NO_OUTPUT))
        return mhai_path_fail(MHA_ERR_MODEL, folder,
                              "encoder and decoder do not belong together: the encoder needs "
                              "no_output, the decoder cross_attention");
    return mhai_path_fail(MHA_ERR_MODEL, folder,
                          "encoder and decoder do not belong together: the decoder must attend to "
                          "rows as wide as the encoder's, of the same vocabulary");
}

static mha_status make_encoder(mha_model *model)
{
    const mha_allocator *a = &model->allocator;
    model->encoder = a->alloc(a->user, sizeof *model, _Alignof(mha_model));
    if (!model->encoder) return mha_fail(MHA_ERR_NOMEM, "model: cannot allocate an encoder");
    *model->encoder = (mha_model){.allocator = *a};
    return MHA_OK;
}

static mha_status join_parts(const char *folder, mha_model *model)
{
    MHA_TRY(check_parts(folder, model));
    const int64_t most = model->encoder->info.max_positions;
    if (most < model->info.max_positions) model->info.max_positions = most;
    return MHA_OK;
}

static mha_status load_parts(mha_context *context, const char *folder,
                             const mha_model_options *options, mha_model *model)
{
    char *encoder = mhai_model_join(folder, "encoder"),
         *decoder = mhai_model_join(folder, "decoder");
    mha_status status = encoder && decoder
                            ? make_encoder(model)
                            : mha_fail(MHA_ERR_NOMEM, "model: cannot allocate an encoder");
    if (status == MHA_OK) status = load_one(context, encoder, options, false, model->encoder);
    if (status == MHA_OK) status = load_one(context, decoder, options, false, model);
    free(decoder);
    free(encoder);
    MHA_TRY(status);
    model->info.architecture = "encoder-decoder";
    return join_parts(folder, model);
}

/* Load the encoder of a folder with two towers, which share a tokenizer. */
static mha_status load_tower(mha_context *context, const char *folder,
                             const mha_model_options *options, mha_model *model)
{
    mha_model_options own = *options;
    own.flags |= MHA_MODEL_NO_TOKENIZER;
    MHA_TRY(make_encoder(model));
    MHA_TRY(load_one(context, folder, &own, true, model->encoder));
    model->encoder->tokenizer = model->tokenizer;
    model->encoder->vocabulary = model->vocabulary;
    model->encoder->borrows = true;
    if (model->encoder->audio_stem) MHA_TRY(mhai_speech_read(folder, &model->info, &model->speech));
    return join_parts(folder, model);
}

/* encoder: only the encoder of a folder with two towers. */
static mha_status load(mha_context *context, const char *folder, const mha_model_options *options,
                       bool encoder, mha_model *model)
{
    if (encoder) return load_one(context, folder, options, true, model);
    if (mhai_model_has_encoder(folder)) return load_parts(context, folder, options, model);
    MHA_TRY(load_one(context, folder, options, false, model));
    if (model->towers) return load_tower(context, folder, options, model);
    if (!is_cross(model)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, folder,
                          "is the decoder of an encoder-decoder, which needs its encoder: give the "
                          "folder that holds both");
}

static mha_status check_options(const mha_model_options *own)
{
    if (own->flags & ~(uint32_t)(MHA_MODEL_NO_TOKENIZER | MHA_MODEL_ARRAY | MHA_MODEL_UNDIVIDED |
                                 MHA_MODEL_IMAGES) ||
        own->reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_model_options: flags 0x%x, reserved %u are unknown",
                        (unsigned)own->flags, (unsigned)own->reserved);
    if ((unsigned)own->compute > MHA_COMPUTE_TILES)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_model_options: compute is %d, expected one of mha_compute",
                        (int)own->compute);
    if (own->compute != MHA_COMPUTE_F32 && own->flags & MHA_MODEL_ARRAY)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_model_options: compute %s multiplies weights as they are stored, "
                        "MHA_MODEL_ARRAY has them as f32; choose one",
                        mha_compute_name(own->compute));
    if (own->transport && own->flags & MHA_MODEL_ARRAY)
        return mha_fail(
            MHA_ERR_ARGUMENT,
            "mha_model_options: over ranks weights stay in their files, MHA_MODEL_ARRAY "
            "copies them; choose one");
    return MHA_OK;
}

/* Check that all ranks have the same model. */
static mha_status agree(mha_context *context, const char *path, const mha_model_options *options,
                        mha_status status)
{
    const mha_transport *ranks = options->transport;
    mha_model_digests own = {0}, first = {0};
    if (!ranks || ranks->size == 1) return status;
    if (status == MHA_OK)
        status = mha_model_digest(context, path, options->flags & MHA_MODEL_NO_TOKENIZER, &own);
    MHA_TRY(mha_transport_agree(ranks, status));
    first = own;
    MHA_TRY(mha_transport_broadcast(ranks, 0, &first, sizeof first));
    const char *differs =
        first.configuration != own.configuration
            ? mhai_model_is_gguf(path) ? "another header" : "another configuration"
        : first.weights != own.weights     ? "other weights"
        : first.tokenizer != own.tokenizer ? "another tokenizer"
                                           : NULL;
    if (differs)
        status = mhai_path_fail(MHA_ERR_ARGUMENT, path,
                                "has %s than at rank 0; give all ranks the same files", differs);
    return mha_transport_agree(ranks, status);
}

/* ---- public -------------------------------------------------------------------------------- */

mha_status mha_model_load(mha_context *context, const char *folder,
                          const mha_model_options *options, mha_model **model)
{
    MHA_NEED("mha_model_load", context, folder, model);
    mha_model_options own;
    MHA_TRY(mha_struct_read("mha_model_options", &own, sizeof own,
                            offsetof(mha_model_options, compute), options,
                            options ? options->struct_size : 0));
    MHA_TRY(check_options(&own));
    mha_allocator allocator = mha_context_allocator(context);
    char *outer;
    MHA_TRY(mhai_model_outer(folder, &outer));
    mha_model *made = allocator.alloc(allocator.user, sizeof *made, _Alignof(mha_model));
    if (made) *made = (mha_model){.allocator = allocator};
    const char *path = outer ? outer : folder;
    const mha_status status =
        made ? agree(context, path, &own, load(context, path, &own, outer, made))
             : mha_fail(MHA_ERR_NOMEM, "model: cannot allocate %zu bytes", sizeof *made);
    free(outer);
    if (status == MHA_OK)
        *model = made;
    else
        mha_model_destroy(made);
    return status;
}

void mha_model_destroy(mha_model *model)
{
    if (!model) return;
    if (!model->borrows) {
        mha_vocabulary_destroy(model->vocabulary);
        mha_tokenizer_destroy(model->tokenizer);
    }
    mha_transformer_destroy(model->transformer);
    mha_model_destroy(model->encoder);
    free(model->ends.ids);
    free(model->begins.suppressed.ids);
    free(model->begins.first.ids);
    mhai_speech_free(&model->speech);
    mhai_audio_stem_destroy(model->audio_stem);
    mha_allocator allocator = model->allocator;
    allocator.release(allocator.user, model, sizeof *model);
}

mha_status mha_model_describe(const mha_model *model, mha_model_info *info)
{
    MHA_NEED("mha_model_describe", model, info);
    uint32_t size = info->struct_size;
    MHA_TRY(mha_struct_check_size("mha_model_info", size, sizeof *info));
    memset(info, 0, size); /* clears fields that only a newer caller knows */
    *info = model->info;
    info->struct_size = size;
    return MHA_OK;
}

const mha_tokenizer *mha_model_tokenizer(const mha_model *model)
{
    return model ? model->tokenizer : NULL;
}

const mha_vocabulary *mha_model_vocabulary(const mha_model *model)
{
    return model ? model->vocabulary : NULL;
}

int64_t mha_model_end_tokens(const mha_model *model, const int32_t **ids)
{
    if (ids) *ids = model ? model->ends.ids : NULL;
    return model ? model->ends.count : 0;
}

int64_t mha_model_start_tokens(const mha_model *model, const int32_t **ids)
{
    if (ids) *ids = model ? model->begins.ids : NULL;
    return model ? model->begins.count : 0;
}

int64_t mha_model_suppressed_tokens(const mha_model *model, bool first, const int32_t **ids)
{
    static const mhai_ends none;
    const mhai_ends *found = !model  ? &none
                             : first ? &model->begins.first
                                     : &model->begins.suppressed;
    if (ids) *ids = found->ids;
    return found->count;
}

mha_transformer *mha_model_transformer(mha_model *model)
{
    return model ? model->transformer : NULL;
}

mha_model *mha_model_encoder(mha_model *model)
{
    return model ? model->encoder : NULL;
}
