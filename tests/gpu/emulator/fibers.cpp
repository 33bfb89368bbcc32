/* tests/gpu/emulator/fibers.cpp: stacks, and switching between them.
 * SPDX-License-Identifier: MIT */
#include "internal.h"

#include <sys/mman.h>

#ifdef SANITIZED_KERNELS
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_on_cpu
{

enum { STACK = 256 << 10 };

Fiber *self;
static std::vector<void *> stacks; /* free ones */
static void *host_sp, *host_asan;
#ifdef SANITIZED_KERNELS
static const void *host_bottom;
static size_t host_size;
static bool from_host;
#endif

extern "C" void cuda_on_cpu_switch(void **from, void *to);
#if defined(__x86_64__)
asm(".text\n.globl cuda_on_cpu_switch\n.type cuda_on_cpu_switch,@function\ncuda_on_cpu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\npop %rcx\njmp *%rcx\n"
    ".size cuda_on_cpu_switch,.-cuda_on_cpu_switch\n");
#elif defined(__aarch64__)
asm(".text\n.globl cuda_on_cpu_switch\ncuda_on_cpu_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp "
    "x25,x26,[sp,#48]\n"
    "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp "
    "d12,d13,[sp,#128]\n"
    "stp d14,d15,[sp,#144]\nmov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp "
    "d12,d13,[sp,#128]\n"
    "ldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#else
#error "a switch of stacks for this processor"
#endif

static void arrived(void *asan)
{
#ifdef SANITIZED_KERNELS
    __sanitizer_finish_switch_fiber(asan, from_host ? &host_bottom : nullptr,
                                    from_host ? &host_size : nullptr);
#else
    (void)asan;
#endif
}

static void switch_to(Fiber *to, bool for_good);

/* Runs a thread, and on the same stack those that begin when it has ended. */
static void body()
{
    arrived(nullptr);
    for (;;) {
        launch->thread(launch->args);
        ended(self);
        Fiber *to = next_fiber();
        if (!to || !begins(to)) switch_to(to, true);
        to->stack = self->stack;
        self = to;
    }
}

/* Tops of stacks are at different places in their pages, so that those of a
 * block do not share the few lines of one set of the cache. */
static void *fresh(size_t bytes)
{
    static unsigned made;
    char *p = (char *)mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    mprotect(p, 4096, PROT_NONE); /* a stack's overrun is a signal */
    return p + made++ % 16 * 256;
}

/* A stack for a new fiber, on which body() begins. */
static void prepare(Fiber *f)
{
    if (stacks.empty()) stacks.push_back(fresh(STACK));
    f->stack = stacks.back();
    stacks.pop_back();
    void **top = (void **)((char *)f->stack + STACK) -
                 1; /* as after a call: 8 below a multiple of 16 */
    *top = nullptr;
    *--top = (void *)body;
#if defined(__x86_64__)
    f->sp = top - 6;
    memset(f->sp, 0, 48);
#else
    f->sp = top - 21;
    memset(f->sp, 0, 160);
    ((void **)f->sp)[11] = (void *)body;
#endif
}

/* From the running fiber to another, or to the host (NULL); returns when
 * something switches back. A stack that is left for good has no instrumented
 * frame, so no poisoned byte. */
static void switch_to(Fiber *to, bool for_good)
{
    Fiber *from = self;
    if (to && begins(to)) prepare(to);
    self = to;
#ifdef SANITIZED_KERNELS
    from_host = !from;
    __sanitizer_start_switch_fiber(for_good ? nullptr
                                   : from   ? &from->asan
                                            : &host_asan,
                                   to ? to->stack : host_bottom, to ? (size_t)STACK : host_size);
#endif
    if (for_good) stacks.push_back(from->stack); /* nothing takes it before the switch */
    cuda_on_cpu_switch(from ? &from->sp : &host_sp, to ? to->sp : host_sp);
    arrived(self ? self->asan : host_asan);
}

void leave() { switch_to(next_fiber(), false); }

void enter_fibers()
{
    Fiber *first = next_fiber();
    if (first) switch_to(first, false);
}

} // namespace cuda_on_cpu
