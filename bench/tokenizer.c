/* bench/tokenizer.c: how fast a tokenizer encodes a file.
 *
 *     bench_tokenizer tokenizer.json TEXT [IDS]
 *
 * Prints the number of ids and the process time. IDS receives the ids as
 * little-endian uint32, to be compared with those of the package tokenizers.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"

#include <deepspeed/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double process_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

int main(int argc, char **argv)
{
    size_t bytes = 0, decoded_bytes = 0;
    if (argc < 3) return fprintf(stderr, "usage: bench_tokenizer tokenizer.json TEXT [IDS]\n"), 2;
    double begin = process_seconds();
    ds_tokenizer *t = ds_tokenizer_load(argv[1]);
    double loaded = process_seconds();
    char *text = t ? dsi_file_read(argv[2], &bytes) : NULL;
    ds_tokens ids = {0};
    if (!text ||
        ds_encode(t, text, bytes, &ids, (ds_encode_opts){.no_special_tokens = true}) != DS_OK)
        return fprintf(stderr, "bench_tokenizer: %s\n", ds_error()), 1;
    double encoded = process_seconds();
    char *back = ds_decode(t, ids.ids, ids.n, (ds_decode_opts){&decoded_bytes, true});
    double decoded = process_seconds();
    printf("%s: %lld ids, load %.3f s, encode %.3f s (%.1f MB/s), decode %.3f s (%zu bytes)\n",
           argv[1], (long long)ids.n, loaded - begin, encoded - loaded,
           (double)bytes / 1e6 / (encoded - loaded), decoded - encoded, decoded_bytes);
    FILE *out = argc > 3 ? fopen(argv[3], "wb") : NULL;
    if (out) {
        fwrite(ids.ids, sizeof *ids.ids, (size_t)ids.n, out);
        fclose(out);
        char name[4096];
        snprintf(name, sizeof name, "%s.txt", argv[3]);
        out = fopen(name, "wb");
        if (out) fwrite(back, 1, decoded_bytes, out), fclose(out);
    }
    free(back);
    free(text);
    ds_tokens_free(&ids);
    ds_tokenizer_free(t);
    return 0;
}
