/* tests/device/amx.c: the emulator of the matrix unit (emulator/amx.h): each
 * instruction beside plain C, forms of operands in memory, and planted
 * mistakes, of which each ends a process with its line. On processors with the
 * unit it is the emulator's as well, because this program does not ask for
 * leave.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "device/cpu/simd/amx.h"

#if defined(__x86_64__) && defined(DSI_KNOWS_AMX)
#include "emulator/amx.h"

#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define USES_TILES __attribute__((target("amx-tile,amx-bf16")))

typedef struct Config {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t lines[16];
} Config;

/* Tile 0: m lines of n sums; 1: m lines of k pairs; 2: k lines of n pairs; 7:
 * whole. */
static Config config_of(int m, int n, int k)
{
    return (Config){.palette = 1,
                    .bytes = {(uint16_t)(4 * n), (uint16_t)(4 * k), (uint16_t)(4 * n), [7] = 64},
                    .lines = {(uint8_t)m, (uint8_t)m, (uint8_t)k, [7] = 16}};
}

/* Of the memory that these instructions use, the compiler knows some bytes. */
#define MEMORY_IS_USED() __asm__ volatile("" ::: "memory")

USES_TILES static void load_config(const Config *from)
{
    MEMORY_IS_USED();
    _tile_loadconfig(from);
}

USES_TILES static void store_config(Config *to)
{
    _tile_storeconfig(to);
    MEMORY_IS_USED();
}

USES_TILES static void load_tile(const void *from, int64_t stride)
{
    MEMORY_IS_USED();
    _tile_loadd(7, from, stride);
}

USES_TILES static void store_tile(void *to, int64_t stride)
{
    _tile_stored(7, to, stride);
    MEMORY_IS_USED();
}

static bool lacks_avx512(void)
{
    if (amx_can_emulate()) return false;
    print_message("no AVX-512 here, by which the emulator multiplies: skipped\n");
    return true;
}

static uint64_t seed;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- values ------------------------------------------------------------------------------------------------ */

static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

static float fused(float sum, uint16_t a, uint16_t b)
{
    float x = flushed(float_of((uint32_t)a << 16)), y = flushed(float_of((uint32_t)b << 16));
    return flushed(fmaf(x, y, flushed(sum)));
}

static float sum_of(float before, const uint16_t *a, uint16_t (*b)[32], int k, int column)
{
    float even = 0, odd = 0;
    for (int i = 0; i < k; i++) {
        even = fused(even, a[2 * i], b[i][2 * column]);
        odd = fused(odd, a[2 * i + 1], b[i][2 * column + 1]);
    }
    return flushed(flushed(before) + flushed(even + odd));
}

/* Numbers of about 1; of any magnitude, so that sums are subnormal or
 * infinite; and all bits, so that some are NaN. */
static uint16_t random_bf16(int kind)
{
    uint32_t bits = random_bits() >> 16;
    if (kind == 0) return (uint16_t)((bits & 0x80ff) | 0x3f00);
    if (kind == 1) return (uint16_t)((bits & 0x80ff) | ((bits & 0x7000) ? 0x1f00 : 0x3f00));
    return (uint16_t)bits;
}

USES_TILES static void multiply(const Config *config, float (*sums)[16], uint16_t (*a)[32],
                                uint16_t (*b)[32])
{
    load_config(config);
    MEMORY_IS_USED();
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, a, 64);
    _tile_stream_loadd(2, b, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, sums, 64);
    MEMORY_IS_USED();
    _tile_release();
}

static void products(void **state)
{
    (void)state;
    if (lacks_avx512()) skip();
    static const int sizes[][3] = {{16, 16, 16}, {1, 1, 1}, {5, 16, 3}, {16, 7, 16}, {9, 11, 13}};
    for (int round = 0; round < 60; round++) {
        int m = sizes[round % 5][0], n = sizes[round % 5][1], k = sizes[round % 5][2];
        float sums[16][16], before[16][16];
        uint16_t a[16][32], b[16][32];
        for (int i = 0; i < 16 * 16; i++)
            before[i / 16][i % 16] = float_of((uint32_t)random_bf16(round / 5 % 3) << 16);
        for (int i = 0; i < 16 * 32; i++) a[i / 32][i % 32] = random_bf16(round / 5 % 3);
        for (int i = 0; i < 16 * 32; i++) b[i / 32][i % 32] = random_bf16(round / 5 % 3);
        memcpy(sums, before, sizeof sums);
        Config config = config_of(m, n, k);
        multiply(&config, sums, a, b);
        for (int i = 0; i < 16 * 16; i++) {
            bool inside = i / 16 < m && i % 16 < n;
            float want = inside ? sum_of(before[i / 16][i % 16], a[i / 16], b, k, i % 16)
                                : before[i / 16][i % 16];
            float got = sums[i / 16][i % 16];
            CHECK(isnan(want) ? isnan(got) : !memcmp(&want, &got, sizeof want));
        }
    }
}

