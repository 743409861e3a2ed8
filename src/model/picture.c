/* See picture.h. */
#include "model/picture.h"

#include "io/file.h"
#include "io/json_file.h"
#include "model/arch/family.h"
#include "model/folder.h"
#include "model/model.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

static const size_t most_config_bytes = 1u << 20;

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Read a size: a number, or an object with height and width, or one with shortest_edge. */
static mha_status read_size(const mhai_config *config, const char *key, bool edge, int64_t *height,
                            int64_t *width, int64_t *shortest)
{
    const json_t *value = json_object_get(config->root, key);
    const mhai_config own = {config->path, value};
    if (mhai_config_absent(config, key)) return MHA_OK;
    *height = *width = *shortest = 0;
    if (json_is_integer(value) && edge)
        return mhai_config_count(config, key, 1, MHA_IMAGE_MOST_EDGE, shortest);
    if (json_is_integer(value)) {
        MHA_TRY(mhai_config_count(config, key, 1, MHA_IMAGE_MOST_EDGE, height));
        *width = *height;
        return MHA_OK;
    }
    if (!json_is_object(value))
        return mhai_config_fail(MHA_ERR_MODEL, config, key,
                                "is neither a number nor an object with height and width");
    if (edge && !mhai_config_absent(&own, "shortest_edge"))
        return json_object_size(value) == 1
                   ? mhai_config_count(&own, "shortest_edge", 1, MHA_IMAGE_MOST_EDGE, shortest)
                   : mhai_config_fail(MHA_ERR_UNSUPPORTED, config, key,
                                      "has more fields than shortest_edge");
    MHA_TRY(mhai_config_count(&own, "height", 1, MHA_IMAGE_MOST_EDGE, height));
    return mhai_config_count(&own, "width", 1, MHA_IMAGE_MOST_EDGE, width);
}

static mha_status read_sizes(const mhai_config *config, mhai_processor *p)
{
    bool resizes, crops;
    int64_t unused = 0;
    p->crop_height = p->crop_width = 224;
    p->shortest = p->edges ? 224 : 0;
    p->height = p->width = 224;
    MHA_TRY(mhai_config_bool(config, "do_resize", true, &resizes));
    MHA_TRY(mhai_config_bool(config, "do_center_crop", p->crops, &crops));
    if (resizes) {
        bool edge = p->edges;
        const json_t *size = json_object_get(config->root, "size");
        if (json_is_object(size) && json_object_get(size, "shortest_edge")) edge = true;
        MHA_TRY(read_size(config, "size", edge, &p->height, &p->width, &p->shortest));
        if (p->shortest) p->height = p->width = 0;
    } else {
        p->height = p->width = p->shortest = 0;
    }
    if (!crops) p->crop_height = p->crop_width = 0;
    if (crops)
        MHA_TRY(read_size(config, "crop_size", false, &p->crop_height, &p->crop_width, &unused));
    if (p->crop_height || p->height) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, crops ? "crop_size" : "size",
                            "gives images of any size; one size is required: height and width, or "
                            "do_center_crop with crop_size");
}

/* ---- numbers --------------------------------------------------------------------------------- */

static mha_status read_three(const mhai_config *config, const char *key, bool divisor,
                             double numbers[3])
{
    const json_t *list = json_object_get(config->root, key);
    if (mhai_config_absent(config, key)) return MHA_OK;
    bool good = json_is_array(list) && json_array_size(list) == 3;
    for (size_t i = 0; good && i < 3; i++) {
        const json_t *value = json_array_get(list, i);
        numbers[i] = json_number_value(value);
        good = json_is_number(value) && numbers[i] > -1e6 && numbers[i] < 1e6 &&
               (!divisor || numbers[i] >= 1e-6);
    }
    if (good) return MHA_OK;
    return mhai_config_fail(MHA_ERR_MODEL, config, key, "is not a list of three numbers%s",
                            divisor ? " of 1e-6 or more" : "");
}

