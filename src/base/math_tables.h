/* Made by tools/make_math.py: the constants of math.c. */
#ifndef MHAI_MATH_TABLES_H
#define MHAI_MATH_TABLES_H

#include <stdint.h>

/* ---- exp: 2^(j / 32) as a sum of two, and ln 2 / 32 as one of 37 bits and the rest */
#define EXP_PER_LN2 0x1.71547652b82fep+5
#define LN2_32_HIGH 0x1.62e42fefa0000p-6
#define LN2_32_LOW 0x1.cf79abc9e3b3ap-45
#define LN2 0x1.62e42fefa39efp-1
static const double exp_table[32][2] = {
    {0x1p+0, 0.0},
    {0x1.059b0d3158574p+0, 0x1.d73e2a475b465p-55},
    {0x1.0b5586cf9890fp+0, 0x1.8a62e4adc610bp-54},
    {0x1.11301d0125b51p+0, -0x1.6c51039449b3ap-54},
    {0x1.172b83c7d517bp+0, -0x1.19041b9d78a76p-55},
    {0x1.1d4873168b9aap+0, 0x1.e016e00a2643cp-54},
    {0x1.2387a6e756238p+0, 0x1.9b07eb6c70573p-54},
    {0x1.29e9df51fdee1p+0, 0x1.612e8afad1255p-55},
    {0x1.306fe0a31b715p+0, 0x1.6f46ad23182e4p-55},
    {0x1.371a7373aa9cbp+0, -0x1.63aeabf42eae2p-54},
    {0x1.3dea64c123422p+0, 0x1.ada0911f09ebcp-55},
    {0x1.44e086061892dp+0, 0x1.89b7a04ef80d0p-59},
    {0x1.4bfdad5362a27p+0, 0x1.d4397afec42e2p-56},
    {0x1.5342b569d4f82p+0, -0x1.07abe1db13cadp-55},
    {0x1.5ab07dd485429p+0, 0x1.6324c054647adp-54},
    {0x1.6247eb03a5585p+0, -0x1.383c17e40b497p-54},
    {0x1.6a09e667f3bcdp+0, -0x1.bdd3413b26456p-54},
    {0x1.71f75e8ec5f74p+0, -0x1.16e4786887a99p-55},
    {0x1.7a11473eb0187p+0, -0x1.41577ee04992fp-55},
    {0x1.82589994cce13p+0, -0x1.d4c1dd41532d8p-54},
    {0x1.8ace5422aa0dbp+0, 0x1.6e9f156864b27p-54},
    {0x1.93737b0cdc5e5p+0, -0x1.75fc781b57ebcp-57},
    {0x1.9c49182a3f090p+0, 0x1.c7c46b071f2bep-56},
    {0x1.a5503b23e255dp+0, -0x1.d2f6edb8d41e1p-54},
    {0x1.ae89f995ad3adp+0, 0x1.7a1cd345dcc81p-54},
    {0x1.b7f76f2fb5e47p+0, -0x1.5584f7e54ac3bp-56},
    {0x1.c199bdd85529cp+0, 0x1.11065895048ddp-55},
    {0x1.cb720dcef9069p+0, 0x1.503cbd1e949dbp-56},
    {0x1.d5818dcfba487p+0, 0x1.2ed02d75b3707p-55},
    {0x1.dfc97337b9b5fp+0, -0x1.1a5cd4f184b5cp-54},
    {0x1.ea4afa2a490dap+0, -0x1.e9c23179c2893p-54},
    {0x1.f50765b6e4540p+0, 0x1.9d3e12dd8a18bp-54},
};
/* (e^r - 1 - r) / r^2, |r| <= ln 2 / 64; error 0.002 ulp of 1. */
static const double exp_terms[5] = {
    0x1p-1, 0x1.555555554dccap-3, 0x1.5555555551910p-5, 0x1.11114faa79fd2p-7, 0x1.6c1700057e56ap-10,
};

