/* tests/gpu/emulator/ptx_machine/numbers.cpp: arithmetic of lanes. Functions
 * that PTX calls approximate are exact here, rounded once.
 * SPDX-License-Identifier: MIT */
#include "parse.h"

#include <fenv.h>
#include <limits>
#include <type_traits>

#include "../types.h"

namespace ptx
{

namespace
{

template <class T> using Unsigned = typename std::make_unsigned<T>::type;

/* ---- of one, two, three values ---- */

template <class D, class S, D (*F)(S)> void unary(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *a = w.in(i, 1);
    each(mask, [=](unsigned l) { d[l] = put<D>(F(get<S>(a[l]))); });
}
template <class D, class S, class S2, D (*F)(S, S2)>
void binary(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *a = w.in(i, 1), *b = w.in(i, 2);
    each(mask, [=](unsigned l) { d[l] = put<D>(F(get<S>(a[l]), get<S2>(b[l]))); });
}
template <class D, class S, class S3, D (*F)(S, S, S3)>
void ternary(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *a = w.in(i, 1), *b = w.in(i, 2), *c = w.in(i, 3);
    each(mask, [=](unsigned l) { d[l] = put<D>(F(get<S>(a[l]), get<S>(b[l]), get<S3>(c[l]))); });
}
/* With another rounding of floats; volatile, so that the sum is made in it. */
template <class T, int MODE, int OP> void rounded(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *a = w.in(i, 1), *b = w.in(i, 2), *c = w.in(i, i.n - 1);
    fesetround(MODE);
    each(mask, [=](unsigned l) {
        volatile T x = get<T>(a[l]), y = get<T>(b[l]), z = get<T>(c[l]), r;
        if (OP == 3)
            r = std::is_same<T, float>::value ? (T)fmaf((float)x, (float)y, (float)z)
                                              : (T)fma((double)x, (double)y, (double)z);
        else
            r = OP == 0 ? x + y : x * y;
        d[l] = put<T>(r);
    });
    fesetround(FE_TONEAREST);
}

/* ---- integers: of unsigned types unless the sign counts ---- */

template <class T> T add(T a, T b) { return (T)(a + b); }
template <class T> T sub(T a, T b) { return (T)(a - b); }
template <class T> T mul_lo(T a, T b) { return (T)((uint64_t)a * (uint64_t)b); }
template <class T> T mul_hi(T a, T b)
{
    typedef
        typename std::conditional<std::is_signed<T>::value, __int128, unsigned __int128>::type W;
    return (T)((W)a * (W)b >> 8 * sizeof(T));
}
template <class T> T mad_lo(T a, T b, T c) { return (T)((uint64_t)a * (uint64_t)b + (uint64_t)c); }
template <class T, class W> W mul_wide(T a, T b) { return (W)((W)a * (W)b); }
template <class T, class W> W mad_wide(T a, T b, W c)
{
    return (W)((Unsigned<W>)((W)a * (W)b) + (Unsigned<W>)c);
}
/* By 0: PTX leaves it open; GPUs give all ones. */
template <class T> T divide(T a, T b)
{
    if (!b) return (T)-1;
    if (std::is_signed<T>::value && b == (T)-1) return (T)(0 - (Unsigned<T>)a);
    return (T)(a / b);
}
template <class T> T rest(T a, T b)
{
    if (!b) return a;
    if (std::is_signed<T>::value && b == (T)-1) return 0;
    return (T)(a % b);
}
template <class T> T least(T a, T b) { return b < a ? b : a; }
template <class T> T most(T a, T b) { return b > a ? b : a; }
template <class T> T negative(T a) { return (T)(0 - a); }
template <class T> T all_not(T a) { return (T)~a; }
template <class T> T bit_and(T a, T b) { return a & b; }
template <class T> T bit_or(T a, T b) { return a | b; }
template <class T> T bit_xor(T a, T b) { return a ^ b; }
template <class T> T shift_left(T a, uint32_t n)
{
    return n < 8 * sizeof(T) ? (T)((uint64_t)a << n) : (T)0;
}
template <class T> T shift_right(T a, uint32_t n)
{
    const uint32_t bits = 8 * sizeof(T);
    return std::is_signed<T>::value ? (T)(a >> (n < bits ? n : bits - 1))
           : n < bits               ? (T)(a >> n)
                                    : (T)0;
}
uint64_t not_pred(uint64_t a) { return !(a & 1); }
uint64_t and_pred(uint64_t a, uint64_t b) { return a & b & 1; }
uint64_t or_pred(uint64_t a, uint64_t b) { return (a | b) & 1; }
uint64_t xor_pred(uint64_t a, uint64_t b) { return (a ^ b) & 1; }
template <class T> uint32_t ones(T a) { return (uint32_t)__builtin_popcountll(a); }
template <class T> uint32_t zeros_left(T a)
{
    return a ? (uint32_t)__builtin_clzll(a) - (64 - 8 * sizeof(T)) : 8 * sizeof(T);
}
template <class T> T same(T a) { return a; }

template <class T> void insert_bits(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *a = w.in(i, 1), *b = w.in(i, 2), *c = w.in(i, 3), *n = w.in(i, 4);
    const unsigned bits = 8 * sizeof(T);
    each(mask, [=](unsigned l) {
        unsigned at = c[l] & 0xff, length = n[l] & 0xff;
        T ones = length >= bits ? (T) ~(T)0 : (T)(((T)1 << length) - 1);
        T field = at < bits ? (T)(ones << at) : (T)0,
          value = at < bits ? (T)(get<T>(a[l]) << at) : (T)0;
        d[l] = (get<T>(b[l]) & (T)~field) | (value & field);
    });
}
uint32_t permute(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned which = c >> 4 * i & 15;
        uint32_t byte = (uint32_t)(bytes >> 8 * (which & 7)) & 0xff;
        if (which & 8) byte = byte & 0x80 ? 0xff : 0;
        d |= byte << 8 * i;
    }
    return d;
}

/* add.cc, addc, sub.cc, subc, mad.lo.cc, madc.lo, madc.hi, of 32 bits */
template <bool PRODUCT, bool HIGH, bool MINUS, bool TAKES, bool LEAVES>
void with_carry(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0), *carry = w.row(CARRY);
    const uint64_t *a = w.in(i, 1), *b = w.in(i, 2), *c = w.in(i, i.n - 1);
    each(mask, [=](unsigned l) {
        uint64_t x = (uint32_t)a[l], y = (uint32_t)b[l];
        if (PRODUCT) x = HIGH ? x * y >> 32 : (uint32_t)(x * y), y = (uint32_t)c[l];
        uint64_t in = TAKES ? carry[l] & 1 : 0, r = MINUS ? x - y - in : x + y + in;
        if (LEAVES) carry[l] = r >> 32 & 1;
        d[l] = (uint32_t)r;
    });
}

