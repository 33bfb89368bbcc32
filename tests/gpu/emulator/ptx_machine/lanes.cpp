/* tests/gpu/emulator/ptx_machine/lanes.cpp: instructions of several lanes:
 * shuffles, votes, products of tensor cores, ldmatrix; and cp.async. Which lane
 * holds which element: PTX ISA, matrix fragments.
 * SPDX-License-Identifier: MIT */
#include "parse.h"

#include "../types.h"

namespace ptx
{

namespace
{

enum Shuffle { IDX, UP, DOWN, BFLY };

template <Shuffle HOW> void shuffle(Warp &w, const Instruction &i, unsigned mask)
{
    Row d, found;
    unsigned has_p = i.n == 6;
    const uint64_t *a = w.in(i, 1 + has_p), *b = w.in(i, 2 + has_p), *c = w.in(i, 3 + has_p);
    each(mask, [&](unsigned l) {
        int lane = (int)l, by = (int)(b[l] & 31), clamp = (int)(c[l] & 31),
            segment = (int)(c[l] >> 8 & 31);
        int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        int from = HOW == IDX    ? first | (by & ~segment)
                   : HOW == UP   ? lane - by
                   : HOW == DOWN ? lane + by
                                 : lane ^ by;
        bool good = HOW == UP ? from >= last : from <= last;
        if (!good) from = lane;
        d.lane[l] = mask >> from & 1 ? (uint32_t)a[from] : (uint32_t)GARBAGE;
        found.lane[l] = good;
    });
    each(mask, [&](unsigned l) {
        w.out(i, 0)[l] = d.lane[l];
        if (has_p) w.out(i, 1)[l] = found.lane[l];
    });
}

void ballot(Warp &w, const Instruction &i, unsigned mask)
{
    unsigned votes = 0;
    each(mask,
         [&](unsigned l) { votes |= ((unsigned)(w.in(i, 1)[l] & 1) ^ (unsigned)i.number) << l; });
    each(mask, [&](unsigned l) { w.out(i, 0)[l] = votes; });
}

void warp_barrier(Warp &w, const Instruction &, unsigned mask)
{
    uint32_t now = ++w.block->when;
    each(mask, [&](unsigned l) { w.synced[l] = now; });
}

/* ---- tensor cores ---- */

template <int K> void multiply(float (*c)[8], const float (*a)[K], const float (*b)[8])
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
}

void read_sums(Warp &w, const Instruction &i, float (*c)[8], unsigned at)
{
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned k = 0; k < 4; k++)
            c[l / 4 + k / 2 * 8][l % 4 * 2 + k % 2] = get<float>(w.in(i, at + k)[l]);
}
void write_sums(Warp &w, const Instruction &i, const float (*c)[8])
{
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned k = 0; k < 4; k++)
            w.out(i, k)[l] = put(c[l / 4 + k / 2 * 8][l % 4 * 2 + k % 2]);
}

template <bool BF16> float value_of(uint64_t bits)
{
    return BF16 ? __bfloat162float({(uint16_t)bits}) : __half2float({(uint16_t)bits});
}

template <bool BF16> void mma_16816(Warp &w, const Instruction &i, unsigned)
{
    float a[16][16], b[16][8], c[16][8];
    for (unsigned l = 0; l < LANES; l++) {
        unsigned g = l / 4, t = l % 4;
        for (unsigned k = 0; k < 8; k++)
            a[g + k / 2 % 2 * 8][t * 2 + k % 2 + k / 4 * 8] = value_of<BF16>(
                w.in(i, 4 + k / 2)[l] >> k % 2 * 16);
        for (unsigned k = 0; k < 4; k++)
            b[t * 2 + k % 2 + k / 2 * 8][g] = value_of<BF16>(w.in(i, 8 + k / 2)[l] >> k % 2 * 16);
    }
    read_sums(w, i, c, 10);
    multiply<16>(c, a, b);
    write_sums(w, i, c);
}

/* the last 13 bits of a and b do not count */
void mma_1688(Warp &w, const Instruction &i, unsigned)
{
    float a[16][8], b[8][8], c[16][8];
    for (unsigned l = 0; l < LANES; l++) {
        unsigned g = l / 4, t = l % 4;
        for (unsigned k = 0; k < 4; k++)
            a[g + k % 2 * 8][t + k / 2 * 4] = get<float>(w.in(i, 4 + k)[l] & 0xffffe000u);
        for (unsigned k = 0; k < 2; k++)
            b[t + k * 4][g] = get<float>(w.in(i, 8 + k)[l] & 0xffffe000u);
    }
    read_sums(w, i, c, 10);
    multiply<8>(c, a, b);
    write_sums(w, i, c);
}

/* Lane l gives the address of row l % 8 of matrix l / 8. */
template <bool TRANS> void ldmatrix(Warp &w, const Instruction &i, unsigned)
{
    uint16_t rows[LANES][8];
    for (unsigned l = 0; l < LANES; l++) {
        uint64_t at = w.in(i, 4)[l] + (uint64_t)i.number;
        memcpy(rows[l], reach_shared(w, (int)l, at, 16, 16), 16);
        note(w, l, (unsigned)at, 16, 0);
    }
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned m = 0; m < 4; m++) {
            uint32_t v = 0;
            for (unsigned e = 0; e < 2; e++) {
                unsigned r = TRANS ? l % 4 * 2 + e : l / 4, c = TRANS ? l / 4 : l % 4 * 2 + e;
                v |= (uint32_t)rows[m * 8 + r][c] << 16 * e;
            }
            w.out(i, m)[l] = v;
        }
}

