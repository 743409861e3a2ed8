/* PNG through libpng, whose errors longjmp(). Variables that must survive the jump are behind a
 * pointer.
 */
#include "png.h"

#include <multihead/component.h>

#include <png.h>

#include <setjmp.h>

typedef struct png_job {
    const mha_sink *sink;
    mha_status status;
    png_structp png;
    png_infop info;
} png_job;

static void on_write(png_structp png, png_bytep bytes, png_size_t count)
{
    png_job *job = png_get_io_ptr(png);
    if (count) job->status = job->sink->write(job->sink->user, bytes, count);
    if (job->status) png_error(png, "sink");
}

static void on_flush(png_structp png)
{
    (void)png;
}

static void on_error(png_structp png, png_const_charp message)
{
    png_job *job = png_get_error_ptr(png);
    if (!job->status) job->status = mha_fail(MHA_ERR_NOMEM, "PNG: %s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void write_all(png_job *job, const uint8_t *rgb, int64_t width, int64_t height)
{
    if (setjmp(png_jmpbuf(job->png))) return;
    png_set_write_fn(job->png, job, on_write, on_flush);
    png_set_user_limits(job->png, (png_uint_32)width, (png_uint_32)height);
    png_set_compression_level(job->png, 6);
    png_set_filter(job->png, 0, PNG_FILTER_NONE); /* unfiltered rows compress flat areas best */
    png_set_IHDR(job->png, job->info, (png_uint_32)width, (png_uint_32)height, 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(job->png, job->info);
    for (int64_t y = 0; y < height; y++) png_write_row(job->png, rgb + y * width * 3);
    png_write_end(job->png, NULL);
}

mha_status mhai_png_write(const uint8_t *rgb, int64_t width, int64_t height, const mha_sink *sink)
{
    png_job job = {.sink = sink};
    job.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &job, on_error, on_warning);
    if (job.png) job.info = png_create_info_struct(job.png);
    if (job.info)
        write_all(&job, rgb, width, height);
    else
        job.status = mha_fail(MHA_ERR_NOMEM, "PNG: out of memory");
    png_destroy_write_struct(&job.png, &job.info);
    return job.status;
}
