/* tests/device/emulator/amx.c: see amx.h. First the unit, then instructions in
 * memory, then the signal.
 *
 * Invariants: the bytes of a tile behind its lines and behind each line are 0,
 * as in the unit. The handler runs in the thread that has executed the
 * instruction, so it may use that thread's tiles, and whatever the code before
 * that instruction might call.
 * SPDX-License-Identifier: MIT */
#include "amx.h"

#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, LINES = 16, LINE_BYTES = 64 };

/* The operand of ldtilecfg. */
typedef struct Config {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16]; /* of a line of each tile */
    uint8_t lines[16];
} Config;

typedef struct Unit {
    Config config; /* palette 0: no tiles */
    _Alignas(64) uint8_t tile[TILES][LINES][LINE_BYTES];
} Unit;

static _Thread_local Unit unit;

/* Why an instruction is refused; NULL: it has been done. */
typedef const char *Refusal;

static Refusal refuse(const char *format, int tile, int has, int expected)
{
    static _Thread_local char text[160];
    snprintf(text, sizeof text, format, tile, has, expected);
    return text;
}

/* ---- the unit -------------------------------------------------------------------------------------------- */

static Refusal load_config(const void *from)
{
    Config c;
    memcpy(&c, from, sizeof c);
    if (c.palette > 1) return refuse("#GP: palette %d", c.palette, 0, 0);
    if (c.palette && c.start) return refuse("start row %d is not emulated", c.start, 0, 0);
    for (int i = 0; c.palette && i < 14; i++)
        if (c.zero[i]) return refuse("#GP: byte %d of the configuration is not 0", 2 + i, 0, 0);
    for (int i = 0; c.palette && i < 16; i++) {
        if (i >= TILES && (c.bytes[i] || c.lines[i]))
            return refuse("#GP: there is no tile %d", i, 0, 0);
        if (c.bytes[i] > LINE_BYTES || c.lines[i] > LINES || !c.bytes[i] != !c.lines[i])
            return refuse("#GP: tile %d of %d lines of %d bytes", i, c.lines[i], c.bytes[i]);
    }
    memset(&unit, 0, sizeof unit);
    if (c.palette) unit.config = c;
    return NULL;
}

static Refusal check_tile(int i)
{
    if (!unit.config.palette) return "#UD: no configuration is loaded";
    if (i >= TILES) return refuse("#UD: there is no tile %d", i, 0, 0);
    if (!unit.config.lines[i]) return refuse("#UD: tile %d is not configured", i, 0, 0);
    return NULL;
}

static Refusal load_tile(int i, const uint8_t *from, int64_t stride)
{
    Refusal why = check_tile(i);
    if (why) return why;
    memset(unit.tile[i], 0, sizeof unit.tile[i]);
    for (int l = 0; l < unit.config.lines[i]; l++)
        memcpy(unit.tile[i][l], from + l * stride, unit.config.bytes[i]);
    return NULL;
}

static Refusal store_tile(int i, uint8_t *to, int64_t stride)
{
    Refusal why = check_tile(i);
    for (int l = 0; !why && l < unit.config.lines[i]; l++)
        memcpy(to + l * stride, unit.tile[i][l], unit.config.bytes[i]);
    return why;
}

/* c [m,n] += a [m,k] b [k,n] fits. */
static Refusal check_product(int c, int a, int b)
{
    const Config *x = &unit.config;
    const int tile[] = {c, a, b};
    for (int i = 0; i < 3; i++) {
        Refusal why = check_tile(tile[i]);
        if (why) return why;
        if (x->bytes[tile[i]] % 4)
            return refuse("#UD: tile %d has %d bytes a line", tile[i], x->bytes[tile[i]], 0);
    }
    if (c == a || c == b || a == b) return "#UD: two operands are one tile";
    if (x->lines[c] != x->lines[a])
        return refuse("#UD: tile %d has %d lines, expected %d", a, x->lines[a], x->lines[c]);
    if (x->bytes[c] != x->bytes[b])
        return refuse("#UD: tile %d has %d bytes a line, expected %d", b, x->bytes[b], x->bytes[c]);
    if (x->bytes[a] / 4 != x->lines[b])
        return refuse("#UD: tile %d has %d lines, expected %d", b, x->lines[b], x->bytes[a] / 4);
    return NULL;
}

