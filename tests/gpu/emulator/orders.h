/* tests/gpu/emulator/orders.h: the order in which threads run, of both machines.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdint.h>

namespace cuda_on_cpu
{

enum Order { FORWARD, BACKWARD, RANDOM };
extern Order order;
void know_order(); /* reads CUDA_ON_CPU_ORDER, once */
void set_order(Order o, uint64_t seed);
unsigned draw(unsigned n); /* a random number below n */

} // namespace cuda_on_cpu
