/* tests/gpu/emulator/ptx_machine/products.cpp: wgmma, a warp's part of each:
 * computed at once, or when its group is waited for. Source: PTX ISA, sections
 * on wgmma: matrix descriptor, strides, swizzling modes, register fragments of D.
 *
 * Invariants: operands are read, and sums written, only while a product is
 * computed. An operand was written before its writer's fence.proxy.async.
 * SPDX-License-Identifier: MIT */
#include "parse.h"

#include <stdio.h>

#include "../types.h"

namespace ptx
{

namespace
{

enum { K = 16, ROWS = 16, MOST_COLUMNS = 256 };
enum : long long { COLUMNS = 0x1ff, A_ACROSS = 0x200, B_ACROSS = 0x400, OF_BF16 = 0x800 };

struct Operand {
    uint64_t descriptor;
    bool across; /* its lines are across k */
};

/* Address of 8 elements, which are neighbours in memory: of a line (row of a,
 * column of b) from k on, or across lines from that one on, at k. */
unsigned address_of(Warp &w, const Operand &o, int line, int k)
{
    uint64_t d = o.descriptor;
    unsigned kind = (unsigned)(d >> 62), width = kind ? 16u >> kind : 0; /* of 16 bytes each */
    unsigned at = (unsigned)(d & 0x3fff) << 4, leading = (unsigned)(d >> 16 & 0x3fff) << 4,
             stride = (unsigned)(d >> 32 & 0x3fff) << 4, l = (unsigned)line, depth = (unsigned)k;
    if (!width || d & 0x3fffc000c000c000ull)
        fail(w, -1, "descriptor %#llx: without XOR of pieces, or with bits that mean nothing",
             (unsigned long long)d);
    if (o.across)
        at += l % (width * 8) * 2 + l / (width * 8) * leading + depth % 8 * width * 16 +
              depth / 8 * stride;
    else
        at += l % 8 * width * 16 + l / 8 * stride + depth * 2;
    return at ^ (at >> 7 & (width - 1)) << 4;
}

/* f(line, k, 8 neighbours) for all of the operand's lines from first on */
template <class F> void visit(Warp &w, const Operand &o, int first, int lines, F f)
{
    int rows = o.across ? K : lines, columns = o.across ? lines : K;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j += 8) {
            int line = o.across ? first + j : first + i, k = o.across ? i : j;
            unsigned at = address_of(w, o, line, k);
            f(line - first, k, at, reach_shared(w, -1, at, 16, 16));
        }
}

Operand left(const Product &p) { return {p.a, (p.what->number & A_ACROSS) != 0}; }
Operand right(const Product &p) { return {p.b, (p.what->number & B_ACROSS) != 0}; }
int first_row(const Warp &w) { return (int)(w.number % 4) * ROWS; }

/* Its operands are read from now on. */
void check_operands(Warp &w, const Product &p)
{
    auto check = [&](int, int, unsigned at, const char *) {
        note(w, 0, at, 16, 0);
        for (unsigned i = at; i < at + 16; i++) {
            uint64_t who = w.block->unfenced[i];
            unsigned thread = (unsigned)(who >> 32);
            if (who && w.block->warps[thread / LANES]->fences[thread % LANES] < (uint32_t)who)
                fail(w, -1, "shared address %#x was written by thread %u without fence.proxy.async",
                     i, thread);
        }
    };
    visit(w, left(p), first_row(w), ROWS, check);
    visit(w, right(p), 0, (int)(p.what->number & COLUMNS), check);
}

void compute(Warp &w, const Product &p)
{
    static float a[ROWS][K], b[K][MOST_COLUMNS], c[ROWS][MOST_COLUMNS];
    int n = (int)(p.what->number & COLUMNS);
    bool bf16 = p.what->number & OF_BF16;
    auto read = [&](const Operand &o, int first, int lines, float *to, int of_line, int of_k) {
        visit(w, o, first, lines, [&](int line, int k, unsigned at, const char *from) {
            uint16_t v[8];
            memcpy(v, from, 16);
            note(w, 0, at, 16, 0);
            for (int e = 0; e < 8; e++)
                to[(o.across ? line + e : line) * of_line + (o.across ? k : k + e) * of_k] =
                    bf16 ? __bfloat162float({v[e]}) : __half2float({v[e]});
        });
    };
    read(left(p), first_row(w), ROWS, a[0], K, 1);
    read(right(p), 0, n, b[0], 1, MOST_COLUMNS);
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < n; j++) c[i][j] = 0;
        for (int k = 0; k < K; k++)
            for (int j = 0; j < n; j++) c[i][j] += a[i][k] * b[k][j];
        for (int j = 0; j < n; j++) {
            uint64_t *d = w.out(*p.what, (unsigned)(j / 8 * 4 + i / 8 * 2 + j % 2)) + i % 8 * 4 +
                          j % 8 / 2;
            *d = put(p.adds ? get<float>(*d) + c[i][j] : c[i][j]);
        }
    }
}