static mha_status read_numbers(const mhai_config *config, mhai_processor *p)
{
    bool rescales, normalises;
    MHA_TRY(mhai_config_bool(config, "do_rescale", true, &rescales));
    MHA_TRY(mhai_config_bool(config, "do_normalize", true, &normalises));
    MHA_TRY(mhai_config_number(config, "rescale_factor", p->factor, &p->factor));
    MHA_TRY(read_three(config, "image_mean", false, p->mean));
    MHA_TRY(read_three(config, "image_std", true, p->std));
    if (!rescales) p->factor = 1;
    for (int c = 0; c < 3 && !normalises; c++) p->mean[c] = 0, p->std[c] = 1;
    return MHA_OK;
}

static mha_status read_filter(const mhai_config *config, mhai_processor *p)
{
    int64_t resample;
    const int64_t usual = p->filter == MHAI_BICUBIC ? 3 : 2;
    MHA_TRY(mhai_config_optional(config, "resample", 0, 5, usual, &resample));
    p->filter = resample == 3 ? MHAI_BICUBIC : MHAI_BILINEAR;
    if (resample == 2 || resample == 3) return MHA_OK;
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, "resample",
                            "is %lld, only 2 (bilinear) and 3 (bicubic) are supported",
                            (long long)resample);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The defaults of a processor in transformers. */
static const struct {
    const char *name;
    bool edges, crops, floats;
    mhai_filter filter;
    const double *mean, *std; /* NULL: 0.5 */
} kinds[] = {{"ViT", .filter = MHAI_BILINEAR},
             {"DeiT", .crops = true, .filter = MHAI_BICUBIC},
             {"CLIP", true, true, false, MHAI_BICUBIC, mhai_clip_mean, mhai_clip_std},
             {"Bit", true, true, false, MHAI_BICUBIC, mhai_clip_mean, mhai_clip_std},
             {"Siglip", .filter = MHAI_BICUBIC},
             {"DINOv3ViT", .floats = true, .mean = mhai_imagenet_mean, .std = mhai_imagenet_std}};

/* Set the defaults of the processor that the file names; without a name, those of the family remain. */
static mha_status read_type(const mhai_config *config, mhai_processor *p)
{
    const char *key = mhai_config_absent(config, "image_processor_type") ? "feature_extractor_type"
                                                                         : "image_processor_type";
    const char *type;
    MHA_TRY(mhai_config_text(config, key, "", &type));
    if (!*type) return MHA_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t length = strlen(kinds[i].name);
        if (strncmp(type, kinds[i].name, length) != 0 ||
            (strncmp(type + length, "Image", 5) != 0 && strncmp(type + length, "Feature", 7) != 0))
            continue;
        p->edges = kinds[i].edges;
        p->crops = kinds[i].crops;
        p->floats = kinds[i].floats;
        p->filter = kinds[i].filter;
        for (int c = 0; c < 3; c++) {
            p->mean[c] = kinds[i].mean ? kinds[i].mean[c] : 0.5;
            p->std[c] = kinds[i].std ? kinds[i].std[c] : 0.5;
        }
        return MHA_OK;
    }
    return mhai_config_fail(MHA_ERR_UNSUPPORTED, config, key,
                            "is '%s'; known: ViT, DeiT, CLIP, Bit, Siglip, DINOv3ViT",
                            mhai_show_name(type).text);
}

static mha_status read_file(const mhai_config *config, mhai_processor *p)
{
    static const char *const refused[] = {"do_pad", "do_flip_channel_order", "do_reduce_labels",
                                          NULL};
    if (!json_is_object(config->root))
        return mhai_path_fail(MHA_ERR_MODEL, config->path, "is not a JSON object");
    MHA_TRY(mhai_config_refuse(config, refused));
    MHA_TRY(read_type(config, p));
    MHA_TRY(read_sizes(config, p));
    MHA_TRY(read_filter(config, p));
    return read_numbers(config, p);
}

