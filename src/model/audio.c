/* Wav files, and the log-mel features of their samples (audio.h). */
#include "io/file.h"

#include <multihead/audio.h>
#include <multihead/io.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- wav files ------------------------------------------------------------------------------- */

static const size_t most_wav_bytes = 1u << 30;

#define CONVERT "sox FILE -r 16000 -c 1 -b 16 -e signed-integer NEW.wav"

/* The format of the samples: the chunk "fmt ". */
typedef struct wave {
    const unsigned char *data; /* the chunk "data"; NULL: not found */
    size_t bytes;
    unsigned encoding, channels, rate, bits; /* encoding 1: PCM, 3: floats */
    bool formatted;
} wave;

static unsigned number(const unsigned char *at, int bytes)
{
    unsigned x = 0;
    for (int i = bytes; i-- > 0;) x = x << 8 | at[i];
    return x;
}

static mha_status read_format(const char *path, const unsigned char *at, size_t bytes, wave *w)
{
    if (bytes < 16)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "its chunk 'fmt ' has %zu bytes, expected at least 16", bytes);
    w->formatted = true;
    w->encoding = number(at, 2);
    w->channels = number(at + 2, 2);
    w->rate = number(at + 4, 4);
    w->bits = number(at + 14, 2);
    if (w->encoding == 0xFFFE && bytes >= 26) w->encoding = number(at + 24, 2); /* extensible */
    return MHA_OK;
}

/* Chunks have a name, a size and an even number of bytes. A data chunk of a stream may state a size
 * beyond the file. */
static mha_status read_chunks(const char *path, const unsigned char *at, size_t size, wave *w)
{
    if (size < 12 || memcmp(at, "RIFF", 4) != 0 || memcmp(at + 8, "WAVE", 4) != 0)
        return mhai_path_fail(MHA_ERR_FORMAT, path,
                              "is not a wav file (RIFF, WAVE); convert it: " CONVERT);
    for (size_t i = 12; size - i >= 8 && !w->data;) {
        const size_t stated = number(at + i + 4, 4), left = size - i - 8;
        const size_t bytes = stated < left ? stated : left;
        if (memcmp(at + i, "fmt ", 4) == 0) MHA_TRY(read_format(path, at + i + 8, bytes, w));
        if (memcmp(at + i, "data", 4) == 0) w->data = at + i + 8, w->bytes = bytes;
        i += 8 + bytes + (bytes < left ? bytes % 2 : 0);
    }
    if (!w->formatted || !w->data)
        return mhai_path_fail(MHA_ERR_FORMAT, path, "has no chunk '%s' before its end",
                              w->formatted ? "data" : "fmt ");
    return MHA_OK;
}

static mha_status check_wave(const char *path, const wave *w)
{
    const bool whole = w->encoding == 1 && (w->bits == 16 || w->bits == 24 || w->bits == 32);
    if (w->channels != 1)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                              "has %u channels, expected 1; convert it: " CONVERT, w->channels);
    if (w->rate != MHA_AUDIO_RATE)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                              "has %u samples per second, expected 16000; convert it: " CONVERT,
                              w->rate);
    if (whole || (w->encoding == 3 && w->bits == 32)) return MHA_OK;
    return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                          "has samples of encoding %u with %u bits; expected PCM of 16, 24 or 32 "
                          "bits, or floats of 32; convert it: " CONVERT,
                          w->encoding, w->bits);
}

static float sample_at(const wave *w, int64_t i)
{
    const int bytes = (int)w->bits / 8;
    const uint32_t x = number(w->data + i * bytes, bytes) << (32 - w->bits);
    float real;
    memcpy(&real, &x, sizeof real);
    if (w->encoding == 3) return real;
    const double full = x < 0x80000000u ? (double)x : (double)x - 4294967296.0;
    return (float)(full / 2147483648.0);
}