/* The warp's products of groups before that one, in order. */
void compute_until(Warp &w, int group)
{
    size_t n = 0;
    for (; n < w.products.size() && w.products[n].group < group; n++)
        if (!w.products[n].done) compute(w, w.products[n]);
    w.products.erase(w.products.begin(), w.products.begin() + (ptrdiff_t)n);
}

void product(Warp &w, const Instruction &i, unsigned)
{
    const uint64_t *a = w.in(i, i.n - 7), *b = w.in(i, i.n - 6), *adds = w.in(i, i.n - 5);
    for (unsigned l = 1; l < LANES; l++)
        if (a[l] != a[0] || b[l] != b[0] || adds[l] != adds[0])
            fail(w, (int)l, "lanes with different descriptors");
    if (!w.products_fenced) fail(w, -1, "without wgmma.fence since its sums were touched");
    Product p = {&i, a[0], b[0], (adds[0] & 1) != 0, w.products_committed, false};
    check_operands(w, p);
    w.products.push_back(p);
    for (Product &each : w.products) {
        if (arrives_late()) break; /* those after it too */
        if (!each.done) compute(w, each);
        each.done = true;
    }
}

void products_fence(Warp &w, const Instruction &, unsigned) { w.products_fenced = true; }
void products_commit(Warp &w, const Instruction &, unsigned)
{
    w.products_committed++;
    w.products_fenced = false;
}
void products_wait(Warp &w, const Instruction &i, unsigned)
{
    compute_until(w, w.products_committed - (int)i.number);
}

} // namespace

void check_sums(Warp &w, const Instruction &i)
{
    if (i.run == product) return;
    w.products_fenced = false;
    for (const Product &p : w.products)
        for (unsigned k = 0; k + 7 < p.what->n; k++)
            for (unsigned j = 0; j < i.n; j++)
                if (w.kernel->pool[i.first + j] == w.kernel->pool[p.what->first + k])
                    fail(w, -1, "it touches a sum of a wgmma that was not waited for (line %d)",
                         p.what->line);
}

Do product_of(const Statement &s, Instruction *i)
{
    if (s.op[1] == "fence") return products_fence;
    if (s.op[1] == "commit_group") return products_commit;
    if (s.op[1] == "wait_group" && s.numbers.size() == 1)
        return i->number = s.numbers[0], products_wait;
    if (s.op.size() != 8 || s.op[1] != "mma_async" || s.op[5] != "f32" || s.op[6] != s.op[7])
        return nullptr;
    int columns = 0, used = 0;
    if (sscanf(s.op[4].c_str(), "m64n%dk16%n", &columns, &used) != 1 ||
        (size_t)used != s.op[4].size())
        return nullptr;
    if (columns <= 0 || columns > MOST_COLUMNS || s.sizes.size() != 8 ||
        s.sizes[0] != (unsigned)columns / 2)
        return nullptr;
    if (s.numbers.size() != 4 || s.numbers[0] != 1 || s.numbers[1] != 1) return nullptr;
    bool bf16 = s.op[6] == "bf16";
    if (!bf16 && s.op[6] != "f16") return nullptr;
    i->number = columns + !!s.numbers[2] * A_ACROSS + !!s.numbers[3] * B_ACROSS + bf16 * OF_BF16;
    return product;
}

} // namespace ptx