/* ---- tiles and memory -------------------------------------------------------------------------------------- */

/* 1: the configuration that was loaded comes out; 2: zeros after a release. */
USES_TILES static void configurations(void **state)
{
    (void)state;
    if (lacks_avx512()) skip();
    Config config = config_of(3, 4, 5), got, none = {0};
    memset(&got, 1, sizeof got);
    load_config(&config);
    store_config(&got);
    CHECK(!memcmp(&config, &got, sizeof got));
    _tile_release();
    store_config(&got);
    CHECK(!memcmp(&none, &got, sizeof got));
}

/* Bytes behind a line are 0 in a tile, and as they were in memory. */
USES_TILES static void lines(void **state)
{
    (void)state;
    if (lacks_avx512()) skip();
    uint8_t from[16 * 100], to[16 * 80];
    for (int i = 0; i < 1600; i++) from[i] = (uint8_t)(1 + i % 251);
    Config config = config_of(5, 6, 7);
    load_config(&config);
    memset(to, 255, sizeof to);
    MEMORY_IS_USED();
    _tile_loadd(1, from, 100);
    _tile_stored(1, to, 80);
    MEMORY_IS_USED();
    for (int i = 0; i < 16 * 80; i++)
        CHECK_INT(to[i], i / 80 < 5 && i % 80 < 28 ? from[i / 80 * 100 + i % 80] : 255);
    _tile_zero(1);
    _tile_stored(1, to, 80);
    MEMORY_IS_USED();
    for (int i = 0; i < 5 * 28; i++) CHECK_INT(to[i / 28 * 80 + i % 28], 0);
    load_tile(from, 64);
    store_tile(to, 80);
    for (int i = 0; i < 16 * 64; i++) CHECK_INT(to[i / 64 * 80 + i % 64], from[i]);
    _tile_release();
}

/* Tile 7 from an operand of this form, with x in register `base` and `step` in
 * register `index`: line i begins `offset` + i `stride` bytes behind x. */
#define FORM(base, index, step, operand, offset, stride) \
    do { \
        __asm__ volatile("mov %0, %%" base "\n\tmov %1, %%" index "\n\ttileloadd " operand \
                         ", %%tmm7" \
                         : \
                         : "r"(x), "r"((int64_t)(step)) \
                         : base, index, "memory"); \
        check_lines(x + (offset), stride); \
    } while (0)

USES_TILES static void check_lines(const uint8_t *x, int64_t stride)
{
    uint8_t to[16][64];
    store_tile(to, 64);
    for (int i = 0; i < 16; i++) CHECK(!memcmp(to[i], x + i * stride, 64));
}

static uint8_t bytes[8192];

USES_TILES static void operands(void **state)
{
    (void)state;
    if (lacks_avx512()) skip();
    for (int i = 0; i < 8192; i++) bytes[i] = (uint8_t)random_bits();
    static Config config;
    config = config_of(16, 16, 16);
    const uint8_t *x = bytes + 4096;
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    FORM("rax", "rcx", 80, "(%%rax,%%rcx,1)", 0, 80);
    FORM("rax", "rcx", 80, "(%%rax,%%rcx,2)", 0, 160);
    FORM("rbx", "rdx", 40, "64(%%rbx,%%rdx,4)", 64, 160);
    FORM("rsi", "rdi", -24, "-64(%%rsi,%%rdi,8)", -64, -192);
    FORM("rdi", "rsi", 80, "0x400(%%rdi,%%rsi,1)", 1024, 80);
    FORM("r8", "r9", 80, "-0x400(%%r8,%%r9,1)", -1024, 80);
    FORM("r10", "r11", 80, "(%%r10,%%r11,1)", 0, 80);
    FORM("r12", "r13", 80, "(%%r12,%%r13,1)", 0, 80);
    FORM("r13", "r12", 80, "(%%r13,%%r12,1)", 0, 80);
    FORM("r14", "r15", 80, "(%%r14,%%r15,1)", 0, 80);
    FORM("r15", "r14", 80, "(%%r15)", 0, 0);
    FORM("r12", "rax", 80, "1(%%r12)", 1, 0);
    __asm__ volatile("ldtilecfg (%0)" : : "a"(&config));
    FORM("rcx", "rax", 64, "(%%rcx,%%rax,1)", 0, 64);
    __asm__ volatile("mov %0, %%r13\n\tldtilecfg -16(%%r13)" : : "r"((char *)&config + 16) : "r13");
    FORM("rcx", "rax", 64, "(%%rcx,%%rax,1)", 0, 64);
    __asm__ volatile("mov %0, %%r9\n\tldtilecfg 0x2000(%%r9)"
                     :
                     : "r"((uintptr_t)&config - 8192)
                     : "r9");
    FORM("rcx", "rax", 64, "(%%rcx,%%rax,1)", 0, 64);
    _tile_release();
}

