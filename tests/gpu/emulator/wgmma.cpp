/* tests/gpu/emulator/wgmma.cpp: products of warpgroups, a warp's part of each:
 * computed when they are asked for, or as late as they may be, when their group is
 * waited for. Source: PTX ISA, sections on wgmma: matrix descriptor, strides,
 * swizzling modes, register fragments of D.
 *
 * Invariants: a product's operands are read, and its sums written, only while
 * it is computed; so sums that are read too early are old ones.
 * SPDX-License-Identifier: MIT */
#include "internal.h"
#include "ptx_wgmma.h"

#include <limits.h>

namespace cuda_on_cpu
{

enum { SHARED_AT = 1024 + 16, K = 16, ROWS = 16, MOST_COLUMNS = 256 };

struct Pending {
    Product kind;
    unsigned long long a, b;
    float *d[32];
    int group;
};
struct Group { /* a warp's */
    std::vector<Pending> pending;
    int committed;
    bool fenced;
};
static Group of_warp[MOST / 32];
static bool written[MOST]; /* by cp.async, since the thread's fence */

static Group &mine() { return of_warp[self->warp - warps]; }

void products_forget()
{
    memset(written, 0, sizeof written);
    for (Group &g : of_warp) g = {};
}
bool products_pending(const Fiber *f) { return !of_warp[f->warp - warps].pending.empty(); }
void products_written(size_t thread) { written[thread] = products_used = true; }

/* Bits of 8 elements of an operand, which are neighbours in memory: of a line
 * (row of a, column of b) from k on, or `across` lines from that one on, at k.
 * Where they begin is a multiple of 8. */
static const uint16_t *piece(unsigned long long descriptor, bool across, int line, int k)
{
    unsigned kind = (unsigned)(descriptor >> 62),
             width = kind ? 16u >> kind : 0; /* 16 bytes each */
    unsigned at = (unsigned)(descriptor & 0x3fff) << 4;
    unsigned leading = (unsigned)(descriptor >> 16 & 0x3fff) << 4,
             stride = (unsigned)(descriptor >> 32 & 0x3fff) << 4;
    unsigned l = (unsigned)line, depth = (unsigned)k;
    if (!width || descriptor & 0x3fffc000c000c000ull)
        fail("wgmma: a descriptor without XOR of pieces, or with bits that mean nothing");
    if (across)
        at += l % (width * 8) * 2 + l / (width * 8) * leading + depth % 8 * width * 16 +
              depth / 8 * stride;
    else
        at += l % 8 * width * 16 + l / 8 * stride + depth * 2;
    at ^= (at >> 7 & (width - 1)) << 4;
    if (at < SHARED_AT || at + 16 > SHARED_AT + block.dynamic_bytes)
        fail("wgmma: an operand outside of shared memory");
    return (const uint16_t *)((const char *)block.dynamic + (at - SHARED_AT));
}

/* K elements of each of some lines, to to[line * line_step + k * k_step]. */
static void read_lines(float *to, int line_step, int k_step, unsigned long long descriptor,
                       bool across, int first, int lines, bool bf16)
{
    int rows = across ? K : lines, row_step = across ? k_step : line_step;
    int columns = across ? lines : K, column_step = across ? line_step : k_step;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j += 8) {
            const uint16_t *p = across ? piece(descriptor, true, first + j, i)
                                       : piece(descriptor, false, first + i, j);
            for (int e = 0; e < 8; e++)
                to[i * row_step + (j + e) * column_step] = bf16 ? __bfloat162float({p[e]})
                                                                : __half2float({p[e]});
        }
}

void add_products(float *c, const float *a, const float *b, int k, int columns, int step)
{
    typedef float Four __attribute__((vector_size(16), aligned(4)));
    for (int i = 0; i < ROWS; i += 4)
        for (int j = 0; j < columns; j += 8) {
            Four sum[4][2];
            UNROLLED
            for (int r = 0; r < 8; r++)
                sum[r / 2][r % 2] = *(Four *)&c[(i + r / 2) * step + j + r % 2 * 4];
            for (int l = 0; l < k; l++) {
                Four left = *(const Four *)&b[l * step + j],
                     right = *(const Four *)&b[l * step + j + 4];
                UNROLLED
                for (int r = 0; r < 4; r++)
                    sum[r][0] += a[(i + r) * k + l] * left, sum[r][1] += a[(i + r) * k + l] * right;
            }
            UNROLLED
            for (int r = 0; r < 8; r++)
                *(Four *)&c[(i + r / 2) * step + j + r % 2 * 4] = sum[r / 2][r % 2];
        }
}