static mha_status check_result(const char *path, mhai_picture *picture)
{
    const mhai_processor *p = &picture->processor;
    const int64_t height = p->crop_height ? p->crop_height : p->height;
    const int64_t width = p->crop_height ? p->crop_width : p->width;
    picture->rows = height / picture->patch;
    picture->cols = width / picture->patch;
    if ((height != picture->image || width != picture->image) && picture->sizes == MHAI_FIXED)
        return mhai_path_fail(MHA_ERR_UNSUPPORTED, path,
                              "gives images of %lld x %lld pixels, but the model has positions for "
                              "image_size %lld of config.json",
                              (long long)height, (long long)width, (long long)picture->image);
    if (picture->rows >= 1 && picture->cols >= 1 && picture->rows <= 1024 && picture->cols <= 1024)
        return MHA_OK;
    return mhai_path_fail(MHA_ERR_MODEL, path,
                          "gives %lld x %lld patches, expected 1..1024 in each direction",
                          (long long)picture->rows, (long long)picture->cols);
}

mha_status mhai_picture_read(const char *folder, mhai_picture *picture)
{
    json_t *root = NULL;
    if (!mhai_model_holds(folder, "preprocessor_config.json")) return MHA_OK;
    char *path = mhai_model_join(folder, "preprocessor_config.json");
    if (!path) return MHA_NO_MEMORY("model");
    mha_status status = mhai_json_read(path, most_config_bytes, &root);
    if (status == MHA_OK) status = read_file(&(mhai_config){path, root}, &picture->processor);
    if (status == MHA_OK) status = check_result(path, picture);
    json_decref(root);
    free(path);
    return status;
}

/* ---- images ---------------------------------------------------------------------------------- */

/* The size of the resized image. Pillow's callers truncate the longer edge. */
static void resized(const mhai_processor *p, const mha_image *image, int64_t *height,
                    int64_t *width)
{
    const int64_t h = image->height, w = image->width;
    *height = p->height ? p->height : h;
    *width = p->width ? p->width : w;
    if (!p->shortest) return;
    *height = h < w ? p->shortest : (int64_t)((double)(p->shortest * h) / (double)w);
    *width = h < w ? (int64_t)((double)(p->shortest * w) / (double)h) : p->shortest;
}

/* The first row or column of a cut in the middle; negative: that many black ones precede the image.
 * 0: not cropped. transformers rounds like this. */
static int64_t middle(int64_t size, int64_t crop)
{
    if (crop == 0) return 0;
    return size >= crop ? (size - crop) / 2 : -((crop - size + 1) / 2);
}

/* Copy the part of an image [h,w,3] that patches cover into a cleared one. An element has `bytes`
 * bytes. */
static void cut(const mhai_processor *p, const void *from, int64_t h, int64_t w, int64_t to_h,
                int64_t to_w, size_t bytes, void *to)
{
    const int64_t top = middle(h, p->crop_height), left = middle(w, p->crop_width);
    for (int64_t y = top < 0 ? -top : 0; y < to_h && top + y < h; y++)
        for (int64_t x = left < 0 ? -left : 0; x < to_w && left + x < w; x++)
            memcpy((char *)to + (size_t)(y * to_w + x) * 3 * bytes,
                   (const char *)from + (size_t)((top + y) * w + left + x) * 3 * bytes, 3 * bytes);
}

static void normalise(const mhai_processor *p, int64_t count, float *x)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (x[i] - (float)p->mean[i % 3]) / (float)p->std[i % 3];
}