/* ---- log: of j / 64, with 64 / j; HIGH is a multiple of 2^-43 */
#define LN2_HIGH 0x1.62e42fefa3800p-1
#define LN2_LOW 0x1.ef35793c76730p-45
enum { LOG_FIRST = 45 };
static const double log_table[][3] = {
    {0x1.6c16c16c16c17p+0, -0x1.68ac83e9c6800p-2, -0x1.0a0d32756eba0p-45},
    {0x1.642c8590b2164p+0, -0x1.522ae0738a000p-2, -0x1.ebe708164c759p-45},
    {0x1.5c9882b931057p+0, -0x1.3c25277333000p-2, -0x1.83b54b606bd5cp-46},
    {0x1.5555555555555p+0, -0x1.269621134d800p-2, -0x1.c93c1df5bb3b6p-45},
    {0x1.4e5e0a72f0539p+0, -0x1.1178e8227e800p-2, 0x1.c210e63a5f01cp-45},
    {0x1.47ae147ae147bp+0, -0x1.f991c6cb3b000p-3, -0x1.bcbecca0cdf30p-46},
    {0x1.4141414141414p+0, -0x1.d1037f2656000p-3, 0x1.84a7e75b6f6e4p-47},
    {0x1.3b13b13b13b14p+0, -0x1.a93ed3c8ae000p-3, 0x1.8724350562169p-45},
    {0x1.3521cfb2b78c1p+0, -0x1.823c16551a000p-3, -0x1.e0ddb9a631e83p-46},
    {0x1.2f684bda12f68p+0, -0x1.5bf406b544000p-3, 0x1.27023eb68981cp-46},
    {0x1.29e4129e4129ep+0, -0x1.365fcb0159000p-3, -0x1.62fa8234b7289p-51},
    {0x1.2492492492492p+0, -0x1.1178e8227e000p-3, -0x1.1ef78ce2d07f2p-45},
    {0x1.1f7047dc11f70p+0, -0x1.da72763844000p-4, -0x1.a89401fa71733p-46},
    {0x1.1a7b9611a7b96p+0, -0x1.9335e5d594000p-4, -0x1.3115c3abd47dap-45},
    {0x1.15b1e5f75270dp+0, -0x1.4d3115d208000p-4, 0x1.53a2582f4e1efp-48},
    {0x1.1111111111111p+0, -0x1.08598b59e4000p-4, 0x1.7e5dd7009902cp-46},
    {0x1.0c9714fbcda3bp+0, -0x1.894aa149fc000p-5, 0x1.97995d05a267dp-46},
    {0x1.0842108421084p+0, -0x1.0415d89e74000p-5, -0x1.111c05cf1d753p-47},
    {0x1.0410410410410p+0, -0x1.0205658938000p-6, 0x1.3dc5b06e2f7d2p-45},
    {0x1p+0, 0.0, 0.0},
    {0x1.f81f81f81f820p-1, 0x1.fc0a8b0fc0000p-7, 0x1.f1e7cf6d3a69cp-50},
    {0x1.f07c1f07c1f08p-1, 0x1.f829b0e780000p-6, 0x1.980267c7e09e4p-45},
    {0x1.e9131abf0b767p-1, 0x1.77458f632c000p-5, 0x1.cfc4634f2a1eep-45},
    {0x1.e1e1e1e1e1e1ep-1, 0x1.f0a30c0118000p-5, -0x1.d599e83368e91p-45},
    {0x1.dae6076b981dbp-1, 0x1.341d7961be000p-4, -0x1.c5edaccf913dfp-45},
    {0x1.d41d41d41d41dp-1, 0x1.6f0d28ae56000p-4, 0x1.69737c93373dap-45},
    {0x1.cd85689039b0bp-1, 0x1.a926d3a4ae000p-4, -0x1.53935e85baac8p-45},
    {0x1.c71c71c71c71cp-1, 0x1.e27076e2b0000p-4, -0x1.a342c2af0003cp-45},
    {0x1.c0e070381c0e0p-1, 0x1.0d77e7cd09000p-3, -0x1.a699688e85bf4p-47},
    {0x1.bacf914c1bad0p-1, 0x1.29552f81ff000p-3, 0x1.48d301771c408p-45},
    {0x1.b4e81b4e81b4fp-1, 0x1.44d2b6ccb8000p-3, -0x1.70cc16135783cp-46},
    {0x1.af286bca1af28p-1, 0x1.5ff3070a79000p-3, 0x1.e9e439f105039p-46},
    {0x1.a98ef606a63bep-1, 0x1.7ab890210e000p-3, -0x1.bdb9072534a58p-45},
    {0x1.a41a41a41a41ap-1, 0x1.9525a9cf45000p-3, 0x1.ad1d904c1d4e3p-45},
    {0x1.9ec8e951033d9p-1, 0x1.af3c94e80c000p-3, -0x1.a4e633fcd9066p-52},
    {0x1.999999999999ap-1, 0x1.c8ff7c79aa000p-3, -0x1.7794f689f8434p-45},
    {0x1.948b0fcd6e9e0p-1, 0x1.e27076e2af000p-3, 0x1.72f4f543fff10p-46},
    {0x1.8f9c18f9c18fap-1, 0x1.fb9186d5e4000p-3, -0x1.d572aab993c87p-47},
    {0x1.8acb90f6bf3aap-1, 0x1.0a324e2739000p-2, 0x1.c6bee7ef4030ep-47},
    {0x1.8618618618618p-1, 0x1.1675cababa800p-2, -0x1.f1fc63382a8f0p-46},
    {0x1.8181818181818p-1, 0x1.22941fbcf7800p-2, 0x1.65a242853da76p-46},
    {0x1.7d05f417d05f4p-1, 0x1.2e8e2bae12000p-2, -0x1.67b1e99b72bd8p-45},
    {0x1.78a4c8178a4c8p-1, 0x1.3a64c55694800p-2, -0x1.0b1c686519460p-45},
    {0x1.745d1745d1746p-1, 0x1.4618bc21c6000p-2, -0x1.3d82f484c84ccp-46},
    {0x1.702e05c0b8170p-1, 0x1.51aad872df800p-2, 0x1.684e49eb067d5p-49},
    {0x1.6c16c16c16c17p-1, 0x1.5d1bdbf580800p-2, 0x1.ca508d8e0f720p-46},
    {0x1.6816816816817p-1, 0x1.686c81e9b1800p-2, -0x1.a89ddea0f7f59p-45},
};
/* (log(1 + r) - r) / r^2, |r| <= 1 / 90, relative; error 0.004 ulp of 1. */
static const double log_terms[7] = {
    -0x1p-1,
    0x1.55555555556f1p-2,
    -0x1.0000000000173p-2,
    0x1.99999966ad3b7p-3,
    -0x1.5555552780911p-3,
    0x1.249edf82fab05p-3,
    -0x1.000b542380cc9p-3,
};

