/* tests/gpu/ptx_machine.c: the machine that executes PTX (emulator/ptx_machine):
 * instructions beside numbers of the PTX manual's rules, made by exact
 * arithmetic elsewhere; and mistakes, planted in the text of small kernels and
 * of the library's own, each of which must be seen.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"

#include "device/cuda/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEAD ".version 7.0\n.target sm_80\n.address_size 64\n"
#define ENTRY \
    HEAD ".visible .entry k(\n.param .align 8 .b8 k_param_0[16]\n)\n.maxntid 128, 1, 1\n{\n" \
         ".reg .b64 %x<64>;\n.reg .pred %p<8>;\n"

/* ---- instructions: of a, b and c to d, or to the predicate p ---- */

static const struct Unit {
    const char *text;
    uint64_t a, b, c, want;
} units[] = {
    {"add.s32 d, a, b", 0xffffffff, 2, 0, 1},
    {"sub.s64 d, a, b", 1, 2, 0, 0xffffffffffffffff},
    {"mul.lo.s32 d, a, b", 0x10001, 0x10001, 0, 0x20001},
    {"mul.hi.u32 d, a, b", 0xffffffff, 0xffffffff, 0, 0xfffffffe},
    {"mul.hi.s32 d, a, b", 0xffffffff, 2, 0, 0xffffffff},
    {"mul.hi.s64 d, a, b", 0x8000000000000000, 4, 0, 0xfffffffffffffffe},
    {"mul.wide.s32 d, a, b", 0xffffffff, 3, 0, 0xfffffffffffffffd},
    {"mul.wide.u32 d, a, b", 0xffffffff, 3, 0, 0x2fffffffd},
    {"mad.wide.u32 d, a, b, c", 0xffffffff, 3, 3, 0x300000000},
    {"mad.lo.s32 d, a, b, c", 7, 0xffffffff, 8, 1},
    {"div.s32 d, a, b", 0xfffffff9, 2, 0, 0xfffffffd},
    {"div.s32 d, a, b", 0x80000000, 0xffffffff, 0, 0x80000000},
    {"rem.s32 d, a, b", 0xfffffff9, 2, 0, 0xffffffff},
    {"div.u64 d, a, b", 0xfffffffffffffff9, 2, 0, 0x7ffffffffffffffc},
    {"shl.b32 d, a, b", 1, 32, 0, 0},
    {"shl.b64 d, a, b", 1, 33, 0, 0x200000000},
    {"shr.u32 d, a, b", 0x80000000, 40, 0, 0},
    {"shr.s32 d, a, b", 0x80000000, 40, 0, 0xffffffff},
    {"shr.s64 d, a, b", 0x8000000000000000, 60, 0, 0xfffffffffffffff8},
    {"bfi.b32 d, a, b, 4, 8", 0x1ff, 0xffffffff, 0, 0xffffffff},
    {"bfi.b32 d, a, b, 28, 8", 0, 0xffffffff, 0, 0x0fffffff},
    {"prmt.b32 d, a, b, c", 0x33221100, 0x77665584, 0x0c71, 0x00ff7711},
    {"popc.b32 d, a", 0xf0f0, 0, 0, 8},
    {"clz.b64 d, a", 1, 0, 0, 63},
    {"min.s32 d, a, b", 0xffffffff, 1, 0, 0xffffffff},
    {"min.u32 d, a, b", 0xffffffff, 1, 0, 1},
    {"neg.s16 d, a", 1, 0, 0, 0xffff},
    {"not.b64 d, a", 1, 0, 0, 0xfffffffffffffffe},
    {"add.cc.u32 d, a, b; addc.u32 d, c, 0", 0xffffffff, 1, 7, 8},
    {"sub.cc.u32 d, a, b; subc.u32 d, c, 0", 0, 1, 7, 6},
    {"mad.lo.cc.u32 d, a, b, c; madc.hi.u32 d, a, b, 5", 0xffffffff, 2, 2, 7},
    {"selp.b32 d, a, b, p", 3, 4, 0, 4}, /* p is false */
    {"cvt.s64.s32 d, a", 0x80000000, 0, 0, 0xffffffff80000000},
    {"cvt.u32.u16 d, a", 0x12345678, 0, 0, 0x5678},
    {"cvt.s32.s16 d, a", 0x8000, 0, 0, 0xffff8000},
    {"cvt.rn.f32.s32 d, a", 0x1000001, 0, 0, 0x4b800000},
    {"cvt.rzi.s32.f32 d, a", 0xc0200000, 0, 0, 0xfffffffe}, /* -2.5 */
    {"cvt.rni.s32.f32 d, a", 0xc0200000, 0, 0, 0xfffffffe},
    {"cvt.rmi.f32.f32 d, a", 0xc0200000, 0, 0, 0xc0400000},
    {"cvt.rpi.f32.f32 d, a", 0xc0200000, 0, 0, 0xc0000000},
    {"cvt.rzi.s32.f32 d, a", 0x501502f9, 0, 0, 0x7fffffff}, /* 1e10 */
    {"cvt.rzi.s32.f32 d, a", 0x7fc00000, 0, 0, 0},
    {"cvt.sat.f32.f32 d, a", 0x7fc00000, 0, 0, 0},
    {"cvt.sat.f32.f32 d, a", 0x40200000, 0, 0, 0x3f800000},
    {"cvt.rn.f16.f32 d, a", 0x477ff000, 0, 0, 0x7c00}, /* 65520 */
    {"cvt.rn.bf16x2.f32 d, a, b", 0x3f808000, 0x3f818000, 0, 0x3f803f82},
    {"cvt.rn.f32.f64 d, a", 0x3fd5555555555555, 0, 0, 0x3eaaaaab},
    {"cvt.f64.f32 d, a", 0xc0200000, 0, 0, 0xc004000000000000},
    {"add.f32 d, a, b", 0x3f800000, 0x33c00000, 0, 0x3f800001},
    {"add.rz.f32 d, a, b", 0x3f800000, 0x33c00000, 0, 0x3f800000},
    {"fma.rn.f32 d, a, b, c", 0x3dcccccd, 0x3dcccccd, 0xbc23d70b, 0xafe147ae},
    {"fma.rm.f32 d, a, b, c", 0x3dcccccd, 0x3dcccccd, 0x3f800000, 0x3f8147ae},
    {"fma.rp.f32 d, a, b, c", 0x3dcccccd, 0x3dcccccd, 0x3f800000, 0x3f8147af},
    {"div.rn.f32 d, a, b", 0x3f800000, 0x40400000, 0, 0x3eaaaaab},
    {"rcp.rn.f64 d, a", 0x4008000000000000, 0, 0, 0x3fd5555555555555},
    {"rcp.approx.ftz.f64 d, a", 0x4008000000000000, 0, 0, 0x3fd5555500000000},
    {"rcp.approx.ftz.f32 d, a", 0x00400000, 0, 0, 0x7f800000},
    {"ex2.approx.ftz.f32 d, a", 0xc3020000, 0, 0, 0}, /* 2^-130 */
    {"ex2.approx.f32 d, a", 0xc3020000, 0, 0, 0x00080000},
    {"sqrt.rn.f32 d, a", 0x40000000, 0, 0, 0x3fb504f3},
    {"max.f32 d, a, b", 0x7fc00000, 0xc0200000, 0, 0xc0200000},
    {"min.f32 d, a, b", 0, 0x80000000, 0, 0x80000000},
    {"abs.f32 d, a", 0x80000000, 0, 0, 0},
    {"neg.f32 d, a", 0, 0, 0, 0x80000000},
    {"copysign.f32 d, a, b", 0x80000000, 0x3f800000, 0, 0xbf800000},
    {"setp.lt.s32 p, a, b", 0xffffffff, 0, 0, 1},
    {"setp.lt.u32 p, a, b", 0xffffffff, 0, 0, 0},
    {"setp.ne.f32 p, a, b", 0x7fc00000, 0, 0, 0},
    {"setp.neu.f32 p, a, b", 0x7fc00000, 0, 0, 1},
    {"setp.leu.f32 p, a, b", 0x7fc00000, 0, 0, 1},
    {"setp.nan.f64 p, a, b", 0, 0x7ff8000000000000, 0, 1},
    {"mov.b64 {t, d}, a", 0x0000000500000006, 0, 0, 5},
    {"mov.b64 d, {a, b}", 6, 5, 0, 0x0000000500000006},
    {"mov.b32 d, {a, b}", 6, 5, 0, 0x00050006},
};