mha_status mha_audio_read(const char *path, mha_audio *audio)
{
    char *bytes = NULL;
    size_t size = 0;
    wave w = {0};
    MHA_NEED("mha_audio_read", path, audio);
    MHA_TRY(mha_struct_check_size("mha_audio", audio->struct_size, sizeof *audio));
    MHA_TRY(mha_file_read(path, most_wav_bytes, &bytes, &size));
    mha_audio made = {.struct_size = sizeof made};
    mha_status status = read_chunks(path, (const unsigned char *)bytes, size, &w);
    if (status == MHA_OK) status = check_wave(path, &w);
    if (status == MHA_OK) {
        made.count = (int64_t)(w.bytes / (w.bits / 8));
        status = MHA_ROOM_ALLOC(&made.memory, made.count + 1, &made.samples);
    }
    for (int64_t i = 0; i < made.count && status == MHA_OK; i++) {
        made.samples[i] = sample_at(&w, i);
        if (!isfinite(made.samples[i]))
            status = mhai_path_fail(MHA_ERR_FORMAT, path, "sample %" PRId64 " is not finite", i);
    }
    mha_file_free(bytes);
    if (status == MHA_OK)
        *audio = made;
    else
        mha_room_release(&made.memory, 0);
    return status;
}

void mha_audio_free(mha_audio *audio)
{
    if (!audio) return;
    mha_room_release(&audio->memory, 0);
    *audio = (mha_audio){.struct_size = audio->struct_size};
}

/* ---- features -------------------------------------------------------------------------------- */

enum { WINDOW = 400, BINS = WINDOW / 2 + 1, MOST_MELS = 256 };

/* Slaney's mel scale: linear below 1 kHz, then logarithmic. */
static double mel_of(double hertz)
{
    return hertz < 1000 ? 3 * hertz / 200 : 15 + 27 * mha_log(hertz / 1000) / mha_log(6.4);
}

static double hertz_of(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * mha_exp((mel - 15) * mha_log(6.4) / 27);
}

/* Filter m is a triangle over the bins, divided by its width. */
static void make_filters(int64_t mels, double *filters)
{
    const double last = mel_of(8000);
    for (int64_t m = 0; m < mels; m++) {
        double at[3];
        for (int i = 0; i < 3; i++) at[i] = hertz_of(last * (double)(m + i) / (double)(mels + 1));
        for (int64_t k = 0; k < BINS; k++) {
            const double hertz = 40 * (double)k; /* 16000 / 400 */
            const double up = (hertz - at[0]) / (at[1] - at[0]),
                         down = (at[2] - hertz) / (at[2] - at[1]);
            const double height = up < down ? up : down;
            filters[m * BINS + k] = height > 0 ? 2 * height / (at[2] - at[0]) : 0;
        }
    }
}

typedef struct mel_job {
    const float *samples;
    int64_t count, length; /* given, and with silence */
    int64_t mels, frames;
    double cosines[WINDOW], window[WINDOW];
    const double *filters; /* [mels,BINS] */
    double *logs;          /* [mels,frames] */
} mel_job;

/* Sample i, reflected at both ends and 0 after the last given one. */
static double padded(const mel_job *job, int64_t i)
{
    if (i < 0) i = -i;
    if (i >= job->length) i = 2 * (job->length - 1) - i;
    return i < job->count ? (double)job->samples[i] : 0;
}

