/* launcher/world_info.c: hosts and slots as ranks are told of them.
 *
 * The text is DeepSpeed's, urlsafe_b64encode(json.dumps({"worker-0": [0, 1]})), so that what is printed and passed on
 * can be compared with it.
 * SPDX-License-Identifier: MIT */
#include "argv.h"
#include "hosts.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

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
        for (size_t k = 0; k < 4; k++) o[k] = k <= have ? digits[x >> (18 - 6 * k) & 63] : '=';
    }
    dsi_free(json);
    return out;
}