mha_status mhai_picture_process(const mhai_picture *picture, const mha_image *image,
                                float **numbers, mha_image *seen)
{
    const mhai_processor *p = &picture->processor;
    const int64_t cut_h = picture->rows * picture->patch, cut_w = picture->cols * picture->patch;
    const int64_t count = cut_h * cut_w * 3;
    int64_t height, width;
    mha_image sized = {0};
    float *floats = NULL;
    resized(p, image, &height, &width);
    if (height > MHA_IMAGE_MOST_EDGE || width > MHA_IMAGE_MOST_EDGE ||
        width * height > MHA_IMAGE_MOST_PIXELS)
        return mha_fail(MHA_ERR_SIZE,
                        "the image of %lld x %lld pixels becomes %lld x %lld as the model resizes "
                        "it, expected at most %d in each direction and %lld in all; crop it",
                        (long long)image->width, (long long)image->height, (long long)width,
                        (long long)height, MHA_IMAGE_MOST_EDGE, (long long)MHA_IMAGE_MOST_PIXELS);
    mha_status status = mhai_image_resize(image, width, height, p->filter == MHAI_BICUBIC, &sized);
    if (status == MHA_OK) status = mhai_image_make(cut_w, cut_h, seen);
    if (status == MHA_OK && p->floats)
        status = mhai_image_resize_floats(image, p->factor, width, height,
                                          p->filter == MHAI_BICUBIC, &floats);
    *numbers = status == MHA_OK ? calloc((size_t)count, sizeof **numbers) : NULL;
    if (status == MHA_OK && !*numbers) status = MHA_NO_MEMORY("image");
    if (status == MHA_OK) {
        cut(p, sized.pixels, height, width, cut_h, cut_w, 1, seen->pixels);
        for (int64_t i = 0; i < count && !floats; i++)
            (*numbers)[i] = (float)(seen->pixels[i] * p->factor);
        if (floats) cut(p, floats, height, width, cut_h, cut_w, sizeof *floats, *numbers);
        normalise(p, count, *numbers);
    }
    free(floats);
    mha_image_free(&sized);
    return status;
}

/* ---- patches --------------------------------------------------------------------------------- */

/* The numbers of a patch in the order channel, row, column. */
static void take_patch(const mha_picture *made, const float *numbers, int64_t at, float *to)
{
    const int64_t P = made->patch, width = made->cols * P;
    const float *from = numbers + (at / made->cols * width + at % made->cols) * P * 3;
    for (int64_t i = 0; i < made->feature_dim; i++)
        to[i] = from[(i / P % P * width + i % P) * 3 + i / (P * P)];
}

mha_status mha_model_read_image(const mha_model *model, const mha_image *image,
                                mha_picture *picture)
{
    MHA_NEED("mha_model_read_image", model, image, picture);
    MHA_TRY(mha_struct_check_size("mha_image", image->struct_size, sizeof *image));
    MHA_TRY(mha_struct_check_size("mha_picture", picture->struct_size, sizeof *picture));
    const mhai_picture *p = &model->picture;
    if (p->patch == 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "the model (%s) reads texts, not images",
                        model->info.architecture);
    if (!image->pixels || image->width < 1 || image->height < 1)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_image: the image has no pixels");
    mha_picture made = {.struct_size = sizeof made,
                        .rows = p->rows,
                        .cols = p->cols,
                        .first = p->first,
                        .registers = p->registers,
                        .patch = p->patch,
                        .feature_dim = 3 * p->patch * p->patch};
    const int64_t count = made.rows * made.cols;
    mha_image seen = {0};
    float *numbers = NULL;
    mha_status status = mhai_picture_process(p, image, &numbers, &seen);
    if (status == MHA_OK) {
        made.features =
            calloc((size_t)((made.first + count) * made.feature_dim), sizeof *made.features);
        if (!made.features) status = MHA_NO_MEMORY("image");
    }
    for (int64_t i = 0; i < count && status == MHA_OK; i++)
        take_patch(&made, numbers, i, made.features + (made.first + i) * made.feature_dim);
    free(numbers);
    made.pixels = seen.pixels;
    if (status == MHA_OK)
        *picture = made;
    else
        mha_picture_free(&made);
    return status;
}

void mha_picture_free(mha_picture *picture)
{
    if (!picture) return;
    free(picture->features);
    free(picture->pixels);
    *picture = (mha_picture){.struct_size = picture->struct_size};
}
