/* tests/gpu/emulator/ptx_machine/parse.h: an instruction as text, for those that
 * decode it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "machine.h"

namespace ptx
{

enum Type : uint8_t { NONE, PRED, U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64 };
Type type_of(const std::string &name); /* b32 is U32; NONE: it is none */
unsigned bytes_of(Type t);

struct Address {
    int row = -1;
    long long offset = 0;
    bool is_local = false; /* a parameter of a call */
};

/* Operands in order: rows, and addresses. */
struct Statement {
    std::vector<std::string> op; /* parts of the opcode: setp, eq, s32 */
    std::vector<int> rows;       /* registers, or ~constant; those of a vector one by one */
    std::vector<unsigned> sizes; /* of each operand: how many rows; 0: an address */
    std::vector<Address> addresses;
    std::vector<long long> numbers; /* of operands that are integers */
    bool negated = false;           /* an operand is !p */

    bool has(const char *part) const
    {
        for (const auto &p : op)
            if (p == part) return true;
        return false;
    }
    Type type(unsigned from_end = 0) const
    {
        return from_end < op.size() ? type_of(op[op.size() - 1 - from_end]) : NONE;
    }
};

} // namespace ptx
