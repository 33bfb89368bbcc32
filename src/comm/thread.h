/* comm/thread.h: ranks as threads: how a collective among them is cut into
 * pieces.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm.h"

#define DSI_THREAD_RANKS 1024 /* at most */

/* of[r] is the request of rank r; all describe the same collective. Pieces may
 * be run by any threads, at the same time and in any order; when all have been
 * run, the collective is done on all ranks. */
int64_t dsi_pieces(const dsi_request *any, int ranks);
void dsi_run_piece(dsi_request *const *of, int ranks, int64_t piece, double *squares);

/* squares [pieces] to the requests that want them: those of each piece to one
 * rank. */
void dsi_request_add_squares(dsi_request *const *of, int64_t pieces, const double *squares);

/* False, with two of them in the message, if they do not describe the same
 * collective. */
bool dsi_requests_agree(dsi_request *const *of, int ranks, char *why, size_t room);
