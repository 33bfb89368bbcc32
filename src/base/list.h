/* base/list.h: a growable typed array.
 *
 *     struct { DSI_LIST(int) } l = {0};
 *     dsi_list_add(&l, 7);  for (int i = 0; i < l.n; i++) use(l.at[i]);  dsi_list_free(&l);
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include "mem.h"

#define DSI_LIST(type) \
    type *at; \
    int n, room;

#define dsi_list_add(list, ...) \
    ((list)->n == (list)->room \
         ? (void)((list)->room = (list)->room ? 2 * (list)->room : 8, \
                  (list)->at = dsi_realloc((list)->at, (size_t)(list)->room * sizeof *(list)->at)) \
         : (void)0, \
     (void)((list)->at[(list)->n++] = __VA_ARGS__))

#define dsi_list_free(list) (dsi_free((list)->at), (list)->at = NULL, (list)->n = (list)->room = 0)