/* ---- cp.async: it arrives at once, or when its group is waited for ---- */

void arrive(Warp &w, unsigned lane, Copy *c)
{
    if (c->from) memcpy(c->bytes, c->from, (size_t)c->size);
    char *to = reach_shared(w, (int)lane, c->to, 16, 16);
    memcpy(to, c->bytes, 16);
    c->from = nullptr;
}

void copy(Warp &w, const Instruction &i, unsigned mask)
{
    each(mask, [&](unsigned l) {
        Copy c = {(unsigned)w.in(i, 0)[l], {}, nullptr, 16, w.groups[l]};
        if (i.n == 4) c.size = (int)w.in(i, 3)[l];
        if (c.size < 0 || c.size > 16) fail(w, (int)l, "%d bytes of 16", c.size);
        reach_shared(w, (int)l, c.to, 16, 16);
        uint64_t from = w.in(i, 1)[l];
        if (from % 16)
            fail(w, (int)l, "global address %#llx is no multiple of 16", (unsigned long long)from);
        if (c.size) c.from = reach_global(w, (int)l, from, (unsigned)c.size, 1);
        note(w, l, c.to, 16, 2);
        if (c.size) note_global(w, from, (unsigned)c.size, 0);
        if (!arrives_late()) {
            arrive(w, l, &c);
            c.size = -1;
        }
        w.copies[l].push_back(c);
    });
}

void copies_commit(Warp &w, const Instruction &, unsigned mask)
{
    each(mask, [&](unsigned l) { w.groups[l]++; });
}

void copies_wait(Warp &w, const Instruction &i, unsigned mask)
{
    each(mask, [&](unsigned l) {
        std::vector<Copy> kept;
        for (Copy &c : w.copies[l]) {
            if (c.group >= w.groups[l] - (int)i.number) {
                kept.push_back(c);
                continue;
            }
            if (c.size >= 0) arrive(w, l, &c);
            note(w, l, c.to, 16, 2);
            wrote_shared(w, l, c.to, 16);
        }
        w.copies[l].swap(kept);
    });
}

void fence(Warp &w, const Instruction &, unsigned mask)
{
    each(mask, [&](unsigned l) { w.fences[l]++; });
}

Do copy_of(const Statement &s, Instruction *i)
{
    if (s.op[1] != "async" || s.op.size() < 3) return nullptr;
    if (s.op[2] == "commit_group") return copies_commit;
    if (s.op[2] == "wait_group" && s.numbers.size() == 1)
        return i->number = s.numbers[0], copies_wait;
    bool known = s.op.size() == 5 && (s.op[2] == "cg" || s.op[2] == "ca") && s.op[3] == "shared" &&
                 s.op[4] == "global" && s.addresses.size() == 2 && !s.numbers.empty() &&
                 s.numbers[0] == 16;
    for (const auto &a : s.addresses) known = known && !a.offset;
    return known ? copy : nullptr;
}

Do product_of_warp(const Statement &s)
{
    std::string name;
    for (const auto &part : s.op) name += (name.empty() ? "" : ".") + part;
    const std::vector<unsigned> sizes = {4, 4, 2, 4};
    if (s.sizes != sizes) return nullptr;
    return name == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"     ? mma_16816<false>
           : name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" ? mma_16816<true>
           : name == "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"  ? mma_1688
                                                                           : nullptr;
}

Do shuffle_of(const Statement &s)
{
    if (s.op.size() != 4 || s.op[1] != "sync" || s.op[3] != "b32" || s.rows.size() < 5)
        return nullptr;
    return s.op[2] == "idx"    ? shuffle<IDX>
           : s.op[2] == "up"   ? shuffle<UP>
           : s.op[2] == "down" ? shuffle<DOWN>
           : s.op[2] == "bfly" ? shuffle<BFLY>
                               : nullptr;
}

} // namespace

bool decode_lanes(const Statement &s, Instruction *i)
{
    const std::string &what = s.op[0];
    bool warp = s.op.size() > 1 && s.op[1] == "warp";
    if (what == "bar" && !warp) {
        i->control = BARRIER;
        i->run = fence; /* not called */
        return s.op[1] == "sync" && s.numbers.size() == 1 && s.numbers[0] == 0;
    }
    if (what == "cp") i->run = copy_of(s, i);
    if (what == "cp") return i->run;
    if (what == "fence") {
        i->run = fence;
        return s.op.size() == 4 && s.op[1] == "proxy" && s.op[2] == "async" &&
               s.op[3] == "shared::cta";
    }
    i->control = MEETING;
    if (what == "bar" || what == "vote" || what == "shfl") {
        if (s.rows.empty()) return false;
        i->members = s.rows.back();
    }
    if (what == "bar" && s.op[2] == "sync") i->run = warp_barrier;
    if (what == "vote" && s.has("ballot") && s.rows.size() == 3)
        i->run = ballot, i->number = s.negated;
    if (what == "shfl") i->run = shuffle_of(s);
    if (what == "mma") i->run = product_of_warp(s);
    if (what == "ldmatrix" && s.has("x4") && s.has("shared") && s.rows.size() == 5)
        i->run = s.has("trans") ? ldmatrix<true> : ldmatrix<false>;
    if (what == "wgmma") i->run = product_of(s, i);
    return i->run;
}

} // namespace ptx