/* ---- kernels that the driver is given ---- */

typedef struct Gpu {
    dsi_device *d;
    const dsi_cuda_driver *f;
    CUdeviceptr there; /* 4096 bytes */
} Gpu;

/* Starts the driver: in a process of its own. */
static Gpu gpu_open(void)
{
    Gpu g = {.d = dsi_device_get((ds_device){DS_CUDA, 0}), .f = dsi_cuda_open()};
    g.there = (CUdeviceptr)(uintptr_t)dsi_cache_alloc(g.d, 4096);
    return g;
}

/* Runs kernel k of the text with the argument {there, there + 2048}. */
static void gpu_run(const Gpu *g, const char *text, unsigned blocks, unsigned threads, char *data)
{
    CUmodule module;
    CUfunction k;
    CUdeviceptr arg[2] = {g->there, g->there + 2048};
    CHECK(dsi_cuda_enter(g->d));
    CHECK_INT(g->f->module_load(&module, text, 0, NULL, NULL), CUDA_SUCCESS);
    CHECK_INT(g->f->module_function(&k, module, "k"), CUDA_SUCCESS);
    g->f->copy_in(g->there, data, 4096, g->d->stream.handle);
    CHECK_INT(
        g->f->launch(k, blocks, 1, 1, threads, 1, 1, 0, g->d->stream.handle, (void *[]){arg}, NULL),
        CUDA_SUCCESS);
    g->f->copy_out(data, g->there, 4096, g->d->stream.handle);
    CHECK_INT(g->f->stream_sync(g->d->stream.handle), CUDA_SUCCESS);
    g->f->module_free(module);
}