/* Calls, so that AddressSanitizer sees a lane's sums. */
static void *(*volatile copy_sums)(void *, const void *, size_t) = memcpy;

static void compute(const Pending &p, unsigned warp)
{
    static float a[ROWS][K], b[K][MOST_COLUMNS], c[ROWS][MOST_COLUMNS];
    float of_lane[MOST_COLUMNS / 2];
    int n = p.kind.columns;
    size_t bytes = (size_t)n / 2 * sizeof(float);
    read_lines(a[0], K, 1, p.a, p.kind.a_across, (int)warp % 4 * ROWS, ROWS, p.kind.bf16);
    read_lines(b[0], 1, MOST_COLUMNS, p.b, p.kind.b_across, 0, n, p.kind.bf16);
    memset(c, 0, sizeof c);
    add_products(c[0], a[0], b[0], K, n, MOST_COLUMNS);
    for (int l = 0; l < 32; l++) {
        copy_sums(of_lane, p.d[l], bytes);
        for (int j = 0; j < n / 8; j++) UNROLLED
        for (int e = 0; e < 4; e++)
            of_lane[j * 4 + e] += c[l / 4 + e / 2 * 8][j * 8 + l % 4 * 2 + e % 2];
        copy_sums(p.d[l], of_lane, bytes);
    }
}

/* The warp's products of groups before that one, in order. */
static void compute_until(int group)
{
    Group &g = mine();
    size_t n = 0;
    for (; n < g.pending.size() && g.pending[n].group < group; n++)
        compute(g.pending[n], (unsigned)(self->warp - warps));
    g.pending.erase(g.pending.begin(), g.pending.begin() + (ptrdiff_t)n);
}

static void product_start(void **const *p, unsigned)
{
    Pending now = {*(const Product *)p[0][3],
                   *(unsigned long long *)p[0][1],
                   *(unsigned long long *)p[0][2],
                   {},
                   mine().committed};
    if (!mine().fenced) fail("wgmma: without wgmma.fence");
    for (unsigned i = 0; i < n_threads; i++)
        if (written[i]) fail("wgmma: shared memory was written without fence.proxy.async");
    for (int l = 0; l < 32; l++) {
        if (*(unsigned long long *)p[l][1] != now.a || *(unsigned long long *)p[l][2] != now.b)
            fail("wgmma: lanes with different descriptors");
        now.d[l] = (float *)p[l][0];
    }
    mine().pending.push_back(now);
    if (order == BACKWARD || (order == RANDOM && draw(2))) compute_until(INT_MAX);
}

void product(const Product &kind, float *d, unsigned long long a, unsigned long long b, int line)
{
    call(product_start, "wgmma", line, d, &a, &b, &kind);
}

void products_fence(int line)
{
    call([](void **const *, unsigned) { mine().fenced = products_used = true; }, "wgmma.fence",
         line, nullptr);
}

void products_commit(int line)
{
    call([](void **const *,
            unsigned) { mine().committed++, mine().fenced = false, products_used = true; },
         "wgmma.commit_group", line, nullptr);
}

void products_wait(int groups_left, int line)
{
    call([](void **const *p, unsigned) { compute_until(mine().committed - *(const int *)p[0][0]); },
         "wgmma.wait_group", line, &groups_left);
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

unsigned shared_address(const void *p)
{
    size_t at = (size_t)((const char *)p - (const char *)block.dynamic);
    if (at > block.dynamic_bytes) fail("an address that is not of dynamic shared memory");
    return (unsigned)at + SHARED_AT;
}

void fence_proxy_async() { written[self - fibers] = false; }