/* Each thread has its tiles. */
USES_TILES static void *other_thread(void *arg)
{
    Config config, none = {0};
    store_config(&config);
    if (memcmp(&config, &none, sizeof config)) return NULL;
    config = config_of(16, 16, 16);
    load_config(&config);
    _tile_zero(7);
    _tile_release();
    return arg;
}

USES_TILES static void threads(void **state)
{
    (void)state;
    if (lacks_avx512()) skip();
    Config config = config_of(16, 16, 16);
    load_config(&config);
    load_tile(bytes, 64);
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, other_thread, bytes);
    pthread_join(thread, &result);
    CHECK(result == bytes);
    check_lines(bytes, 64);
    _tile_release();
}

/* ---- mistakes ---------------------------------------------------------------------------------------------- */

USES_TILES static void misload(int change)
{
    Config config = config_of(16, 16, 16);
    if (change == 1) config.palette = 2;
    if (change == 2) config.lines[0] = 17;
    if (change == 3) config.bytes[1] = 68;
    if (change == 4) config.lines[3] = 1;
    if (change == 5) config.lines[8] = 1, config.bytes[8] = 4;
    if (change == 6) config.zero[3] = 1;
    if (change == 7) config.start = 1;
    load_config(&config);
}

USES_TILES static void misuse(int change)
{
    uint8_t memory[1024] = {0};
    Config config = config_of(16, 16, 16);
    if (change == 20) config.lines[1] = 15;
    if (change == 21) config.lines[2] = 15;
    if (change == 22) config.bytes[2] = 60;
    if (change == 23) config.bytes[1] = 62;
    if (change != 11) load_config(&config);
    if (change == 10) _tile_release();
    if (change <= 11) _tile_loadd(0, memory, 64);
    if (change == 12) _tile_loadd(3, memory, 64);
    if (change == 13) _tile_stored(3, memory, 64);
    if (change == 14) _tile_zero(3);
    if (change == 15) __asm__ volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xd2"); /* 2, 2, 1 */
    if (change == 16) __asm__ volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc0"); /* 0, 0, 1 */
    if (change == 17) __asm__ volatile("tdpbf16ps %tmm3, %tmm1, %tmm0");
    if (change == 18) __asm__ volatile("tdpbssd %tmm2, %tmm1, %tmm0");
    if (change == 19) __asm__ volatile("ud2");
    _tile_dpbf16ps(0, 1, 2);
}

/* Ends by SIGILL, with a line that has `text`. */
static void check_mistake(int change, const char *text)
{
    int ends[2], status = 0;
    char said[300] = {0};
    CHECK_INT(pipe(ends), 0);
    pid_t child = fork();
    if (!child) {
        signal(SIGILL, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        change < 10 ? misload(change) : misuse(change);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n = 0, at = 0; (n = read(ends[0], said + at, sizeof said - 1 - at)) > 0;) at += n;
    close(ends[0]);
    CHECK_INT(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGILL || !strstr(said, text))
        fail_msg("mistake %d: status %x, \"%s\", want \"%s\"", change, status, said, text);
}

static void mistakes(void **state)
{
    (void)state;
    if (lacks_avx512()) skip();
    check_mistake(1, "#GP: palette 2");
    check_mistake(2, "#GP: tile 0 of 17 lines of 64 bytes");
    check_mistake(3, "#GP: tile 1 of 16 lines of 68 bytes");
    check_mistake(4, "#GP: tile 3 of 1 lines of 0 bytes");
    check_mistake(5, "#GP: there is no tile 8");
    check_mistake(6, "#GP: byte 5 of the configuration is not 0");
    check_mistake(7, "start row 1 is not emulated");
    check_mistake(10, "AMX, opcode 4b, tile 0: #UD: no configuration is loaded");
    check_mistake(11, "AMX, opcode 4b, tile 0: #UD: no configuration is loaded");
    for (int change = 12; change < 15; change++)
        check_mistake(change, "#UD: tile 3 is not configured");
    check_mistake(15, "#UD: two operands are one tile");
    check_mistake(16, "#UD: two operands are one tile");
    check_mistake(17, "#UD: tile 3 is not configured");
    check_mistake(18, "");
    check_mistake(19, "");
    check_mistake(20, "#UD: tile 1 has 15 lines, expected 16");
    check_mistake(21, "#UD: tile 2 has 15 lines, expected 16");
    check_mistake(22, "#UD: tile 2 has 60 bytes a line, expected 64");
    check_mistake(23, "#UD: tile 1 has 62 bytes a line");
}

int main(void)
{
    amx_emulate();
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(configurations),
                                       cmocka_unit_test(lines),    cmocka_unit_test(operands),
                                       cmocka_unit_test(threads),  cmocka_unit_test(mistakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    puts("no AMX for this processor or compiler: skipped");
    return 0;
}
#endif