static void unit_run(const Gpu *g, const struct Unit *u)
{
    static const char before[] = ENTRY
        ".reg .b64 a, b, c, d, t;\n.reg .pred p;\nld.param.u64 %x1, [k_param_0];\n"
        "ld.global.u64 a, [%x1];\nld.global.u64 b, [%x1+8];\nld.global.u64 c, [%x1+16];\n"
        "mov.u64 d, 0;\nsetp.ne.s32 p, 0, 0;\n";
    static const char after[] = ";\n@p mov.u64 d, 1;\nst.global.u64 [%x1+24], d;\nret;\n}\n";
    char full[1024], data[4096] = {0};
    uint64_t in[4] = {u->a, u->b, u->c, 0};
    snprintf(full, sizeof full, "%s%s%s", before, u->text, after);
    memcpy(data, in, sizeof in);
    gpu_run(g, full, 1, 1, data);
    memcpy(in, data, sizeof in);
    if (in[3] != u->want)
        fail_msg("%s: %llx, want %llx", u->text, (unsigned long long)in[3],
                 (unsigned long long)u->want);
}

static void instructions(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_CUDA_MACHINE", "ptx", 1);
        Gpu g = gpu_open();
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) unit_run(&g, &units[i]);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0);
}

/* ---- mistakes ---- */

/* Of 128 threads. `right` is said in place of `wrong` in the other kernel; the
 * wrong one ends with a message that has `said` in it. %x2: the thread. */
static const struct Mistake {
    const char *text, *wrong, *right, *said;
} mistakes[] = {
    {"shl.b32 %%x3, %%x2, 2;\nmov.u32 %%x4, s;\nadd.s32 %%x5, %%x4, %%x3;\n"
     "st.shared.u32 [%%x5], %%x2;\n%s;\nxor.b32 %%x6, %%x3, 128;\nadd.s32 %%x7, %%x4, %%x6;\n"
     "ld.shared.u32 %%x8, [%%x7];\nbar.sync 0",
     "membar.gl", "bar.sync 0", "race (read after write) on shared memory"},
    {"mov.u32 %%x4, s;\nsetp.lt.u32 %%p1, %%x2, %s;\n@%%p1 st.shared.u32 [%%x4], %%x2", "64", "1",
     "race (write after write)"},
    {"shl.b32 %%x3, %%x2, 2;\nmov.u32 %%x4, s;\nadd.s32 %%x5, %%x4, %%x3;\n"
     "st.shared.u32 [%%x5], %%x2;\n%s;\nxor.b32 %%x6, %%x3, 4;\nadd.s32 %%x7, %%x4, %%x6;\n"
     "ld.shared.u32 %%x8, [%%x7]",
     "membar.gl", "bar.warp.sync -1", "race (read after write)"},
    {"mov.u32 %%x4, s;\nld.shared.u32 %%x3, [%%x4+%s]", "512", "508", "are in no variable"},
    {"ld.global.v2.u32 {%%x3, %%x4}, [%%x1+%s]", "4", "8", "is no multiple of 8"},
    {"ld.global.u32 %%x3, [%%x1+%s]", "1073741824", "4", "are in no allocation"},
    {"ld.param.u64 %%x3, [k_param_0+%s]", "16", "8", "are in no allocation"},
    {"setp.lt.u32 %%p1, %%x2, %s;\n@%%p1 bra $L1;\nbar.sync 0;\nbra $L2;\n$L1:\nbar.sync 0;\n$L2:\n"
     "membar.gl",
     "16", "0", "wait at different barriers"},
    {"setp.lt.u32 %%p1, %%x2, 16;\n@%%p1 bra $L1;\n%s;\n$L1:\nbar.sync 0",
     "shfl.sync.bfly.b32 %x3, %x2, 1, 31, -1", "membar.gl", "wait for ever"},
    {"shfl.sync.bfly.b32 %%x3, %%x2, 1, 31, %s", "1", "-1", "leaves the lane out"},
    {"setp.lt.u32 %%p1, %%x2, 32;\nshl.b32 %%x3, %%x2, 4;\nmov.u32 %%x4, s;\n"
     "add.s32 %%x5, %%x4, %%x3;\n@%%p1 cp.async.cg.shared.global [%%x5], [%%x1], 16;\n"
     "cp.async.commit_group;\ncp.async.wait_group %s",
     "1", "0", "before its cp.async was waited for"},
    {"mov.u32 %%x3, %%ctaid.x;\nmul.wide.u32 %%x4, %%x3, %s;\nadd.s64 %%x5, %%x1, %%x4;\n"
     "st.global.u32 [%%x5+64], %%x3",
     "0", "4", "race (write after write) of blocks on global memory"},
    {"%s %%x3, %%x2", "tanh.approx.f32", "ex2.approx.f32", "is not known to the machine"},
};