/* Adds bfloat16 products to float32 sums: those of the even elements of k, and
 * those of the odd ones, in order, by fused steps from 0; then both, then the
 * sum there was. The caller has set the modes of rounding. Sanitizers need not
 * look: it touches this thread's tiles alone. */
__attribute__((target("avx512f"), no_sanitize("address", "thread", "undefined"))) static Refusal
multiply(int c, int a, int b)
{
    Refusal why = check_product(c, a, b);
    if (why) return why;
    const __mmask16 columns = (__mmask16)((1u << unit.config.bytes[c] / 4) - 1);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int m = 0; m < unit.config.lines[c]; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < unit.config.bytes[a] / 4; k++) {
            int pair;
            memcpy(&pair, unit.tile[a][m] + 4 * k, sizeof pair);
            __m512i x = _mm512_set1_epi32(pair), y = _mm512_load_si512(unit.tile[b][k]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                                  _mm512_castsi512_ps(_mm512_and_si512(y, high)), odd);
        }
        float *sums = (float *)(void *)unit.tile[c][m];
        __m512 sum = _mm512_add_ps(_mm512_load_ps(sums), _mm512_add_ps(even, odd));
        _mm512_store_ps(sums, _mm512_maskz_mov_ps(columns, sum));
    }
    return NULL;
}

/* ---- instructions ----------------------------------------------------------------------------------------- */

enum { NO_PREFIX, PREFIX_66, PREFIX_F3, PREFIX_F2 }; /* VEX.pp */

/* One of VEX.128.0F38.W0 with a ModRM byte. */
typedef struct Instruction {
    int opcode, prefix, length;
    int reg, rm, vvvv; /* numbers of registers */
    bool memory, sib;
    uint8_t *address; /* base + displacement of the operand in memory */
    int64_t index;    /* what else belongs to it: index * scale */
} Instruction;

static int64_t register_of(const greg_t *g, int number)
{
    static const int at[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15};
    return g[at[number]];
}

/* The operand in memory whose ModRM byte is at p; x_bit and b_bit extend the
 * numbers of its registers. */
static void decode_memory(Instruction *o, const uint8_t *p, int x_bit, int b_bit, const greg_t *g)
{
    int mod = p[0] >> 6, base = p[0] & 7, bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    int64_t address = 0;
    o->sib = base == 4;
    o->index = 0, o->length++;
    bool relative = mod == 0 && base == 5;
    if (o->sib) {
        int index = (p[1] >> 3 & 7) | x_bit;
        if (index != 4) o->index = register_of(g, index) * (1 << (p[1] >> 6));
        base = p[1] & 7;
        p++, o->length++;
    }
    if (mod == 0 && base == 5)
        bytes = 4;
    else
        address = register_of(g, base | b_bit);
    int32_t displacement = 0;
    if (bytes == 1) displacement = (int8_t)p[1];
    if (bytes == 4) memcpy(&displacement, p + 1, sizeof displacement);
    o->length += bytes;
    if (relative) address = g[REG_RIP] + o->length;
    o->address = (uint8_t *)(uintptr_t)(address + displacement); /* NOLINT: it is one */
}

/* The instruction at g's RIP; false: it is not one of the unit's. */
static bool decode(const greg_t *g, Instruction *o)
{
    const uint8_t *p = (const uint8_t *)(uintptr_t)g[REG_RIP]; /* NOLINT: it is one */
    if (p[0] != 0xc4 || (p[1] & 0x1f) != 2) return false;
    o->opcode = p[3], o->prefix = p[2] & 3;
    if (o->opcode != 0x49 && o->opcode != 0x4b && o->opcode != 0x5c) return false;
    int r_bit = p[1] & 0x80 ? 0 : 8, x_bit = p[1] & 0x40 ? 0 : 8, b_bit = p[1] & 0x20 ? 0 : 8;
    o->vvvv = ~(p[2] >> 3) & 15;
    o->reg = (p[4] >> 3 & 7) | r_bit, o->rm = (p[4] & 7) | b_bit;
    o->memory = p[4] >> 6 != 3, o->length = 4;
    if (p[2] & 0x84) return false; /* W1 or L1 */
    if (o->memory)
        decode_memory(o, p + 4, x_bit, b_bit, g);
    else
        o->length++;
    return true;
}

