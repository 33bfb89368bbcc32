/* base/option.h: the value of an option of type double.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* 0 selects the default, DS_ZERO requests 0. */
static inline double dsi_option(double value, double otherwise)
{
    return value == 0 ? otherwise : value == DS_ZERO ? 0 : value;
}