/* ---- tanh */
/* (tanh(x) / x - 1) / x^2 of z = x^2, |x| <= 1 / 8; error 0.003 ulp of 1. */
static const double tanh_terms[7] = {
    -0x1.5555555555555p-2, 0x1.111111111110dp-3, -0x1.ba1ba1ba1802bp-5,  0x1.664f4877e22dcp-6,
    -0x1.226e25d242018p-7, 0x1.d6bcf70633de4p-9, -0x1.754ad0855985fp-10,
};

/* ---- sin and cos: pi / 2 in parts of 33 bits (the last is longer), and as a sum of two */
#define HALF_PI_1 0x1.921fb54400000p+0
#define HALF_PI_2 0x1.0b4611a600000p-34
#define HALF_PI_3 0x1.3198a2e000000p-69
#define HALF_PI_4 0x1.b839a252049c1p-104
#define HALF_PI_HIGH 0x1.921fb54442d18p+0
#define HALF_PI_LOW 0x1.1a62633145c07p-54
#define PER_HALF_PI 0x1.45f306dc9c883p-1
/* (sin(x) / x - 1) / x^2 of z = x^2, |x| <= pi / 4; error 0.05 ulp of 1. */
static const double sin_terms[7] = {
    -0x1.5555555555555p-3,  0x1.1111111111110p-7,  -0x1.a01a01a019937p-13, 0x1.71de3a54607a5p-19,
    -0x1.ae64541295cdfp-26, 0x1.61217ee5cca1bp-33, -0x1.ab17bdcbd3414p-41,
};
/* (cos(x) - 1 + x^2 / 2) / x^4 of z = x^2; error 0.008 ulp of 1. */
static const double cos_terms[7] = {
    0x1.5555555555555p-5,  -0x1.6c16c16c16c16p-10, 0x1.a01a01a019d0ap-16, -0x1.27e4fb7712ca2p-22,
    0x1.1eed8deb82809p-29, -0x1.9394b9eb4d56dp-37, 0x1.ab78473be59d7p-45,
};
/* The bits of 2 / pi after the point, 64 zeros before them. */
static const uint64_t two_over_pi[] = {
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041,
    0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
};

#endif
