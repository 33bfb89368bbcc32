/* launcher/program.c: finds a program, executes it, and explains why it cannot.
 *
 * The kernel has one message for several mistakes: "No such file or directory"
 * may mean that the interpreter of a script (line 1, after #!) or the dynamic
 * loader of a program is missing, "Exec format error" that a program is for
 * another processor. So the file is read to tell them apart.
 * SPDX-License-Identifier: MIT */
#include "program.h"
#include "older_libc.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The part by which the kernel recognizes a file. */
enum { HEAD = 256 };
typedef struct head {
    char bytes[HEAD + 1];
    size_t n;
} head;

static bool head_read(const char *path, head *h)
{
    *h = (head){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, h->bytes, HEAD);
    if (fd >= 0) close(fd);
    h->n = n > 0 ? (size_t)n : 0;
    return n >= 0;
}

/* ---- scripts ---------------------------------------------------------------------- */

/* The first word after #!; as for the kernel, a carriage return is part of it.
 * false: the file is not a script. */
static bool head_read_interpreter(const head *h, char name[HEAD])
{
    if (h->n < 2 || h->bytes[0] != '#' || h->bytes[1] != '!') return false;
    const char *s = h->bytes + 2;
    s += strspn(s, " \t");
    snprintf(name, HEAD, "%.*s", (int)strcspn(s, " \t\n"), s);
    return true;
}

/* 0, or the status with ds_error: line 1 names an interpreter that cannot be
 * executed. */
static int check_interpreter(const char *name, const head *h)
{
    char word[HEAD];
    if (!head_read_interpreter(h, word)) return 0;
    size_t n = strlen(word);
    if (!n) {
        dsi_fail(DS_EINVAL, "%s: its line 1 has no interpreter after #!", name);
        return STATUS_UNFIT;
    }
    if (access(word, X_OK) == 0) return 0;
    int status = errno == ENOENT || errno == ENOTDIR ? STATUS_ABSENT : STATUS_UNFIT;
    if (word[n - 1] == '\r')
        dsi_fail(
            DS_EINVAL,
            "%s: its lines end as on Windows, so that line 1 names the interpreter %.*s with a "
            "carriage return; expected Unix line ends (dos2unix %s)",
            name, (int)n - 1, word, name);
    else if (status == STATUS_ABSENT)
        dsi_fail(DS_EINVAL,
                 "%s: the file is there, but its interpreter is not: line 1 names %s, which does "
                 "not exist",
                 name, word);
    else
        dsi_fail(DS_EINVAL, "%s: its interpreter, which line 1 names, cannot be executed: %s: %s",
                 name, word, strerror(errno));
    return status;
}

/* ---- binary files ------------------------------------------------------------------ */

static bool is_elf(const head *h)
{
    return h->n >= sizeof(Elf64_Ehdr) && !memcmp(h->bytes, ELFMAG, SELFMAG);
}

/* A zero byte before the end of the first line: not a script for any shell. */
static bool is_binary(const head *h)
{
    const char *newline = memchr(h->bytes, '\n', h->n);
    return memchr(h->bytes, 0, newline ? (size_t)(newline - h->bytes) : h->n) != NULL;
}

/* As uname -m prints it; the header has this machine's byte order. */
static const char *machine_name(const head *h)
{
    static const struct {
        int number;
        const char *name;
    } machines[] = {{EM_X86_64, "x86_64"},   {EM_386, "i686"},
                    {EM_AARCH64, "aarch64"}, {EM_ARM, "arm"},
                    {EM_RISCV, "riscv64"},   {EM_PPC64, "ppc64"},
                    {EM_S390, "s390x"},      {EM_LOONGARCH, "loongarch64"}};
    Elf64_Half machine;
    memcpy(&machine, h->bytes + offsetof(Elf64_Ehdr, e_machine), sizeof machine);
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        if (machines[i].number == machine) return machines[i].name;
    return "another kind of machine";
}

/* The dynamic loader that a 64-bit program names. */
static bool elf_read_loader(const char *path, char name[HEAD])
{
    Elf64_Ehdr elf;
    Elf64_Phdr part;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool found = false;
    if (fd < 0) return false;
    bool good = read(fd, &elf, sizeof elf) == sizeof elf && elf.e_ident[EI_CLASS] == ELFCLASS64;
    for (int i = 0; good && !found && i < elf.e_phnum; i++) {
        off_t at = (off_t)elf.e_phoff + i * (off_t)elf.e_phentsize;
        good = pread(fd, &part, sizeof part, at) == sizeof part;
        found = good && part.p_type == PT_INTERP;
    }
    ssize_t n = found ? pread(fd, name, HEAD - 1, (off_t)part.p_offset) : 0;
    close(fd);
    name[n > 0 ? n : 0] = 0; /* the name ends with a zero byte */
    return n > 0;
}