/* Samples n and 400 - n have equal cosines and opposite sines. */
static void mel_frame(void *argument, int64_t frame, int worker)
{
    const mel_job *job = argument;
    double x[WINDOW], even[BINS], odd[BINS], power[BINS];
    (void)worker;
    for (int n = 0; n < WINDOW; n++)
        x[n] = job->window[n] * padded(job, frame * MHA_AUDIO_HOP + n - WINDOW / 2);
    for (int n = 1; n < BINS; n++) {
        even[n] = n < BINS - 1 ? x[n] + x[WINDOW - n] : x[n];
        odd[n] = n < BINS - 1 ? x[n] - x[WINDOW - n] : 0;
    }
    for (int k = 0; k < BINS; k++) {
        double re = x[0], im = 0;
        for (int n = 1, at = k; n < BINS; n++) {
            const int turned = at < WINDOW / 4 ? at + WINDOW * 3 / 4 : at - WINDOW / 4;
            re += even[n] * job->cosines[at];
            im += odd[n] * job->cosines[turned]; /* sin a = cos(a - pi/2) */
            at = at + k < WINDOW ? at + k : at + k - WINDOW;
        }
        power[k] = re * re + im * im;
    }
    for (int64_t m = 0; m < job->mels; m++) {
        double sum = 0;
        for (int k = 0; k < BINS; k++) sum += job->filters[m * BINS + k] * power[k];
        job->logs[m * job->frames + frame] = mha_log(sum > 1e-10 ? sum : 1e-10) / mha_log(10);
    }
}

static mha_status check_features(const float *samples, int64_t count, const mha_tensor *features)
{
    if (features->dtype != MHA_F32)
        return mha_fail(MHA_ERR_DTYPE, "features: dtype is %s, expected f32",
                        mha_dtype_name(features->dtype));
    if (features->ndim != 2 || features->shape[0] < 1 || features->shape[0] > MOST_MELS ||
        features->shape[1] < 2 || features->shape[1] > INT32_MAX)
        return mha_fail(MHA_ERR_SHAPE,
                        "features: expected [bins,frames], 1 to %d bins and 2 or more frames",
                        MOST_MELS);
    if (features->stride[1] != 1 || features->stride[0] != features->shape[1])
        return mha_fail(MHA_ERR_STRIDE, "features: must be contiguous");
    if (count < 0 || count > features->shape[1] * MHA_AUDIO_HOP)
        return mha_fail(MHA_ERR_SIZE,
                        "%lld samples, expected at most %lld (%.3g s): shorten the audio",
                        (long long)count, (long long)(features->shape[1] * MHA_AUDIO_HOP),
                        (double)features->shape[1] / 100);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(samples[i]))
            return mha_fail(MHA_ERR_NUMERIC, "samples[%lld] is not finite", (long long)i);
    return MHA_OK;
}

static mha_status run_mel(mha_context *context, mel_job *job, float *to)
{
    const int64_t all = job->mels * job->frames;
    double *filters, highest = -1e300;
    MHA_TRY(mha_scratch_alloc(context, job->mels * BINS, sizeof *filters, &filters));
    MHA_TRY(mha_scratch_alloc(context, all, sizeof *job->logs, &job->logs));
    make_filters(job->mels, filters);
    job->filters = filters;
    for (int n = 0; n < WINDOW; n++) {
        job->cosines[n] = mha_cos_turns((double)n / WINDOW);
        job->window[n] = 0.5 - 0.5 * job->cosines[n];
    }
    mha_parallel_for(context, job->frames, mel_frame, job);
    for (int64_t i = 0; i < all; i++)
        if (job->logs[i] > highest) highest = job->logs[i];
    for (int64_t i = 0; i < all; i++) {
        const double x = job->logs[i] > highest - 8 ? job->logs[i] : highest - 8;
        to[i] = (float)((x + 4) / 4);
    }
    return MHA_OK;
}

mha_status mha_log_mel(mha_context *context, const float *samples, int64_t count,
                       const mha_tensor *features)
{
    MHA_NEED_AS("mha_log_mel", "context, samples, features", context, samples || count == 0,
                features && features->data);
    MHA_TRY(check_features(samples, count, features));
    mel_job job = {.samples = samples,
                   .count = count,
                   .length = features->shape[1] * MHA_AUDIO_HOP,
                   .mels = features->shape[0],
                   .frames = features->shape[1]};
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run_mel(context, &job, features->data));
}
