/* JPEG through libjpeg-turbo, whose errors longjmp() here. Variables that must survive the jump are in
 * the job. */
#include "image/image.h"

#include <multihead/component.h>

#ifdef MHAI_HAVE_JPEG

#include <stdio.h> /* before jpeglib.h, which uses FILE */

#include <jpeglib.h>

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

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

/* Convert as Pillow does: it takes inks as inverted, as Adobe's programs store them, and rounds the
 * product of an ink and black's complement. */
static void to_rgb(const uint8_t *inks, int64_t width, uint8_t *to)
{
    for (int64_t i = 0; i < width * 3; i++) {
        const int light = inks[i / 3 * 4 + 3],
                  product = (255 - inks[i / 3 * 4 + i % 3]) * light + 128;
        to[i] = (uint8_t)(light - (((product >> 8) + product) >> 8));
    }
}

/* The orientation of the first EXIF segment before the pixels. */
static int orientation_of(const uint8_t *bytes, size_t size)
{
    enum { APP1 = 0xe1, SCAN = 0xda };
    for (size_t at = 2; size - at >= 4 && bytes[at] == 0xff && bytes[at + 1] != SCAN;) {
        const size_t length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (bytes[at + 1] == 0xff) { /* padding */
            at++;
            continue;
        }
        if (length > size - at - 2) break;
        if (bytes[at + 1] == APP1 && length >= 8 && memcmp(bytes + at + 4, "Exif\0\0", 6) == 0)
            return mhai_exif_orientation(bytes + at + 10, length - 8);
        at += 2 + length;
    }
    return 1;
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
    const bool inks = jpeg->num_components == 4;
    if (jpeg->num_components != 1 && jpeg->num_components != 3 && !inks)
        stop(job, MHA_ERR_UNSUPPORTED,
             "the JPEG file has another number of channels than 1, 3 or 4; convert it to RGB");
    job->status = mhai_image_make(jpeg->image_width, jpeg->image_height, &job->made);
    if (job->status) return;
    jpeg->out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg->mem->max_memory_to_use = 16 * MHA_IMAGE_MOST_PIXELS;
    jpeg_start_decompress(jpeg);
    JSAMPARRAY four = NULL;
    if (inks)
        four = jpeg->mem->alloc_sarray((j_common_ptr)jpeg, JPOOL_IMAGE, jpeg->output_width * 4, 1);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = job->made.pixels + (int64_t)jpeg->output_scanline * job->made.width * 3;
        jpeg_read_scanlines(jpeg, inks ? four : &row, 1);
        if (inks) to_rgb(four[0], job->made.width, row);
    }
    jpeg_finish_decompress(jpeg);
    job->status = mhai_image_turn(&job->made, orientation_of(bytes, size));
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
