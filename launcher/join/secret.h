/* launcher/join/secret.h: the secret that the nodes of a job share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SECRET_BYTES = 32, /* of a MAC, a key, a random number */
    SECRET_SHORT = 16  /* a shorter secret draws a warning */
};

/* Reads it from `file` or, if that is NULL, from DS_JOIN_SECRET. The variable
 * is removed from the environment, so that ranks and commands do not get it.
 * Without either, secret->n is 0. false after one message. */
bool secret_read(dsi_text *secret, const char *file);
/* Removes DS_JOIN_SECRET from the environment, and from what /proc shows of
 * that. */
void secret_forget_variable(void);
void secret_free(dsi_text *secret); /* overwrites it */

typedef struct secret_part {
    const void *bytes;
    size_t n;
} secret_part;

/* HMAC-SHA256 (RFC 2104) over the concatenated parts. */
void secret_mac(uint8_t mac[SECRET_BYTES], const void *key, size_t n_key, const secret_part *part,
                int n_parts);
/* In a time that does not depend on where they differ. */
bool secret_equal(const uint8_t a[SECRET_BYTES], const uint8_t b[SECRET_BYTES]);
bool secret_random(uint8_t bytes[SECRET_BYTES]); /* false: the system has none */
/* SHA-256 as 64 hexadecimal digits. */
void secret_digest(char hex[2 * SECRET_BYTES + 1], const void *bytes, size_t n);
