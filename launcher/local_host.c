/* launcher/local_host.c: the devices, names and addresses of this machine.
 * SPDX-License-Identifier: MIT */
#include "local_host.h"

#include "gpus.h"

#include "base/env.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- devices ---------------------------------------------------------------------- */

bool local_host_gpus_hidden(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && (!*visible || !strcmp(visible, "-1"));
}

int local_host_devices(bool *known)
{
    static const dsi_env local_size = {"LOCAL_SIZE", "a number of ranks, from 0 to 65536",
                                       .most = 65536, .whole = true};
    double size = -1;
    *known = true;
    if (dsi_env_number(&local_size, &size) != DS_OK) return -1;
    if (size >= 0) return (int)size;
    int gpus = local_host_gpus_hidden() ? 0 : gpus_count("");
    *known = gpus > 0;
    return gpus ? gpus : 1;
}

/* ---- names and addresses ------------------------------------------------------------ */

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || !b || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           !memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                   &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr));
}

/* Without asking the name service, which may be slow: loopback names and the
 * host's own name, with or without its domain. */
static bool is_own_name(const char *host)
{
    char name[256] = "";
    if (!strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4))
        return true;
    gethostname(name, sizeof name - 1);
    size_t shorter = strcspn(name, ".");
    return !strcmp(host, name) || (strlen(host) == shorter && !strncmp(host, name, shorter));
}

/* Resolves the name only if it is none of the usual ones, and compares its
 * addresses with those of the interfaces. */
bool local_host_is(const char *host)
{
    const char *at = strrchr(host, '@');
    if (at) host = at + 1;
    if (is_own_name(host)) return true;
    struct addrinfo *found = NULL;
    struct ifaddrs *own = NULL;
    bool local = false;
    if (getaddrinfo(host, NULL, NULL, &found) == 0 && getifaddrs(&own) == 0)
        for (struct ifaddrs *i = own; i && !local; i = i->ifa_next)
            for (struct addrinfo *a = found; a && !local; a = a->ai_next)
                local = same_address(a->ai_addr, i->ifa_addr);
    if (own) freeifaddrs(own);
    if (found) freeaddrinfo(found);
    return local;
}

/* Bridges of containers and virtual machines have the same address on each
 * host. */
static bool is_bridge(const char *interface)
{
    static const char *const names[] = {"docker", "podman", "virbr", "br-", "cni"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(interface, names[i], strlen(names[i]))) return true;
    return false;
}

char *local_host_address(void)
{
    struct ifaddrs *own = NULL;
    char text[INET_ADDRSTRLEN] = "127.0.0.1";
    if (getifaddrs(&own) == 0)
        for (struct ifaddrs *i = own; i; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET ||
                (i->ifa_flags & IFF_LOOPBACK) || is_bridge(i->ifa_name))
                continue;
            inet_ntop(AF_INET, &((struct sockaddr_in *)i->ifa_addr)->sin_addr, text, sizeof text);
            break;
        }
    if (own) freeifaddrs(own);
    return dsi_strdup(text);
}

/* ---- this program ------------------------------------------------------------------- */

char *local_host_program(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return dsi_strdup("deepspeed");
    path[n] = 0;
    return dsi_strdup(path);
}
