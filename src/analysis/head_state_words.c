/* Words of a serialised state: written to a sink, or read from memory. */
#include "analysis/head_state.h"

#include <math.h>
#include <string.h>

uint64_t mhai_state_mix(uint64_t check, uint64_t word)
{
    check = (check ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return check ^ check >> 32;
}

void mhai_state_fail(mhai_state_io *io, const char *why)
{
    if (io->status == MHA_OK)
        io->status = mha_fail(MHA_ERR_FORMAT, "state of heads: byte %lld: %s %s",
                              (long long)io->at * 8 - 8, io->what, why);
}

void mhai_state_flush(mhai_state_io *io)
{
    if (io->sink && io->held > 0 && io->status == MHA_OK)
        io->status = io->sink->write(io->sink->user, io->buffer, io->held);
    io->held = 0;
}

static void put(mhai_state_io *io, uint64_t word)
{
    if (!io->sink) return;
    if (io->held == sizeof io->buffer) mhai_state_flush(io);
    for (int i = 0; i < 8; i++) io->buffer[io->held++] = (uint8_t)(word >> 8 * i);
}

static uint64_t get(const mhai_state_io *io)
{
    const uint8_t *from = io->from + 8 * (io->at - 1);
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint64_t)from[i] << 8 * i;
    return word;
}

void mhai_state_word(mhai_state_io *io, uint64_t *x)
{
    if (io->from) {
        *x = 0;
        if (io->status == MHA_OK && io->at >= io->count) {
            io->at++;
            mhai_state_fail(io, "is missing");
        }
        if (io->status != MHA_OK) return;
        io->at++;
        *x = get(io);
        return;
    }
    io->at++;
    if (!io->sink) return;
    put(io, *x);
    io->check = mhai_state_mix(io->check, *x);
}

void mhai_state_number(mhai_state_io *io, int64_t *x, int64_t low, int64_t high)
{
    uint64_t word = io->from ? 0 : (uint64_t)*x;
    mhai_state_word(io, &word);
    if (!io->from) return;
    /* implementation-defined in C17; two's complement on all supported platforms */
    int64_t value;
    memcpy(&value, &word, sizeof value);
    if (io->status == MHA_OK && (value < low || value > high)) {
        mhai_state_fail(io, "is out of range");
        value = 0;
    }
    *x = value;
}

void mhai_state_numbers(mhai_state_io *io, int64_t *x, int64_t count, int64_t low, int64_t high)
{
    for (int64_t i = 0; i < count; i++) mhai_state_number(io, &x[i], low, high);
}

void mhai_state_real(mhai_state_io *io, double *x)
{
    uint64_t word = 0;
    if (!io->from) memcpy(&word, x, sizeof word);
    mhai_state_word(io, &word);
    if (!io->from) return;
    memcpy(x, &word, sizeof *x);
    if (isfinite(*x)) return;
    mhai_state_fail(io, "is not finite");
    *x = 0;
}

/* The bounds leave a margin of 0.01, because rows may sum to 1.001 and entropies may be slightly
 * negative if a weight exceeds 1. Keys are below 2^40, and the logs of their number below 32. If a
 * sink takes part of a row, two weights of 1/e have 1.0615 times the entropy of two weights of
 * 1/2. */
void mhai_state_sum(mhai_state_io *io, mhai_exact *sum, int64_t rows, mha_measure_kind kind)
{
    for (int i = 0; i < MHAI_EXACT_PARTS; i++) mhai_state_word(io, &sum->part[i]);
    if (!io->from) return;
    const double most = kind == MHA_KIND_NATS     ? 32
                        : kind == MHA_KIND_TOKENS ? 0x1p40
                        : kind == MHA_KIND_PLAIN  ? 1.07
                                                  : 1.01;
    const double least = kind == MHA_KIND_CORRELATION ? -1.01 : -0.01;
    const double value = mhai_exact_value(sum);
    if (!(value >= least * (double)rows && value <= most * (double)rows))
        mhai_state_fail(io, "is not a possible sum of that many rows");
}
