/* tests/launcher/program.c: what is executed, and what is said of what cannot
 * be.
 * SPDX-License-Identifier: MIT */
#include "program.h"

#include "check.h"
#include "folder.h"

#include "base/mem.h"

#include <elf.h>
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int begin(void **state)
{
    (void)state;
    return chdir(folder_make());
}

static int end(void **state)
{
    (void)state;
    int status = chdir("/");
    folder_remove();
    return status;
}

static void write_file(const char *name, const void *bytes, size_t n, mode_t mode)
{
    FILE *f = fopen(name, "w");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0 || chmod(name, mode) != 0)
        fail_msg("%s: cannot be written", name);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text), 0755);
}

/* A program of 64 bits for that machine, with a loader or without; it holds no
 * code. */
static void write_elf(const char *name, int machine, const char *loader)
{
    struct {
        Elf64_Ehdr elf;
        Elf64_Phdr part;
        char loader[64];
    } file = {.elf = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
                                  EV_CURRENT},
                      .e_type = ET_EXEC,
                      .e_machine = (Elf64_Half)machine,
                      .e_version = EV_CURRENT,
                      .e_phoff = sizeof(Elf64_Ehdr),
                      .e_ehsize = sizeof(Elf64_Ehdr),
                      .e_phentsize = sizeof(Elf64_Phdr),
                      .e_phnum = 1},
              .part = {.p_type = loader ? PT_INTERP : PT_NULL,
                       .p_offset = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr)}};
    if (loader) {
        snprintf(file.loader, sizeof file.loader, "%s", loader);
        file.part.p_filesz = strlen(loader) + 1;
    }
    write_file(name, &file, sizeof file, 0755);
}

/* Checks the status of a process that executes the program. If it cannot, its
 * message must contain `part`. */
static void runs(const char *name, int want, const char *part, int line)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        char *argv[] = {(char *)name, (char *)"7", NULL};
        program_execute(argv);
        status = program_explain(name, errno);
        bool said = part && ds_error() && strstr(ds_error(), part) && !strchr(ds_error(), '\n');
        if (!said) fprintf(stderr, "line %d: %s\n", line, ds_error());
        _exit(said ? status : 99);
    }
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != want)
        fail_msg("line %d: %s: status %x, want %d", line, name, (unsigned)status, want);
}
#define RUNS(name, want)         runs(name, want, NULL, __LINE__)
#define REFUSED(name, want, why) runs(name, want, why, __LINE__)

static void good(void **state)
{
    (void)state;
    int status = -1;
    write_text("with", "#! /bin/sh -e\nexit $1\n");
    write_text("without", "exit $1\n");
    RUNS("with", 7);
    RUNS("./without", 7);
    RUNS("true", 0); /* of PATH */
    char *path = program_find("with", &status);
    CHECK(path && !strcmp(path, "./with"));
    CHECK_INT(status, 0);
    dsi_free(path);
}

static void not_there(void **state)
{
    (void)state;
    REFUSED("./nothing", STATUS_ABSENT, "./nothing: there is no such program here");
    REFUSED("nothing", STATUS_ABSENT, "there is no such program in this folder or on PATH");
    REFUSED("", STATUS_ABSENT, "the name of the program is empty");
    mkdir("folder", 0700);
    REFUSED("./folder", STATUS_UNFIT, "./folder: it is a folder, not a program");
    write_file("text", "exit 0\n", 7, 0600);
    REFUSED("./text/x", STATUS_ABSENT, "there is no such program");
    REFUSED("text", STATUS_UNFIT, "text: it is not executable");
    write_file("train.py", "pass\n", 5, 0600);
    REFUSED("./train.py", STATUS_UNFIT, "a script of Python needs python3 before it");
    write_file("nothing_in_it", "", 0, 0755);
    REFUSED("nothing_in_it", STATUS_UNFIT, "nothing_in_it: the file is empty");
    mkfifo("pipe", 0700);
    REFUSED("./pipe", STATUS_UNFIT, "it is not a regular file");
}

static void interpreters(void **state)
{
    (void)state;
    write_text("broken", "#!/none/such -x\n");
    REFUSED("./broken", STATUS_ABSENT,
            "./broken: the file is there, but its interpreter is not: line 1 names /none/such,");
    write_text("windows", "#!/bin/sh\r\nexit 0\r\n");
    REFUSED("windows", STATUS_ABSENT, "the interpreter /bin/sh with a carriage return");
    write_text("nameless", "#! \nexit 0\n");
    REFUSED("nameless", STATUS_UNFIT, "its line 1 has no interpreter");
    write_file("plain", "x", 1, 0600);
    write_text("plainly", "#!./plain\n");
    REFUSED("plainly", STATUS_UNFIT, "cannot be executed: ./plain: Permission denied");
}

static void binaries(void **state)
{
    (void)state;
    write_elf("foreign", 0xfeed, NULL);
    REFUSED("./foreign", STATUS_UNFIT,
            "./foreign: it is a program for another kind of machine, and this machine is ");
    write_file("zeros", "\0\0\0\n", 4, 0755);
    REFUSED("./zeros", STATUS_UNFIT, "it is neither a program of this machine nor a script");
#ifdef __x86_64__
    write_elf("strange", EM_X86_64, "/none/such/ld.so");
    REFUSED("./strange", STATUS_ABSENT, "its dynamic loader is not: /none/such/ld.so;");
    write_elf("arm", EM_S390, NULL);
    REFUSED("./arm", STATUS_UNFIT, "it is a program for s390x, and this machine is x86_64");
#endif
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
TEST_MAIN(TEST(good), TEST(not_there), TEST(interpreters), TEST(binaries))
