/* launcher/join/secret.c: the secret that the nodes of a job share. Hashes are
 * libcrypto's.
 * SPDX-License-Identifier: MIT */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECRET_MOST = 4096 };

/* The file's bytes without newlines at the end. */
static bool secret_read_file(dsi_text *secret, const char *file)
{
    char bytes[SECRET_MOST + 1];
    struct stat s;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 || fstat(fd, &s) ? -1 : read(fd, bytes, sizeof bytes);
    if (n < 0)
        fprintf(stderr, "deepspeed: --join_secret_file: %s: %s\n", file, strerror(errno));
    else if (n > SECRET_MOST)
        fprintf(stderr, "deepspeed: --join_secret_file: %s holds more than %d bytes\n", file,
                SECRET_MOST);
    else if (s.st_mode & (S_IWGRP | S_IWOTH))
        fprintf(
            stderr,
            "deepspeed: --join_secret_file: others may write %s (mode %04o): whoever writes it can "
            "run commands as you; chmod 600 it\n",
            file, s.st_mode & 07777U);
    else {
        while (n && (bytes[n - 1] == '\n' || bytes[n - 1] == '\r')) n--;
        if (n)
            dsi_text_add_bytes(secret, bytes, (size_t)n);
        else
            fprintf(stderr, "deepspeed: --join_secret_file: %s is empty\n", file);
        if (n && s.st_mode & (S_IRGRP | S_IROTH))
            fprintf(stderr, "deepspeed: --join_secret_file: others may read %s; chmod 600 it\n",
                    file);
    }
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (fd >= 0) close(fd);
    return secret->n > 0;
}

void secret_forget_variable(void)
{
    char *value = getenv("DS_JOIN_SECRET");
    if (!value) return;
    OPENSSL_cleanse(value, strlen(value));
    unsetenv("DS_JOIN_SECRET");
}

bool secret_read(dsi_text *secret, const char *file)
{
    const char *value = getenv("DS_JOIN_SECRET");
    *secret = (dsi_text){0};
    if (!file && value && *value) dsi_text_add_bytes(secret, value, strlen(value));
    secret_forget_variable();
    if (file && !secret_read_file(secret, file)) return false;
    if (secret->n && secret->n < SECRET_SHORT)
        fprintf(stderr,
                "deepspeed: the secret has only %zu bytes: whoever listens on the network could "
                "find it "
                "by trying; use 32, such as openssl rand -hex 16 prints\n",
                secret->n);
    return true;
}

void secret_free(dsi_text *secret)
{
    if (secret->s) OPENSSL_cleanse(secret->s, secret->n);
    dsi_text_free(secret);
}

void secret_mac(uint8_t mac[SECRET_BYTES], const void *key, size_t n_key, const secret_part *part,
                int n_parts)
{
    dsi_text all = {0};
    for (int i = 0; i < n_parts; i++) dsi_text_add_bytes(&all, part[i].bytes, part[i].n);
    /* it can only fail for lack of memory */
    if (!HMAC(EVP_sha256(), n_key ? key : "", (int)n_key, (const uint8_t *)all.s, all.n, mac, NULL))
        abort();
    dsi_text_free(&all);
}

bool secret_equal(const uint8_t a[SECRET_BYTES], const uint8_t b[SECRET_BYTES])
{
    return CRYPTO_memcmp(a, b, SECRET_BYTES) == 0;
}

bool secret_random(uint8_t bytes[SECRET_BYTES])
{
    return getrandom(bytes, SECRET_BYTES, 0) == SECRET_BYTES;
}

void secret_digest(char hex[2 * SECRET_BYTES + 1], const void *bytes, size_t n)
{
    uint8_t digest[SECRET_BYTES];
    if (!EVP_Digest(bytes, n, digest, NULL, EVP_sha256(), NULL)) abort();
    for (int i = 0; i < SECRET_BYTES; i++) snprintf(hex + 2 * (size_t)i, 3, "%02x", digest[i]);
}
