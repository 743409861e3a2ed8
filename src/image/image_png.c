/* PNG through libpng, whose errors longjmp(). Variables that must survive the jump are in the job. */
#include "image/image.h"

#include <multihead/component.h>

#ifdef MHAI_HAVE_PNG

#include <png.h>

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

typedef struct png_job {
    const uint8_t *bytes;
    size_t left;
    mha_status status;
    png_structp png;
    png_infop info;
    mha_image made;
} png_job;

static void on_read(png_structp png, png_bytep to, png_size_t count)
{
    png_job *job = png_get_io_ptr(png);
    if (count > job->left) png_error(png, "the file is truncated");
    memcpy(to, job->bytes, count);
    job->bytes += count;
    job->left -= count;
}

static void on_error(png_structp png, png_const_charp message)
{
    png_job *job = png_get_error_ptr(png);
    if (!job->status) job->status = mha_fail(MHA_ERR_FORMAT, "damaged PNG file: %s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

/* Ask for 8 bits of red, green and blue, without transparency. */
static void set_conversions(const png_job *job)
{
    png_set_palette_to_rgb(job->png);
    png_set_expand_gray_1_2_4_to_8(job->png);
    png_set_strip_16(job->png);
    png_set_strip_alpha(job->png);
    png_set_gray_to_rgb(job->png);
}

/* The orientation of the first chunk eXIf. libpng would allocate whatever length the chunk claims. */
static int orientation_of(const uint8_t *bytes, size_t size)
{
    enum { SIGNATURE = 8, AROUND = 12 }; /* length, type and checksum around the data */
    for (size_t at = SIGNATURE; size - at >= AROUND;) {
        size_t length = 0;
        for (int i = 0; i < 4; i++) length = length << 8 | bytes[at + (size_t)i];
        if (length > size - at - AROUND) break;
        if (memcmp(bytes + at + 4, "eXIf", 4) == 0)
            return mhai_exif_orientation(bytes + at + 8, length);
        at += AROUND + length;
    }
    return 1;
}

static void read_all(png_job *job)
{
    if (setjmp(png_jmpbuf(job->png))) return;
    png_set_read_fn(job->png, job, on_read);
    png_set_user_limits(job->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* mhai_image_make() checks */
    png_set_keep_unknown_chunks(job->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1); /* text, profiles */
    png_set_chunk_malloc_max(job->png, 1 << 20);
    png_read_info(job->png, job->info);
    const int64_t width = png_get_image_width(job->png, job->info);
    const int64_t height = png_get_image_height(job->png, job->info);
    job->status = mhai_image_make(width, height, &job->made);
    if (job->status) return;
    set_conversions(job);
    const int passes = png_set_interlace_handling(job->png);
    png_read_update_info(job->png, job->info);
    if (png_get_rowbytes(job->png, job->info) != (size_t)width * 3)
        png_error(job->png, "unexpected channels");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < height; y++)
            png_read_row(job->png, job->made.pixels + y * width * 3, NULL);
    png_read_end(job->png, NULL);
}

mha_status mhai_png_read(const uint8_t *bytes, size_t size, mha_image *image)
{
    png_job job = {.bytes = bytes, .left = size};
    job.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, on_error, on_warning);
    if (job.png) job.info = png_create_info_struct(job.png);
    if (job.info)
        read_all(&job);
    else
        job.status = MHA_NO_MEMORY("image");
    png_destroy_read_struct(&job.png, &job.info, NULL);
    if (!job.status) job.status = mhai_image_turn(&job.made, orientation_of(bytes, size));
    if (job.status)
        free(job.made.pixels);
    else
        *image = job.made;
    return job.status;
}

#else

mha_status mhai_png_read(const uint8_t *bytes, size_t size, mha_image *image)
{
    (void)bytes;
    (void)size;
    (void)image;
    return mha_fail(MHA_ERR_UNSUPPORTED, "this build has no libpng; convert the image to JPEG");
}

#endif
