/* launcher/world_info.c: hosts and slots as each rank gets them.
 *
 * The text is DeepSpeed's, urlsafe_b64encode(json.dumps({"worker-0": [0, 1]})),
 * so that what is printed and passed on can be compared with it.
 * SPDX-License-Identifier: MIT */
#include "argv.h"
#include "hosts.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* RFC 4648, section 5; section 4 has + and / as the last two */
static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* Written by hand, so that it is byte for byte what Python's json writes. */
char *hosts_json(const ds_host *hosts, int n)
{
    dsi_text t = {0};
    dsi_text_add(&t, "{");
    for (int i = 0; i < n; i++) {
        if (i) dsi_text_add(&t, ", ");
        text_add_json(&t, hosts[i].name);
        dsi_text_add(&t, ": [");
        for (int k = 0; k < hosts[i].n_slots; k++)
            dsi_text_add(&t, "%s%d", k ? ", " : "", hosts[i].slots[k]);
        dsi_text_add(&t, "]");
    }
    dsi_text_add(&t, "}");
    return t.s;
}

char *hosts_encode(const ds_host *hosts, int n)
{
    char *json = hosts_json(hosts, n);
    const unsigned char *s = (const unsigned char *)json;
    size_t bytes = strlen(json);
    char *out = dsi_alloc((bytes + 2) / 3 * 4 + 1), *o = out;
    for (size_t i = 0; i < bytes; i += 3, o += 4) {
        size_t have = bytes - i < 3 ? bytes - i : 3;
        unsigned x = (unsigned)s[i] << 16 | (have > 1 ? (unsigned)s[i + 1] << 8 : 0) |
                     (have > 2 ? s[i + 2] : 0U);
        for (size_t k = 0; k < 4; k++) o[k] = k <= have ? base64[x >> (18 - 6 * k) & 63] : '=';
    }
    dsi_free(json);
    return out;
}

/* The value of a character, in both alphabets; -1: it is none. */
static int base64_value(char c)
{
    const char *at = c ? strchr(base64, c) : NULL;
    return at ? (int)(at - base64) : c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* false: s is not base64. */
static bool world_info_decode(const char *s, dsi_text *out)
{
    uint32_t bits = 0;
    int have = 0;
    for (; base64_value(*s) >= 0; s++) {
        bits = bits << 6 | (uint32_t)base64_value(*s);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        dsi_text_add_bytes(out, &(char){(char)(bits >> have & 0xff)}, 1);
    }
    return s[strspn(s, "=")] == 0;
}

bool host_read_slots(ds_host *host, const json_t *slots)
{
    if (!json_is_array(slots)) return false;
    host_set_slots(host, (int)json_array_size(slots));
    for (int i = 0; i < host->n_slots; i++) {
        const json_t *slot = json_array_get(slots, (size_t)i);
        if (!json_is_integer(slot)) return false;
        host->slots[i] = (int)json_integer_value(slot);
    }
    return true;
}

/* Each rank reads it; a mistake can only come from a command typed by hand. */
bool hosts_decode(ds_hosts *h, const char *world_info)
{
    dsi_text text = {0};
    json_t *info = world_info_decode(world_info, &text) && text.s ? json_loads(text.s, 0, NULL)
                                                                  : NULL,
           *slots;
    const char *name;
    bool good = json_is_object(info);
    dsi_text_free(&text);
    json_object_foreach(info, name, slots)
    {
        hosts_add(h, name, strlen(name), 0);
        good = host_read_slots(&h->at[h->n - 1], slots) && good;
    }
    json_decref(info);
    if (good && hosts_count_slots(h) > 0) return true;
    fprintf(stderr,
            "deepspeed: --world_info=%s: expected base64 of {\"host\": [device, ...], ...}\n",
            world_info);
    return false;
}
