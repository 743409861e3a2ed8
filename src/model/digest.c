/* Digests of model files. Each piece of a file is hashed with the rounds of XXH64 (Collet 2014),
 * seeded with its offset. The hashes are summed, so that threads can hash pieces in any order. */
#include "io/file.h"
#include "io/gguf_split.h"
#include "model/folder.h"
#include "model/model_weights.h"
#include "tokenizer/tokenizer_folder.h"

#include <multihead/component.h>
#include <multihead/model.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 18, STRIPE = 32 };

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t turn(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t word(const unsigned char *at)
{
    uint64_t x;
    memcpy(&x, at, sizeof x); /* little-endian, as file.h requires */
    return x;
}

static uint64_t mix(uint64_t sum, uint64_t x)
{
    return turn(sum + x * P2, 31) * P1;
}

static uint64_t hash(uint64_t seed, const unsigned char *at, size_t count)
{
    const unsigned char *end = at + count;
    uint64_t sum = seed + P5, lane[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
    for (; end - at >= STRIPE; at += STRIPE)
        for (int i = 0; i < 4; i++) lane[i] = mix(lane[i], word(at + 8 * i));
    if (count >= STRIPE) {
        sum = turn(lane[0], 1) + turn(lane[1], 7) + turn(lane[2], 12) + turn(lane[3], 18);
        for (int i = 0; i < 4; i++) sum = (sum ^ mix(0, lane[i])) * P1 + P4;
    }
    sum += count;
    for (; end - at >= 8; at += 8) sum = turn(sum ^ mix(0, word(at)), 27) * P1 + P4;
    for (; at < end; at++) sum = turn(sum ^ *at * P5, 11) * P1;
    sum = (sum ^ sum >> 33) * P2;
    sum = (sum ^ sum >> 29) * P3;
    return sum ^ sum >> 32;
}

typedef struct job {
    int file;
    size_t begin, end;
    unsigned char *rooms; /* [threads][PIECE] */
    _Atomic uint64_t sum;
    atomic_int error; /* an errno; EIO if the file was truncated */
} job;

static void add_piece(void *argument, int64_t item, int worker)
{
    job *j = argument;
    const size_t at = j->begin + (size_t)item * PIECE;
    const size_t count = j->end - at < PIECE ? j->end - at : PIECE;
    unsigned char *room = j->rooms + (size_t)worker * PIECE;
    for (size_t have = 0; have < count;) {
        const ssize_t got = pread(j->file, room + have, count - have, (off_t)(at + have));
        if (got <= 0) {
            if (got < 0 && errno == EINTR) continue;
            j->error = got < 0 ? errno : EIO;
            return;
        }
        have += (size_t)got;
    }
    j->sum += hash((uint64_t)item, room, count);
}

/* Hash bytes begin .. end - 1, or up to the end of the file. */
static mha_status add_file(mha_context *context, const char *path, size_t begin, size_t end,
                           uint64_t *digest)
{
    job j = {.begin = begin, .sum = *digest * P3};
    size_t size = 0;
    void *rooms = NULL;
    MHA_TRY(mhai_file_open(path, &j.file, &size));
    j.end = end < size ? end : size;
    if (j.begin > j.end) j.begin = j.end;
    const mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = mha_scratch_alloc(context, mha_context_threads(context), PIECE, &rooms);
    if (status == MHA_OK) {
        j.rooms = rooms;
        mha_parallel_for(context, (int64_t)((j.end - j.begin + PIECE - 1) / PIECE), add_piece, &j);
        if (j.error)
            status = mhai_path_fail(MHA_ERR_FILE, path, "cannot read: %s", strerror(j.error));
    }
    mha_scratch_release(context, mark);
    close(j.file);
    *digest = j.sum + 1;
    return status;
}

/* Hash those files of a list that exist. */
static mha_status add_files(mha_context *context, const char *folder, const char *const *names,
                            uint64_t *digest)
{
    for (; *names; names++) {
        *digest = turn(*digest, 9) + P5; /* also hash the name */
        if (!mhai_model_holds(folder, *names)) continue;
        char *path = mhai_model_join(folder, *names);
        if (!path) return mhai_path_fail(MHA_ERR_NOMEM, folder, "cannot allocate names");
        const mha_status status = add_file(context, path, 0, SIZE_MAX, digest);
        free(path);
        MHA_TRY(status);
    }
    return MHA_OK;
}

static mha_status add_gguf(mha_context *context, const char *path, mha_model_digests *digests)
{
    mha_gguf *file = NULL;
    mha_status status = MHA_OK;
    MHA_TRY(mha_gguf_open(path, &file));
    for (int64_t i = 0; i < mhai_gguf_parts(file) && status == MHA_OK; i++) {
        const size_t header = mhai_gguf_part_header(file, i);
        char *part = mhai_gguf_part_path(file, path, i);
        status = part ? add_file(context, part, 0, header, &digests->configuration)
                      : mhai_path_fail(MHA_ERR_NOMEM, path, "cannot allocate names");
        if (status == MHA_OK) status = add_file(context, part, header, SIZE_MAX, &digests->weights);
        free(part);
    }
    mha_gguf_close(file);
    return status;
}

static mha_status add_weights(mha_context *context, const char *folder, uint64_t *digest)
{
    mhai_weights weights;
    mha_status status = mhai_weights_open(folder, &weights);
    for (int64_t i = 0; i < weights.shards && status == MHA_OK; i++)
        status = add_file(context, weights.shard[i].path, 0, SIZE_MAX, digest);
    mhai_weights_close(&weights);
    return status;
}

/* Hash a folder without parts, or a GGUF file. */
static mha_status add_part(mha_context *context, const char *path, bool tokens,
                           mha_model_digests *digests)
{
    if (mhai_model_is_gguf(path)) return add_gguf(context, path, digests);
    MHA_TRY(add_files(context, path, mhai_configuration_files, &digests->configuration));
    MHA_TRY(add_files(context, path, mhai_image_files, &digests->configuration));
    MHA_TRY(add_weights(context, path, &digests->weights));
    return tokens ? add_files(context, path, mhai_tokenizer_files, &digests->tokenizer) : MHA_OK;
}

mha_status mha_model_digest(mha_context *context, const char *folder, uint32_t flags,
                            mha_model_digests *digests)
{
    const bool tokens = !(flags & MHA_MODEL_NO_TOKENIZER);
    mha_model_digests found = {0};
    mha_status status = MHA_OK;
    MHA_NEED("mha_model_digest", context, folder, digests);
    if (flags & ~(uint32_t)MHA_MODEL_NO_TOKENIZER)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_model_digest: flags has unknown bits");
    const bool parts = mhai_model_has_encoder(folder);
    for (int i = 0; i < 2 && parts && status == MHA_OK; i++) {
        char *part = mhai_model_join(folder, i ? "decoder" : "encoder");
        status = part ? add_part(context, part, tokens, &found)
                      : mha_fail(MHA_ERR_NOMEM, "model: cannot allocate names");
        free(part);
    }
    if (!parts) status = add_part(context, folder, tokens, &found);
    if (status == MHA_OK) *digests = found;
    return status;
}
