/* Colour maps: a few anchor colours, joined by straight lines in OKLab, which is perceptually
 * uniform. B. Ottosson, "A perceptual color space for image processing" (2020). */
#include <multihead/render.h>

#include <math.h>
#include <string.h>

enum { MOST_ANCHORS = 11 };

typedef struct cmap_anchors {
    int count;
    uint32_t rgb[MOST_ANCHORS]; /* evenly spaced from t = 0 to t = 1 */
} cmap_anchors;

static const cmap_anchors viridis = {11,
                                     {0x440154, 0x482475, 0x414487, 0x355F8D, 0x2A788E, 0x21918C,
                                      0x22A884, 0x44BF70, 0x7AD151, 0xBDDF26, 0xFDE725}};
static const cmap_anchors blues = {5, {0xF5F9FE, 0xC4DCF0, 0x6BADD6, 0x2473B4, 0x0A2F66}};
static const cmap_anchors blues_dark = {5, {0x151C26, 0x173F6B, 0x2473B4, 0x6BADD6, 0xDCEBFA}};
static const cmap_anchors greys = {2, {0xFAFAFA, 0x121212}};
static const cmap_anchors greys_dark = {2, {0x1B1B1B, 0xF4F4F4}};
static const cmap_anchors cividis = {5, {0x00224E, 0x434E6C, 0x7D7C78, 0xBCAE6C, 0xFEE838}};
static const cmap_anchors magma = {6, {0x000004, 0x3B0F70, 0x8C2981, 0xDE4968, 0xFE9F6D, 0xFCFDBF}};
static const cmap_anchors plasma = {6,
                                    {0x0D0887, 0x6A00A8, 0xB12A90, 0xE16462, 0xFCA636, 0xF0F921}};
static const cmap_anchors diverging = {5, {0x1D4E9E, 0x7FAEDD, 0xF6F5F2, 0xE89A7C, 0xA61C2A}};
static const cmap_anchors diverging_dark = {5, {0x9CC8FF, 0x3D74BD, 0x1D1D20, 0xBA4A38, 0xFFB49A}};

static const struct {
    mha_cmap cmap;
    const char *name;
} names[] = {
#define NAME_ROW(name, value, text, is_signed) {name, text},
    MHA_CMAP_LIST(NAME_ROW)
#undef NAME_ROW
};

static const struct {
    mha_scale scale;
    const char *name;
} scales[] = {
#define SCALE_ROW(name, value, text) {name, text},
    MHA_SCALE_LIST(SCALE_ROW)
#undef SCALE_ROW
};

const char *mha_cmap_name(mha_cmap cmap)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].cmap == cmap) return names[i].name;
    return "?";
}

const char *mha_scale_name(mha_scale scale)
{
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i].scale == scale) return scales[i].name;
    return "?";
}

static const cmap_anchors *anchors_of(mha_cmap cmap, bool dark)
{
    switch (cmap) {
    case MHA_CMAP_BLUES: return dark ? &blues_dark : &blues;
    case MHA_CMAP_GREYS: return dark ? &greys_dark : &greys;
    case MHA_CMAP_CIVIDIS: return &cividis;
    case MHA_CMAP_MAGMA: return &magma;
    case MHA_CMAP_PLASMA: return &plasma;
    case MHA_CMAP_DIVERGING: return dark ? &diverging_dark : &diverging;
    case MHA_CMAP_VIRIDIS: break;
    }
    return &viridis;
}

static double to_linear(double s)
{
    return s <= 0.04045 ? s / 12.92 : pow((s + 0.055) / 1.055, 2.4);
}

static uint8_t to_byte(double linear)
{
    double s = linear <= 0.0031308 ? 12.92 * linear : 1.055 * pow(linear, 1 / 2.4) - 0.055;
    return (uint8_t)(s <= 0 ? 0 : s >= 1 ? 255 : lround(255 * s));
}

static void to_oklab(uint32_t rgb, double lab[3])
{
    double r = to_linear((rgb >> 16 & 255) / 255.0), g = to_linear((rgb >> 8 & 255) / 255.0),
           b = to_linear((rgb & 255) / 255.0);
    double l = cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
    double m = cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
    double s = cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
    lab[0] = 0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s;
    lab[1] = 1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s;
    lab[2] = 0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s;
}

static void from_oklab(const double lab[3], uint8_t rgb[3])
{
    double l = lab[0] + 0.3963377774 * lab[1] + 0.2158037573 * lab[2];
    double m = lab[0] - 0.1055613458 * lab[1] - 0.0638541728 * lab[2];
    double s = lab[0] - 0.0894841775 * lab[1] - 1.2914855480 * lab[2];
    l *= l * l;
    m *= m * m;
    s *= s * s;
    rgb[0] = to_byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s);
    rgb[1] = to_byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s);
    rgb[2] = to_byte(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s);
}

void mha_cmap_color(mha_cmap cmap, bool dark, double t, uint8_t rgb[3])
{
    const cmap_anchors *anchors = anchors_of(cmap, dark);
    double place = !(t > 0) ? 0 : t >= 1 ? 1 : t;
    place *= anchors->count - 1;
    int left = (int)place;
    if (left > anchors->count - 2) left = anchors->count - 2;
    double a[3], b[3];
    to_oklab(anchors->rgb[left], a);
    to_oklab(anchors->rgb[left + 1], b);
    for (int i = 0; i < 3; i++) a[i] += (b[i] - a[i]) * (place - left);
    from_oklab(a, rgb);
}