/* ---- floats ---- */

template <class T> T fused(T a, T b, T c)
{
    return std::is_same<T, float>::value ? (T)fmaf((float)a, (float)b, (float)c)
                                         : (T)fma((double)a, (double)b, (double)c);
}
template <class T> T mul(T a, T b) { return a * b; }
template <class T> T quotient(T a, T b) { return a / b; }
float quotient_nearly(float a, float b)
{
    if (fabsf(b) > 0x1p126f && fabsf(b) < INFINITY)
        return isinf(a) ? NAN : copysignf(0, a) * copysignf(1, b);
    return a / b;
}
template <class T> T reciprocal(T a) { return 1 / a; }
template <class T> T root(T a)
{
    return std::is_same<T, float>::value ? (T)sqrtf((float)a) : (T)sqrt((double)a);
}
template <class T> T flip(T a) { return -a; }
template <class T> T absolute(T a) { return a < 0 || (a == 0 && std::signbit(a)) ? -a : a; }
float flush(float a) { return fabsf(a) < 0x1p-126f ? copysignf(0, a) : a; }
float power_flushed(float a) { return flush(exp2f(flush(a))); }
float power(float a) { return exp2f(a); }
float reciprocal_flushed(float a) { return flush(1 / flush(a)); }
/* the low half of its result is zeros */
double reciprocal_nearly(double a)
{
    if (fabs(a) < 0x1p-1022) a = copysign(0, a);
    return get<double>(put<double>(1 / a) & 0xffffffff00000000u);
}
template <class T> T sign_of(T a, T b)
{
    return std::is_same<T, float>::value ? (T)copysignf((float)b, (float)a)
                                         : (T)copysign((double)b, (double)a);
}
/* a number if one of them is; -0 is below 0 */
template <class T> T least_float(T a, T b)
{
    if (a != a) return b == b ? b : (T)NAN;
    return b != b || a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T> T most_float(T a, T b)
{
    if (a != a) return b == b ? b : (T)NAN;
    return b != b || a > b || (a == b && !std::signbit(a)) ? a : b;
}

/* ---- comparisons ---- */

template <class T> uint64_t eq(T a, T b) { return a == b; }
template <class T> uint64_t ne(T a, T b) { return a < b || a > b; }
template <class T> uint64_t lt(T a, T b) { return a < b; }
template <class T> uint64_t le(T a, T b) { return a <= b; }
template <class T> uint64_t gt(T a, T b) { return a > b; }
template <class T> uint64_t ge(T a, T b) { return a >= b; }
template <class T> uint64_t equ(T a, T b) { return !(a < b || a > b); }
template <class T> uint64_t neu(T a, T b) { return a != b; }
template <class T> uint64_t ltu(T a, T b) { return !(a >= b); }
template <class T> uint64_t leu(T a, T b) { return !(a > b); }
template <class T> uint64_t gtu(T a, T b) { return !(a <= b); }
template <class T> uint64_t geu(T a, T b) { return !(a < b); }
template <class T> uint64_t num(T a, T b) { return a == a && b == b; }
template <class T> uint64_t nan(T a, T b) { return a != a || b != b; }

template <class T> Do comparison(const std::string &how)
{
#define ROW(name) \
    { \
#name, binary < uint64_t, T, T, name < T>> \
    }
    static const std::map<std::string, Do> table = {
        ROW(eq),  ROW(ne),  ROW(lt),  ROW(le),  ROW(gt),  ROW(ge),  ROW(equ),
        ROW(neu), ROW(ltu), ROW(leu), ROW(gtu), ROW(geu), ROW(num), ROW(nan)};
#undef ROW
    auto at = table.find(how);
    return at == table.end() ? nullptr : at->second;
}

Do set_predicate(const Statement &s)
{
    if (s.op.size() != 3) return nullptr;
    switch (s.type()) {
    case U16:
        return comparison<uint16_t>(s.op[1]);
    case S16:
        return comparison<int16_t>(s.op[1]);
    case U32:
        return comparison<uint32_t>(s.op[1]);
    case S32:
        return comparison<int32_t>(s.op[1]);
    case U64:
        return comparison<uint64_t>(s.op[1]);
    case S64:
        return comparison<int64_t>(s.op[1]);
    case F32:
        return comparison<float>(s.op[1]);
    case F64:
        return comparison<double>(s.op[1]);
    default:
        return nullptr;
    }
}

template <class T> void select(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    const uint64_t *a = w.in(i, 1), *b = w.in(i, 2), *p = w.in(i, 3);
    each(mask, [=](unsigned l) { d[l] = (T)(p[l] & 1 ? a[l] : b[l]); });
}

/* ---- conversions ---- */

template <class T> T to_integer(double a)
{
    typedef std::numeric_limits<T> Limits;
    if (a != a) return 0;
    if (a <= (double)Limits::min()) return Limits::min();
    return a >= (double)Limits::max() ? Limits::max() : (T)a;
}
template <class D, class S, double (*ROUND)(double)> D integer_of(S a)
{
    return to_integer<D>(ROUND((double)a));
}
template <class S, double (*ROUND)(double)> S whole_of(S a) { return (S)ROUND((double)a); }
template <class D, class S> D as(S a) { return (D)a; }
float saturated(float a) { return a > 0 ? (a < 1 ? a : 1) : 0; }
uint16_t half_of(float a) { return __float2half_rn(a).bits; }
uint16_t bfloat_of(float a) { return __float2bfloat16_rn(a).bits; }
template <uint16_t (*F)(float)> uint32_t pair_of(float high, float low)
{
    return (uint32_t)F(high) << 16 | F(low);
}
float of_half(uint16_t a) { return __half2float({a}); }
float of_bfloat(uint16_t a) { return __bfloat162float({a}); }

template <class S, double (*ROUND)(double)> Do from_float(Type to)
{
    switch (to) {
    case S32:
        return unary<int32_t, S, integer_of<int32_t, S, ROUND>>;
    case U32:
        return unary<uint32_t, S, integer_of<uint32_t, S, ROUND>>;
    case S64:
        return unary<int64_t, S, integer_of<int64_t, S, ROUND>>;
    case U64:
        return unary<uint64_t, S, integer_of<uint64_t, S, ROUND>>;
    case F32:
        return std::is_same<S, float>::value ? unary<S, S, whole_of<S, ROUND>> : nullptr;
    case F64:
        return std::is_same<S, double>::value ? unary<S, S, whole_of<S, ROUND>> : nullptr;
    default:
        return nullptr;
    }
}
template <class S> Do from_float(Type to, const std::string &how)
{
    return how == "rni"   ? from_float<S, rint>(to)
           : how == "rzi" ? from_float<S, trunc>(to)
           : how == "rmi" ? from_float<S, floor>(to)
           : how == "rpi" ? from_float<S, ceil>(to)
                          : nullptr;
}
template <class S> Do from_integer(Type to)
{
    switch (to) {
    case U8:
        return unary<uint8_t, S, as<uint8_t, S>>;
    case S8:
        return unary<int8_t, S, as<int8_t, S>>;
    case U16:
        return unary<uint16_t, S, as<uint16_t, S>>;
    case S16:
        return unary<int16_t, S, as<int16_t, S>>;
    case U32:
        return unary<uint32_t, S, as<uint32_t, S>>;
    case S32:
        return unary<int32_t, S, as<int32_t, S>>;
    case U64:
        return unary<uint64_t, S, as<uint64_t, S>>;
    case S64:
        return unary<int64_t, S, as<int64_t, S>>;
    case F32:
        return unary<float, S, as<float, S>>;
    case F64:
        return unary<double, S, as<double, S>>;
    default:
        return nullptr;
    }
}

Do convert(const Statement &s)
{
    Type from = s.type(), to = s.type(1);
    const std::string &how = s.op.size() == 4 ? s.op[1] : s.op[0];
    if (s.op.size() > 4 || !to) return nullptr;
    bool float_to = to >= F16, float_from = from >= F16;
    if (how != "cvt" && how != "rn" && how != "sat" && !float_from) return nullptr;
    if (!float_from && float_to != (how == "rn")) return nullptr;
    if (how == "sat") return from == F32 && to == F32 ? unary<float, float, saturated> : nullptr;
    if (how.size() == 3 && how != "cvt")
        return from == F32   ? from_float<float>(to, how)
               : from == F64 ? from_float<double>(to, how)
                             : nullptr;
    switch (from) {
    case U8:
        return from_integer<uint8_t>(to);
    case S8:
        return from_integer<int8_t>(to);
    case U16:
        return from_integer<uint16_t>(to);
    case S16:
        return from_integer<int16_t>(to);
    case U32:
        return from_integer<uint32_t>(to);
    case S32:
        return from_integer<int32_t>(to);
    case U64:
        return from_integer<uint64_t>(to);
    case S64:
        return from_integer<int64_t>(to);
    case F16:
        return to == F32 && how == "cvt" ? unary<float, uint16_t, of_half> : nullptr;
    case BF16:
        return to == F32 && how == "cvt" ? unary<float, uint16_t, of_bfloat> : nullptr;
    case F64:
        return to == F32 && how == "rn" ? unary<float, double, as<float, double>> : nullptr;
    case F32:
        if (to == F64) return how == "cvt" ? unary<double, float, as<double, float>> : nullptr;
        if (how != "rn") return nullptr;
        return to == F16    ? unary<uint16_t, float, half_of>
               : to == BF16 ? unary<uint16_t, float, bfloat_of>
                            : nullptr;
    default:
        return nullptr;
    }
}

/* mov between a register and a vector of its parts */
void join(Warp &w, const Instruction &i, unsigned mask)
{
    uint64_t *d = w.out(i, 0);
    unsigned bits = i.bytes * 8u, n = i.n - 1;
    each(mask, [&](unsigned l) {
        uint64_t v = 0;
        for (unsigned k = n; k--;) v = v << bits | (w.in(i, 1 + k)[l] & ((1ull << bits) - 1));
        d[l] = v;
    });
}
void part(Warp &w, const Instruction &i, unsigned mask)
{
    unsigned bits = i.bytes * 8u, n = i.n - 1;
    each(mask, [&](unsigned l) {
        uint64_t v = w.in(i, n)[l];
        for (unsigned k = 0; k < n; k++) w.out(i, k)[l] = v >> bits * k & ((1ull << bits) - 1);
    });
}

Do move(const Statement &s, Instruction *i)
{
    unsigned whole = bytes_of(s.type());
    if (s.sizes.size() != 2) return nullptr;
    i->bytes = (uint8_t)(whole / (i->n - 1));
    if (s.sizes[0] > 1) return part;
    if (s.sizes[1] > 1) return join;
    switch (s.type()) {
    case PRED:
        return unary<uint64_t, uint64_t, same<uint64_t>>;
    case U16:
        return unary<uint16_t, uint16_t, same<uint16_t>>;
    case U32:
    case S32:
    case F32:
        return unary<uint32_t, uint32_t, same<uint32_t>>;
    case U64:
    case S64:
    case F64:
        return unary<uint64_t, uint64_t, same<uint64_t>>;
    default:
        return nullptr;
    }
}

/* ---- tables ---- */

typedef std::map<std::string, Do> Table;

template <class U, class S> void integers(Table &t, const std::string &bits)
{
    const std::string u = ".u" + bits, s = ".s" + bits, b = ".b" + bits;
    for (const auto &type : {u, s}) {
        t["add" + type] = binary<U, U, U, add<U>>;
        t["sub" + type] = binary<U, U, U, sub<U>>;
        t["mul.lo" + type] = binary<U, U, U, mul_lo<U>>;
        t["mad.lo" + type] = ternary<U, U, U, mad_lo<U>>;
    }
    t["mul.hi" + u] = binary<U, U, U, mul_hi<U>>;
    t["mul.hi" + s] = binary<S, S, S, mul_hi<S>>;
    t["div" + u] = binary<U, U, U, divide<U>>;
    t["div" + s] = binary<S, S, S, divide<S>>;
    t["rem" + u] = binary<U, U, U, rest<U>>;
    t["rem" + s] = binary<S, S, S, rest<S>>;
    t["min" + u] = binary<U, U, U, least<U>>;
    t["min" + s] = binary<S, S, S, least<S>>;
    t["max" + u] = binary<U, U, U, most<U>>;
    t["max" + s] = binary<S, S, S, most<S>>;
    t["neg" + s] = unary<U, U, negative<U>>;
    t["not" + b] = unary<U, U, all_not<U>>;
    t["and" + b] = binary<U, U, U, bit_and<U>>;
    t["or" + b] = binary<U, U, U, bit_or<U>>;
    t["xor" + b] = binary<U, U, U, bit_xor<U>>;
    t["shl" + b] = binary<U, U, uint32_t, shift_left<U>>;
    t["shr" + u] = t["shr" + b] = binary<U, U, uint32_t, shift_right<U>>;
    t["shr" + s] = binary<S, S, uint32_t, shift_right<S>>;
    t["popc" + b] = unary<uint32_t, U, ones<U>>;
    t["clz" + b] = unary<uint32_t, U, zeros_left<U>>;
    t["bfi" + b] = insert_bits<U>;
    for (const auto &type : {u, s, b}) t["selp" + type] = select<U>;
}

template <class T> void floats(Table &t, const std::string &type)
{
    for (const auto &how : {std::string(), std::string(".rn")}) {
        t["add" + how + type] = binary<T, T, T, add<T>>;
        t["sub" + how + type] = binary<T, T, T, sub<T>>;
        t["mul" + how + type] = binary<T, T, T, mul<T>>;
    }
    t["fma.rn" + type] = ternary<T, T, T, fused<T>>;
    t["fma.rm" + type] = rounded<T, FE_DOWNWARD, 3>;
    t["fma.rp" + type] = rounded<T, FE_UPWARD, 3>;
    t["fma.rz" + type] = rounded<T, FE_TOWARDZERO, 3>;
    t["add.rz" + type] = rounded<T, FE_TOWARDZERO, 0>;
    t["mul.rz" + type] = rounded<T, FE_TOWARDZERO, 1>;
    t["div.rn" + type] = binary<T, T, T, quotient<T>>;
    t["rcp.rn" + type] = unary<T, T, reciprocal<T>>;
    t["sqrt.rn" + type] = unary<T, T, root<T>>;
    t["neg" + type] = unary<T, T, flip<T>>;
    t["abs" + type] = unary<T, T, absolute<T>>;
    t["min" + type] = binary<T, T, T, least_float<T>>;
    t["max" + type] = binary<T, T, T, most_float<T>>;
    t["copysign" + type] = binary<T, T, T, sign_of<T>>;
    t["selp" + type] = std::is_same<T, float>::value ? select<uint32_t> : select<uint64_t>;
}

void wide(Table &t)
{
    t["mul.wide.u16"] = binary<uint32_t, uint16_t, uint16_t, mul_wide<uint16_t, uint32_t>>;
    t["mul.wide.s16"] = binary<int32_t, int16_t, int16_t, mul_wide<int16_t, int32_t>>;
    t["mul.wide.u32"] = binary<uint64_t, uint32_t, uint32_t, mul_wide<uint32_t, uint64_t>>;
    t["mul.wide.s32"] = binary<int64_t, int32_t, int32_t, mul_wide<int32_t, int64_t>>;
    t["mad.wide.u32"] = ternary<uint64_t, uint32_t, uint64_t, mad_wide<uint32_t, uint64_t>>;
    t["mad.wide.s32"] = ternary<int64_t, int32_t, int64_t, mad_wide<int32_t, int64_t>>;
    t["add.cc.u32"] = with_carry<false, false, false, false, true>;
    t["addc.u32"] = with_carry<false, false, false, true, false>;
    t["addc.cc.u32"] = with_carry<false, false, false, true, true>;
    t["sub.cc.u32"] = with_carry<false, false, true, false, true>;
    t["subc.u32"] = with_carry<false, false, true, true, false>;
    t["subc.cc.u32"] = with_carry<false, false, true, true, true>;
    t["mad.lo.cc.u32"] = with_carry<true, false, false, false, true>;
    t["mad.hi.cc.u32"] = with_carry<true, true, false, false, true>;
    t["madc.lo.u32"] = with_carry<true, false, false, true, false>;
    t["madc.hi.u32"] = with_carry<true, true, false, true, false>;
    t["madc.lo.cc.u32"] = with_carry<true, false, false, true, true>;
    t["madc.hi.cc.u32"] = with_carry<true, true, false, true, true>;
}

Table all()
{
    Table t;
    integers<uint16_t, int16_t>(t, "16");
    integers<uint32_t, int32_t>(t, "32");
    integers<uint64_t, int64_t>(t, "64");
    floats<float>(t, ".f32");
    floats<double>(t, ".f64");
    wide(t);
    t["and.pred"] = binary<uint64_t, uint64_t, uint64_t, and_pred>;
    t["or.pred"] = binary<uint64_t, uint64_t, uint64_t, or_pred>;
    t["xor.pred"] = binary<uint64_t, uint64_t, uint64_t, xor_pred>;
    t["not.pred"] = unary<uint64_t, uint64_t, not_pred>;
    t["prmt.b32"] = ternary<uint32_t, uint32_t, uint32_t, permute>;
    t["div.approx.f32"] = binary<float, float, float, quotient_nearly>;
    t["ex2.approx.f32"] = unary<float, float, power>;
    t["ex2.approx.ftz.f32"] = unary<float, float, power_flushed>;
    t["rcp.approx.ftz.f32"] = unary<float, float, reciprocal_flushed>;
    t["rcp.approx.ftz.f64"] = unary<double, double, reciprocal_nearly>;
    t["cvt.rn.bf16x2.f32"] = binary<uint32_t, float, float, pair_of<bfloat_of>>;
    t["cvt.rn.f16x2.f32"] = binary<uint32_t, float, float, pair_of<half_of>>;
    t["cvta.to.global.u64"] = unary<uint64_t, uint64_t, same<uint64_t>>;
    return t;
}

} // namespace

bool decode_numbers(const Statement &s, Instruction *i)
{
    static const Table table = all();
    if (s.negated) return false;
    if (s.op[0] == "setp")
        i->run = set_predicate(s);
    else if (s.op[0] == "cvt" && s.rows.size() == 2)
        i->run = convert(s);
    else if (s.op[0] == "mov")
        i->run = move(s, i);
    else {
        std::string name = s.op[0];
        for (size_t k = 1; k < s.op.size(); k++) name += "." + s.op[k];
        auto at = table.find(name);
        if (at != table.end()) i->run = at->second;
    }
    return i->run;
}

} // namespace ptx
