/* A wav file. Accepted samples are finite, from -1 to 1 if they are whole numbers, and have features. */
#include "fuzz.h"

#include <multihead/audio.h>

#include <math.h>

FUZZ_MUTATOR("n")

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { BINS = 3, FRAMES = 20 };
    char path[FUZZ_PATH_BYTES];
    float mel[BINS * FRAMES];
    mha_audio audio = {.struct_size = sizeof audio};
    mha_context *context = fuzz_context(1, 0);
    const mha_tensor features = mha_tensor_contiguous(mel, MHA_F32, 2, (int64_t[]){BINS, FRAMES});
    fuzz_write("in.wav", (fuzz_part){data, size});
    fuzz_path("in.wav", path);
    mha_status status = mha_audio_read(path, &audio);
    fuzz_must_speak(status);
    if (status != MHA_OK) return 0;
    fuzz_must(audio.count <= (int64_t)size, "more samples than bytes");
    for (int64_t i = 0; i < audio.count; i++)
        fuzz_must(isfinite(audio.samples[i]), "a sample that is not finite");
    status = mha_log_mel(context, audio.samples, audio.count, &features);
    fuzz_must_speak(status);
    for (int i = 0; i < BINS * FRAMES && status == MHA_OK; i++)
        fuzz_must(isfinite(mel[i]), "a feature that is not finite");
    mha_audio_free(&audio);
    return 0;
}
