/* JPEG through libjpeg-turbo, whose errors longjmp() here. Variables that must survive the jump are in
 * the job. */
#include "image/image.h"

#include <multihead/component.h>

#ifdef MHAI_HAVE_JPEG

#include <stdio.h> /* before jpeglib.h, which uses FILE */

#include <jpeglib.h>

#include <setjmp.h>
#include <stdlib.h>

/* Far more than encoders write. Each scan of a progressive file visits all pixels, and needs only a
 * few bytes. */
enum { MOST_SCANS = 200 };

typedef struct jpeg_job {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    mha_status status;
    mha_image made;
} jpeg_job;

static void stop(jpeg_job *job, mha_status status, const char *message)
{
    if (!job->status) job->status = mha_fail(status, "%s", message);
    longjmp(job->back, 1);
}

static void on_error(j_common_ptr jpeg)
{
    char text[JMSG_LENGTH_MAX], all[JMSG_LENGTH_MAX + 32];
    jpeg->err->format_message(jpeg, text);
    mha_format(all, sizeof all, "damaged JPEG file: %s", text);
    stop(jpeg->client_data, MHA_ERR_FORMAT, all);
}

/* libjpeg continues after a warning with pixels of its own. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0) on_error(jpeg);
}

static void on_progress(j_common_ptr common)
{
    jpeg_job *job = common->client_data;
    if (job->jpeg.input_scan_number > MOST_SCANS)
        stop(job, MHA_ERR_FORMAT, "damaged JPEG file: more than 200 scans");
}

static void read_all(jpeg_job *job, const uint8_t *bytes, size_t size)
{
    struct jpeg_decompress_struct *jpeg = &job->jpeg;
    if (setjmp(job->back)) return;
    jpeg_create_decompress(jpeg);
    job->progress.progress_monitor = on_progress;
    jpeg->progress = &job->progress;
    jpeg_mem_src(jpeg, bytes, (unsigned long)size);
    jpeg_read_header(jpeg, TRUE);
    if (jpeg->num_components != 1 && jpeg->num_components != 3)
        stop(job, MHA_ERR_UNSUPPORTED,
             "the JPEG file is CMYK or has another number of channels "
             "than 1 or 3; convert it to RGB");
    job->status = mhai_image_make(jpeg->image_width, jpeg->image_height, &job->made);
    if (job->status) return;
    jpeg->out_color_space = JCS_RGB;
    jpeg->mem->max_memory_to_use = 16 * MHA_IMAGE_MOST_PIXELS;
    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = job->made.pixels + (int64_t)jpeg->output_scanline * job->made.width * 3;
        jpeg_read_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_decompress(jpeg);
}

mha_status mhai_jpeg_read(const uint8_t *bytes, size_t size, mha_image *image)
{
    jpeg_job job = {.status = MHA_OK};
    job.jpeg.err = jpeg_std_error(&job.errors);
    job.jpeg.client_data = &job;
    job.errors.error_exit = on_error;
    job.errors.emit_message = on_message;
    read_all(&job, bytes, size);
    jpeg_destroy_decompress(&job.jpeg);
    if (job.status)
        free(job.made.pixels);
    else
        *image = job.made;
    return job.status;
}

#else

mha_status mhai_jpeg_read(const uint8_t *bytes, size_t size, mha_image *image)
{
    (void)bytes;
    (void)size;
    (void)image;
    return mha_fail(MHA_ERR_UNSUPPORTED, "this build has no libjpeg; convert the image to PNG");
}

#endif
