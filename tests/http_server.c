/* tests/http_server.c: a web server on 127.0.0.1 with bad manners on request,
 * in a process of its own.
 * SPDX-License-Identifier: MIT */
#include "http_server.h"
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void send_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    for (ssize_t k; n > 0 && (k = send(fd, p, n, MSG_NOSIGNAL)) > 0; p += k) n -= (size_t)k;
}

/* Reads a request up to its empty line. */
static bool read_request(int fd, char *text, size_t room)
{
    size_t n = 0;
    for (ssize_t k; n + 1 < room && (k = recv(fd, text + n, room - n - 1, 0)) > 0;) {
        n += (size_t)k;
        text[n] = 0;
        if (strstr(text, "\r\n\r\n")) return true;
    }
    return false;
}

static void send_status(int fd, int status, const char *more)
{
    char text[512];
    int n = snprintf(
        text, sizeof text,
        "HTTP/1.1 %d Status\r\nContent-Length: 6\r\nConnection: close\r\n%s\r\nsorry\n", status,
        more);
    send_all(fd, text, (size_t)n);
}

/* The body from `from` on; `partial`: as the answer to a range. */
static void send_body(int fd, const http_manners *m, size_t from, bool partial, bool cut)
{
    char head[512], tag[128] = "", range[128] = "";
    size_t begin = from + (partial && m->wrong_range), n = m->bytes - begin;
    if (m->etag) snprintf(tag, sizeof tag, "ETag: %s\r\n", m->etag);
    if (partial)
        snprintf(range, sizeof range, "Content-Range: bytes %zu-%zu/%zu\r\n", begin, m->bytes - 1,
                 m->bytes);
    int k = snprintf(
        head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n%s%s\r\n",
        partial ? "206 Partial Content" : "200 OK", m->promise ? m->promise : n, tag, range);
    send_all(fd, head, (size_t)k);
    if (cut && n > m->cut) n = m->cut;
    const char *body = (const char *)m->body + begin;
    send_all(fd, body, n / 2);
    poll(NULL, 0, m->pause_ms);
    send_all(fd, body + n / 2, n - n / 2);
}

static void answer(int fd, const http_manners *m, struct http_log *log)
{
    char text[8192];
    long long from = -1;
    if (!read_request(fd, text, sizeof text)) return;
    const char *range = strstr(text, "Range: bytes="), *condition = strstr(text, "If-Range: ");
    if (range) sscanf(range, "Range: bytes=%lld-", &from);
    int number = log->requests;
    log->range[number % HTTP_LOGGED] = from;
    log->condition[number % HTTP_LOGGED] = condition != NULL;
    log->requests = number + 1;

    bool same = !condition || (m->etag && !strncmp(condition + 10, m->etag, strlen(m->etag)));
    bool partial = from >= 0 && !m->no_ranges && same;
    bool cut = m->cut && (!m->cuts || number < m->cuts);
    if (number < m->first_busy) {
        send_status(fd, 503, "");
    } else if (m->redirect && strncmp(text, "GET /there", 10)) {
        char line[256];
        snprintf(line, sizeof line, "Location: %s\r\n", m->redirect);
        send_status(fd, 302, line);
    } else if (m->status) {
        send_status(fd, m->status, "");
    } else if (partial && from >= (long long)m->bytes) {
        send_status(fd, 416, "");
    } else {
        send_body(fd, m, partial ? (size_t)from : 0, partial, cut);
    }
}

static void serve(int fd, http_manners m, struct http_log *log)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int one = accept(fd, NULL, NULL);
        if (one < 0) continue;
        answer(one, &m, log);
        shutdown(one, SHUT_WR);
        close(one);
    }
}

http_server http_start(http_manners m)
{
    http_server s = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &n) == 0);
    snprintf(s.url, sizeof s.url, "http://127.0.0.1:%d/file.tar.gz", ntohs(at.sin_port));
    s.log = mmap(NULL, sizeof *s.log, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s.log != MAP_FAILED);
    s.pid = fork();
    CHECK(s.pid >= 0);
    if (!s.pid) serve(fd, m, s.log);
    close(fd);
    return s;
}

void http_stop(http_server *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    munmap(s->log, sizeof *s->log);
}