/* ---- why it cannot be executed ------------------------------------------------------ */

static bool is_program(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) && access(path, X_OK) == 0;
}

/* ds_error: why the path is no program; returns the status. */
static int program_refuse(const char *name, const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        dsi_fail(DS_EINVAL, "%s: there is no such program %s", name,
                 !absent             ? strerror(errno)
                 : strchr(name, '/') ? "here"
                                     : "in this folder or on PATH");
        return absent ? STATUS_ABSENT : STATUS_UNFIT;
    }
    if (S_ISDIR(s.st_mode))
        dsi_fail(DS_EINVAL, "%s: it is a folder, not a program", name);
    else if (!S_ISREG(s.st_mode))
        dsi_fail(DS_EINVAL, "%s: it is not a regular file; a program is expected", name);
    else if (dsi_ends_with(name, ".py"))
        dsi_fail(DS_EINVAL, "%s: it is not executable: a script of Python needs python3 before it",
                 name);
    else
        dsi_fail(DS_EINVAL, "%s: it is not executable; a program is expected (chmod +x %s)", name,
                 name);
    return STATUS_UNFIT;
}

static int explain_format(const char *name, const head *h)
{
    struct utsname machine;
    if (is_elf(h) && uname(&machine) == 0 && strcmp(machine_name(h), machine.machine) != 0)
        dsi_fail(DS_EINVAL, "%s: it is a program for %s, and this machine is %s", name,
                 machine_name(h), machine.machine);
    else if (is_elf(h))
        dsi_fail(DS_EINVAL, "%s: it is a damaged program or not an executable (file %s)", name,
                 name);
    else
        dsi_fail(DS_EINVAL, "%s: it is neither a program of this machine nor a script (file %s)",
                 name, name);
    return STATUS_UNFIT;
}

/* Looks the program up again, as program_find knows most of the reasons. */
int program_explain(const char *name, int error)
{
    int status = 0;
    char *path = program_find(name, &status), loader[HEAD];
    head h;
    if (!path) return status;
    bool readable = head_read(path, &h);
    bool no_loader = error == ENOENT && readable && elf_read_loader(path, loader);
    dsi_free(path);
    if (error == ENOEXEC && readable) return explain_format(name, &h);
    if (no_loader)
        dsi_fail(DS_EINVAL,
                 "%s: the file is there, but its dynamic loader is not: %s; it was built for "
                 "another system",
                 name, loader);
    else
        dsi_fail(DS_EINVAL, "%s: %s", name, strerror(error));
    return error == ENOENT ? STATUS_ABSENT : STATUS_UNFIT;
}

/* ---- finding and executing ---------------------------------------------------------- */

char *program_on_path(const char *program)
{
    const char *path = getenv("PATH");
    if (!path) path = "/usr/bin:/bin";
    for (const char *s = path;; s++) {
        size_t n = strcspn(s, ":");
        dsi_text t = dsi_text_of("%.*s%s%s", (int)n, s, n ? "/" : "./", program);
        if (is_program(t.s)) return t.s;
        dsi_text_free(&t);
        s += n;
        if (!*s) return NULL;
    }
}

static char *program_search(const char *name, int *status)
{
    dsi_text path = dsi_text_of("%s%s", strchr(name, '/') ? "" : "./", name);
    if (is_program(path.s)) return path.s;
    char *found = strchr(name, '/') ? NULL : program_on_path(name);
    if (!found) *status = program_refuse(name, path.s);
    dsi_text_free(&path);
    return found;
}

char *program_find(const char *name, int *status)
{
    head h;
    *status = STATUS_ABSENT;
    if (!*name) return dsi_refuse("the name of the program is empty");
    char *path = program_search(name, status);
    if (!path) return NULL;
    bool readable = head_read(path, &h);
    *status = readable ? check_interpreter(name, &h) : 0;
    if (readable && !h.n) { /* /bin/sh would run it, with status 0 */
        *status = STATUS_UNFIT;
        dsi_fail(DS_EINVAL, "%s: the file is empty; a program is expected", name);
    }
    if (!*status) return path;
    dsi_free(path);
    return NULL;
}

/* execvp runs a file without #! by /bin/sh; binary files are kept from it. */
void program_execute(char **argv)
{
    int status, error = ENOENT;
    head h;
    char *path = program_find(argv[0], &status);
    if (path) {
        execv(path, argv);
        error = errno;
        if (error == ENOEXEC && head_read(path, &h) && !is_elf(&h) && !is_binary(&h))
            execvp(path, argv); /* by /bin/sh */
    } else if (status == STATUS_UNFIT)
        error = EACCES;
    dsi_free(path);
    errno = error;
}