static Refusal execute(const Instruction *x)
{
    if (x->opcode == 0x5c) {
        if (x->prefix != PREFIX_F3 || x->memory) return "this product is not emulated";
        return multiply(x->reg, x->rm, x->vvvv);
    }
    if (x->vvvv) return "#UD: VEX.vvvv is not 1111";
    if (x->opcode == 0x4b) {
        if (!x->memory || !x->sib || x->prefix == NO_PREFIX) return "#UD: no operand with SIB";
        if (x->prefix == PREFIX_F3) return store_tile(x->reg, x->address, x->index);
        return load_tile(x->reg, x->address, x->index);
    }
    if (x->memory) {
        uint8_t *at = x->address + x->index;
        if (x->reg || x->prefix > PREFIX_66) return "#UD: opcode 49";
        if (x->prefix == NO_PREFIX) return load_config(at);
        memcpy(at, &unit.config, sizeof unit.config);
        return NULL;
    }
    if (x->prefix == PREFIX_F2 && x->rm == 0) {
        Refusal why = check_tile(x->reg);
        if (!why) memset(unit.tile[x->reg], 0, sizeof unit.tile[x->reg]);
        return why;
    }
    if (x->prefix != NO_PREFIX || x->reg || x->rm) return "#UD: opcode 49";
    memset(&unit, 0, sizeof unit);
    return NULL;
}

/* ---- the signal ------------------------------------------------------------------------------------------- */

static bool emulates;
static sighandler_t otherwise = SIG_DFL; /* what else happens at SIGILL */

static void end_or_fail(int number)
{
    if (otherwise != SIG_DFL && otherwise != SIG_IGN) {
        otherwise(number);
        return;
    }
    struct sigaction end = {.sa_handler = SIG_DFL};
    sigaction(number, &end, NULL); /* the same instruction again */
}

static void on_illegal(int number, siginfo_t *info, void *context)
{
    (void)info;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    Instruction x = {0};
    bool any = false;
    /* round to nearest, no exceptions, subnormal numbers are 0; the code that
     * was interrupted gets its modes back */
    _mm_setcsr(0x1f80 | 0x8000 | 0x0040);
    for (; decode(g, &x); g[REG_RIP] += x.length, any = true) {
        Refusal why = execute(&x);
        if (!why) continue;
        char line[200];
        int n = snprintf(line, sizeof line, "AMX, opcode %02x, tile %d: %s\n", (unsigned)x.opcode,
                         x.reg, why);
        if (write(STDERR_FILENO, line, (size_t)n) == n) end_or_fail(number);
        return;
    }
    if (!any) end_or_fail(number);
}

/* In place of the system's: cmocka takes SIGILL before each test, by this. */
__attribute__((visibility("default"))) sighandler_t signal(int number, sighandler_t handler)
{
    if (emulates && number == SIGILL) {
        sighandler_t old = otherwise;
        otherwise = handler;
        return old;
    }
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &action, &old) ? SIG_ERR : old.sa_handler;
}

void amx_emulate(void)
{
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, NULL);
    emulates = true;
}

bool amx_can_emulate(void) { return __builtin_cpu_supports("avx512f"); }

/* ---- the library ------------------------------------------------------------------------------------------ */

/* The linker gives the library __wrap_x for x, and this file x for __real_x
 * (ld's option --wrap). */
bool __real_dsi_cpu_find_amx(void); /* NOLINT: ld's names */
bool __wrap_dsi_cpu_find_amx(void); /* NOLINT */

bool __wrap_dsi_cpu_find_amx(void) /* NOLINT */ { return emulates || __real_dsi_cpu_find_amx(); }

__attribute__((constructor)) static void emulate_if_asked(void)
{
    const char *how = getenv("DS_TEST_AMX");
    if (how && !strcmp(how, "emulated") && amx_can_emulate()) amx_emulate();
}