/* In a process of its own: the status is not 0 if the kernel is stopped. */
static bool stops(const char *text, unsigned threads, char *said, size_t room)
{
    FILE *out = tmpfile();
    CHECK(out);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        static char data[4096];
        setenv("FAKE_CUDA_MACHINE", "ptx", 1);
        setenv("FAKE_CUDA_RACES", "1", 1);
        dup2(fileno(out), STDERR_FILENO);
        Gpu g = gpu_open();
        gpu_run(&g, text, 2, threads, data);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    rewind(out);
    said[fread(said, 1, room - 1, out)] = 0;
    fclose(out);
    return status != 0;
}

static bool mistake_stops(const struct Mistake *m, const char *which, char *said, size_t room)
{
    static const char *const frame[] = {
        ENTRY ".shared .align 16 .b8 s[512];\nld.param.u64 %x1, [k_param_0];\n"
              "mov.u32 %x2, %tid.x;\n",
        ";\nst.global.u32 [%x1+1024], 1;\nret;\n}\n"};
    char body[1024], text[2048];
    snprintf(body, sizeof body, m->text, which);
    snprintf(text, sizeof text, "%s%s%s", frame[0], body, frame[1]);
    return stops(text, 128, said, room);
}

static void mistakes_are_seen(void **state)
{
    (void)state;
    char said[2048];
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const struct Mistake *m = &mistakes[i];
        if (mistake_stops(m, m->right, said, sizeof said)) fail_msg("%s: %s", m->right, said);
        if (!mistake_stops(m, m->wrong, said, sizeof said) || !strstr(said, m->said))
            fail_msg("%s: %s, want %s", m->wrong, said, m->said);
    }
}

/* ---- mistakes in the library's kernels, seen by the self-test ---- */

static const struct Edit {
    const char *row, *edit, *said; /* FAKE_CUDA_EDIT; what the self-test says then */
} edits[] = {
    {"wgmma", "probe_wgmma_128;wgmma.fence.sync.aligned;membar.gl", "without wgmma.fence"},
    {"wgmma", "probe_wgmma_128;fence.proxy.async.shared::cta;membar.gl",
     "without fence.proxy.async"},
    {"wgmma", "probe_wgmma_128;wgmma.commit_group.sync.aligned;membar.gl", "touches a sum"},
    {"wgmma", "probe_wgmma_128;wgmma.wait_group.sync.aligned 0;membar.gl", "touches a sum"},
    {"wgmma", "probe_wgmma_128;bar.sync 0;membar.gl", "race"},
    {"wgmma", "probe_wgmma_128;.f32.f16.f16;.f32.bf16.bf16", "DIFFERS"},
    {"ldmatrix", "probe_ldmatrix;x4.shared;x4.trans.shared", "DIFFERS"},
    {"mma_", "probe_mma_f16;.f32.f16.f16.f32;.f32.bf16.bf16.f32", "DIFFERS"},
    {"cp_async", "probe_cp_async16;cp.async.wait_group 1;membar.gl", "race"},
    {"softmax", "softmax_f32;bar.sync 0;membar.gl", "race"},
    {"softmax", "softmax_f32;shfl.sync.bfly;shfl.sync.up", "DIFFERS"},
    {"group_rows", "route_sort;shfl.sync.up;shfl.sync.bfly", "DIFFERS"},
    {"topk", "topk;shfl.sync.bfly;shfl.sync.up", "DIFFERS"},
};

static void edits_are_seen(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char command[600], said[8192];
        snprintf(command, sizeof command,
                 "FAKE_CUDA_MACHINE=ptx FAKE_CUDA_RACES=1 FAKE_CUDA_EDIT='%s' '%s' --gpu_selftest "
                 "--quick --only %s 2>&1",
                 edits[i].edit, DS_REPORT, edits[i].row);
        FILE *out = popen(command, "r");
        CHECK(out);
        said[fread(said, 1, sizeof said - 1, out)] = 0;
        CHECK(pclose(out) != 0);
        if (!strstr(said, edits[i].said))
            fail_msg("%s: %s, want %s", edits[i].edit, said, edits[i].said);
    }
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(instructions),
                                       cmocka_unit_test(mistakes_are_seen),
                                       cmocka_unit_test(edits_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
