/* tests/gpu/emulator/ptx_machine/reach.cpp: loads, stores and atomics, each
 * within an allocation, a variable, or the argument, and aligned.
 * SPDX-License-Identifier: MIT */
#include "parse.h"

extern "C" bool fake_find(uint64_t p, uint64_t *from, uint64_t *to);

namespace ptx
{

namespace
{

struct Place {
    uint64_t from, to;
};
Place places[64]; /* of global memory, by some bits of an address */

bool is_global(const Warp &w, uint64_t address, unsigned bytes)
{
    Place &p = places[address >> 16 & 63];
    if (address >= p.from && address + bytes <= p.to) return true;
    if (fake_find(address, &p.from, &p.to)) return address + bytes <= p.to;
    p = {0, 0};
    for (const auto &g : w.kernel->globals) {
        uint64_t from = (uint64_t)(uintptr_t)g.data();
        if (address >= from && address + bytes <= from + g.size()) return true;
    }
    return false;
}

const char *const names[] = {"global", "shared", "local", "param"};

} // namespace

void forget_places() { memset(places, 0, sizeof places); }

char *reach_shared(Warp &w, int lane, uint64_t address, unsigned bytes, unsigned aligned)
{
    Block &b = *w.block;
    if (address % aligned)
        fail(w, lane, "shared address %#llx is no multiple of %u", (unsigned long long)address,
             aligned);
    bool good = address + bytes <= b.shared.size();
    for (unsigned i = 0; good && i < bytes; i++) good = b.is_variable[address + i];
    if (!good)
        fail(w, lane, "%u bytes at shared address %#llx are in no variable", bytes,
             (unsigned long long)address);
    return &b.shared[address];
}

char *reach_global(Warp &w, int lane, uint64_t address, unsigned bytes, unsigned aligned)
{
    if (!is_global(w, address, bytes))
        fail(w, lane, "%u bytes at global address %#llx are in no allocation", bytes,
             (unsigned long long)address);
    if (address % aligned)
        fail(w, lane, "global address %#llx is no multiple of %u", (unsigned long long)address,
             aligned);
    return (char *)(uintptr_t)address;
}

void wrote_shared(Warp &w, unsigned lane, unsigned address, unsigned bytes)
{
    if (w.block->unfenced.empty()) return;
    uint64_t who = (uint64_t)(w.number * LANES + lane) << 32 | (w.fences[lane] + 1);
    for (unsigned i = 0; i < bytes; i++) w.block->unfenced[address + i] = who;
}

char *reach(Warp &w, const Instruction &i, unsigned lane, uint64_t address, unsigned bytes)
{
    if (i.space == SHARED) return reach_shared(w, (int)lane, address, bytes, bytes);
    if (i.space == GLOBAL) return reach_global(w, (int)lane, address, bytes, bytes);
    char *at = nullptr;
    uint64_t offset = address - (i.space == PARAM ? PARAM_AT : LOCAL_AT);
    if (i.space == PARAM && offset + bytes <= w.kernel->param_bytes)
        at = (char *)arguments + offset;
    if (i.space == LOCAL && offset + bytes <= w.kernel->local_bytes)
        at = &w.local[lane * w.kernel->local_bytes + offset];
    if (!at)
        fail(w, (int)lane, "%u bytes at %s address %#llx are in no allocation", bytes,
             names[i.space], (unsigned long long)address);
    if (address % bytes)
        fail(w, (int)lane, "%s address %#llx is no multiple of %u", names[i.space],
             (unsigned long long)address, bytes);
    return at;
}

namespace
{

uint64_t read(const char *p, const Instruction &i)
{
    uint64_t v = 0;
    memcpy(&v, p, i.bytes);
    if (!i.is_signed) return v;
    unsigned unused = 64 - 8 * i.bytes;
    return (uint64_t)((int64_t)(v << unused) >> unused);
}

void load(Warp &w, const Instruction &i, unsigned mask)
{
    Row address;
    memcpy(&address, w.in(i, i.count), sizeof address); /* it may be a result too */
    each(mask, [&](unsigned l) {
        uint64_t at = address.lane[l] + (uint64_t)i.number;
        const char *p = reach(w, i, l, at, i.bytes * i.count);
        if (i.space == SHARED) note(w, l, (unsigned)at, i.bytes * i.count, 0);
        if (i.space == GLOBAL) note_global(w, at, i.bytes * i.count, 0);
        for (unsigned k = 0; k < i.count; k++) w.out(i, k)[l] = read(p + k * i.bytes, i);
    });
}

void store(Warp &w, const Instruction &i, unsigned mask)
{
    const uint64_t *address = w.in(i, 0);
    each(mask, [&](unsigned l) {
        uint64_t at = address[l] + (uint64_t)i.number;
        char *p = reach(w, i, l, at, i.bytes * i.count);
        char v[16];
        for (unsigned k = 0; k < i.count; k++) memcpy(v + k * i.bytes, &w.in(i, 1 + k)[l], i.bytes);
        unsigned bytes = i.bytes * i.count;
        int writes = memcmp(p, v, bytes) ? 2 : 1;
        if (i.space == GLOBAL) note_global(w, at, bytes, writes);
        if (i.space == SHARED) note(w, l, (unsigned)at, bytes, writes);
        if (i.space == SHARED) wrote_shared(w, l, (unsigned)at, bytes);
        memcpy(p, v, bytes);
    });
}

/* d = *p, *p = F(*p, b, c): d [p] b (c), as one */
template <class T, T (*F)(T, T, T)> void atomic(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *address = w.in(i, 1), *b = w.in(i, 2), *c = w.in(i, i.n - 1);
    each(mask, [&](unsigned l) {
        char *p = reach(w, i, l, address[l] + (uint64_t)i.number, sizeof(T));
        T old, fresh;
        memcpy(&old, p, sizeof old);
        fresh = F(old, get<T>(b[l]), get<T>(c[l]));
        memcpy(p, &fresh, sizeof fresh);
        d[l] = put<T>(old);
    });
}
template <class T> T plus(T old, T v, T) { return (T)(old + v); }
template <class T> T least(T old, T v, T) { return v < old ? v : old; }
template <class T> T most(T old, T v, T) { return v > old ? v : old; }
template <class T> T swap(T old, T compare, T v) { return old == compare ? v : old; }
template <class T> T exchange(T, T v, T) { return v; }
template <class T> T either(T old, T v, T) { return old | v; }

Do atomic_of(const Statement &s)
{
    const std::string &how = s.op[s.op.size() - 2];
    Type t = s.type();
    if (how == "add")
        return t == U32 || t == S32 ? atomic<uint32_t, plus>
               : t == U64           ? atomic<uint64_t, plus>
                                    : nullptr;
    if (how == "min")
        return t == S32 ? atomic<int32_t, least> : t == U32 ? atomic<uint32_t, least> : nullptr;
    if (how == "max")
        return t == S32 ? atomic<int32_t, most> : t == U32 ? atomic<uint32_t, most> : nullptr;
    if (how == "cas")
        return t == U32 ? atomic<uint32_t, swap> : t == U64 ? atomic<uint64_t, swap> : nullptr;
    if (how == "exch")
        return t == U32   ? atomic<uint32_t, exchange>
               : t == U64 ? atomic<uint64_t, exchange>
                          : nullptr;
    if (how == "or") return t == U32 ? atomic<uint32_t, either> : nullptr;
    return nullptr;
}

void nothing(Warp &, const Instruction &, unsigned) {}

} // namespace

bool decode_memory(const Statement &s, Instruction *i)
{
    const std::string &what = s.op[0];
    if (what == "membar" || what == "griddepcontrol") i->run = nothing;
    if (what != "ld" && what != "st" && what != "atom") return i->run;
    Type t = s.type();
    i->bytes = (uint8_t)bytes_of(t);
    i->count = s.has("v4") ? 4 : s.has("v2") ? 2 : 1;
    i->is_signed = t == S8 || t == S16 || t == S32;
    i->space = s.has("shared") ? SHARED : s.has("local") ? LOCAL : s.has("param") ? PARAM : GLOBAL;
    static const char *const known[] = {"ld", "st",     "atom",   "v2",    "v4",
                                        "nc", "global", "shared", "local", "param"};
    for (size_t k = 0; k + (what == "atom" ? 2 : 1) < s.op.size(); k++) {
        bool found = false;
        for (const char *name : known) found = found || s.op[k] == name;
        if (!found) return false;
    }
    if (s.addresses.size() != 1 || !i->bytes || i->bytes * i->count > 16) return false;
    if (what == "atom")
        i->run = s.rows.size() >= 3 ? atomic_of(s) : nullptr;
    else if (s.rows.size() == i->count + 1u)
        i->run = what == "ld" ? load : store;
    return i->run;
}

} // namespace ptx
