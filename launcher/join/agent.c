/* launcher/join/agent.c: what mpirun runs where it would run ssh.
 *
 *     deepspeed --join_agent SOCKET NODE COMMAND...
 *
 * sends the command to the relay (relay.c), which has the connection to the
 * node, writes what the command prints to stderr, and exits with its status; or
 * with 1 when the relay or the node is gone, which ends the job.
 * SPDX-License-Identifier: MIT */
#include "agent.h"

#include "session.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Until the command has ended; returns its status. */
static int agent_copy_output(int fd)
{
    char packet[AGENT_PACKET];
    for (;;) {
        ssize_t n = recv(fd, packet, sizeof packet - 1, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return EXIT_FAILURE;
        packet[n] = 0;
        if (packet[0] == MESSAGE_EXITED) return atoi(packet + 1);
        for (ssize_t at = 1, m; at < n; at += m)
            if ((m = write(STDERR_FILENO, packet + at, (size_t)(n - at))) <= 0) break;
    }
}

/* mpirun passes the arguments that it would give ssh: the host, then the
 * command. */
int agent_run(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    dsi_text request = {0};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (argc < 5) {
        fprintf(stderr, "deepspeed: --join_agent: expected a socket, a node, a command\n");
        return STATUS_WRONG;
    }
    size_t n = strnlen(argv[2], sizeof address.sun_path - 2); /* after the 0 of an abstract name */
    memcpy(address.sun_path + 1, argv[2], n);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    dsi_text_add_bytes(&request, argv[3], strlen(argv[3]) + 1);
    for (int i = 4; i < argc; i++) dsi_text_add(&request, i > 4 ? " %s" : "%s", argv[i]);
    bool good = fd >= 0 && !connect(fd, (struct sockaddr *)&address, length) &&
                send(fd, request.s, request.n, MSG_NOSIGNAL) == (ssize_t)request.n;
    if (!good) fprintf(stderr, "deepspeed: --join_agent: the launcher: %s\n", strerror(errno));
    int status = good ? agent_copy_output(fd) : EXIT_FAILURE;
    dsi_text_free(&request);
    if (fd >= 0) close(fd);
    return status;
}
