/* launcher/world_info.c: hosts and slots as each rank gets them.
 *
 * The text is DeepSpeed's, urlsafe_b64encode(json.dumps({"worker-0": [0, 1]})),
 * so that what is printed and passed on can be compared with it.
 * SPDX-License-Identifier: MIT */
#include "argv.h"
#include "hosts.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

/* Written by hand, so that it is byte for byte what Python's json writes. */
char *hosts_json(const ds_host *hosts, int n)
{
    dsi_text t = dsi_text_of("{");
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
    size_t bytes = strlen(json);
    char *out = dsi_alloc((bytes + 2) / 3 * 4 + 1);
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)json, (int)bytes);
    for (char *c; (c = strpbrk(out, "+/"));) *c = *c == '+' ? '-' : '_'; /* RFC 4648, section 5 */
    dsi_free(json);
    return out;
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
    size_t bytes;
    char *text = dsi_base64_decode(world_info, &bytes);
    json_t *info = text ? json_loads(text, 0, NULL) : NULL, *slots;
    const char *name;
    bool good = json_is_object(info);
    dsi_free(text);
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
