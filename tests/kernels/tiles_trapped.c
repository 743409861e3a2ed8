#if defined(__linux__) && defined(__x86_64__)
#define _GNU_SOURCE /* REG_RIP */
#include "tiles_trapped.h"

#include "tiles_emulated.h"

#include "base/cpu.h"

#include <signal.h>
#include <ucontext.h>

/* An instruction with a VEX prefix of three bytes, of map 2: its opcode, mandatory prefix (0: none, 2: F3, 3: F2) and
 * operands. */
typedef struct decoded {
    int opcode, prefix, reg, rm, vvvv, length;
    bool in_memory, has_index;
    uint64_t address; /* without the index */
    uint64_t index;
} decoded;

static uint64_t value_of(const ucontext_t *context, int number)
{
    static const int places[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                 REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)context->uc_mcontext.gregs[places[number]];
}

static int32_t signed_at(const uint8_t *code, int bytes)
{
    int32_t x;
    if (bytes == 1) return (int8_t)code[0];
    memcpy(&x, code, sizeof x);
    return x;
}

/* The operand in memory: base + index * scale + displacement, or relative to the next instruction. */
static void decode_address(const ucontext_t *context, const uint8_t *code, decoded *d)
{
    const int mod = code[4] >> 6, x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
    int base = d->rm, size = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (d->rm == 4) { /* SIB */
        const int index = (code[5] >> 3 & 7) | x;
        base = code[5] & 7;
        d->has_index = index != 4;
        if (d->has_index) d->index = value_of(context, index) << (code[5] >> 6);
        d->length++;
    }
    const bool no_base = mod == 0 && base == 5;
    if (no_base) size = 4;
    if (!no_base) d->address = value_of(context, base | b);
    if (size > 0) d->address += (uint64_t)(int64_t)signed_at(code + d->length, size);
    d->length += size;
    if (no_base && d->rm != 4) d->address += (uint64_t)(uintptr_t)code + (uint64_t)d->length;
}

static decoded decode(const ucontext_t *context, const uint8_t *code)
{
    tile_expect(code[0] == 0xC4 && (code[1] & 31) == 2 && (code[2] & 0x84) == 0, "not of tiles");
    decoded d = {.opcode = code[3],
                 .prefix = code[2] & 3,
                 .reg = code[4] >> 3 & 7,
                 .rm = code[4] & 7,
                 .vvvv = ~code[2] >> 3 & 15,
                 .length = 5,
                 .in_memory = code[4] >> 6 != 3};
    tile_expect(code[1] & 0x80, "a tile above 7");
    if (d.in_memory) decode_address(context, code, &d);
    return d;
}

static void *pointer_to(uint64_t address)
{
    void *p;
    memcpy(&p, &address, sizeof p);
    return p;
}

static void trap(int signal, siginfo_t *info, void *at)
{
    ucontext_t *context = at;
    (void)signal, (void)info;
    const decoded d = decode(context, pointer_to((uint64_t)context->uc_mcontext.gregs[REG_RIP]));
    const int what = d.opcode << 8 | d.prefix << 4 | d.in_memory;
    void *memory = pointer_to(d.address);
    tile_expect(d.vvvv == 0 || d.opcode > 0x50, "an operand too many");
    tile_expect(d.opcode != 0x4B || d.rm == 4, "rows without a stride");
    switch (what) {
    case 0x4900: tile_release(); break;
    case 0x4901: tile_configure(pointer_to(d.address + d.index)); break;
    case 0x4930: tile_zero(d.reg); break;
    case 0x4B31: tile_load(d.reg, memory, (int64_t)d.index); break;
    case 0x4B21: tile_store(d.reg, memory, (int64_t)d.index); break;
    case 0x5E30: tile_dot_i8(d.reg, d.rm, d.vvvv); break;
    case 0x5C20: tile_dot_bf16(d.reg, d.rm, d.vvvv); break;
    default: tile_expect(false, "an unknown instruction");
    }
    context->uc_mcontext.gregs[REG_RIP] += d.length;
}

bool tiles_trapped(void)
{
    const struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};
    if (mha_isa_available(MHA_ISA_AMX) || !(mhai_cpu_features() & MHAI_CPU_AVX512_VNNI))
        return false;
    return sigaction(SIGILL, &action, NULL) == 0;
}
#else
#include "tiles_trapped.h"

bool tiles_trapped(void)
{
    return false;
}
#endif
