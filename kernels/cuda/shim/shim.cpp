/* The shim's fibers and their scheduler. One launch at a time, in the calling thread. */
#include "cuda/shim/shim.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define SHIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHIM_ASAN 1
#endif
#endif
#ifdef SHIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
uint64_t shim_seed;

namespace {

enum { STACK_BYTES = 128 << 10, WARP = 32 };
enum state { READY, AT_BARRIER, AT_WARP, DONE };

struct copy {
    void *dst;
    const void *src;
    size_t nbytes, nvalid;
    unsigned group;
};

struct fiber {
    void *sp;
    char *stack;
    enum state state;
    void *fake; /* AddressSanitizer's */
    std::vector<copy> copies;
    unsigned group; /* of asynchronous copies: the one that is open */
};

struct warp {
    shim_warp_fn together;
    void *lane[WARP];
    unsigned narrived;
};

std::vector<fiber> fibers; /* stacks stay for the next launch */
std::vector<warp> warps;
std::vector<unsigned> order;
void *main_sp, *main_fake;
const void *main_bottom;
size_t main_nbytes;
unsigned current, nthreads, nbarrier, ndone;
shim_body body;
void *body_ctx;
void *shared;
size_t shared_size;
uint64_t draws;

[[noreturn]] void bug(const char *words)
{
    fprintf(stderr, "shim: block (%u, %u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, words);
    abort();
}

/* Saves what a call must keep, changes stacks, goes on there. */
#if defined(__x86_64__)
extern "C" void shim_switch(void **save, void *load);
asm(".text\n.globl shim_switch\n.hidden shim_switch\n.type shim_switch,@function\nshim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size shim_switch,.-shim_switch\n");
#else
#error "the shim switches stacks by hand: x86-64 only"
#endif

void leave_to(void **fake, const void *bottom, size_t nbytes)
{
#ifdef SHIM_ASAN
    __sanitizer_start_switch_fiber(fake, bottom, nbytes);
#else
    (void)fake, (void)bottom, (void)nbytes;
#endif
}

void arrived(void *fake, const void **bottom, size_t *nbytes)
{
#ifdef SHIM_ASAN
    __sanitizer_finish_switch_fiber(fake, bottom, nbytes);
#else
    (void)fake, (void)bottom, (void)nbytes;
#endif
}

void resume(unsigned i)
{
    current = i;
    threadIdx.x = i;
    leave_to(&main_fake, fibers[i].stack, STACK_BYTES);
    shim_switch(&main_sp, fibers[i].sp);
    arrived(main_fake, nullptr, nullptr);
}

void pause_fiber()
{
    fiber &f = fibers[current];
    leave_to(f.state == DONE ? nullptr : &f.fake, main_bottom, main_nbytes);
    shim_switch(&f.sp, main_sp);
    arrived(f.fake, &main_bottom, &main_nbytes);
}

void fiber_main()
{
    arrived(nullptr, &main_bottom, &main_nbytes);
    body(body_ctx);
    fiber &f = fibers[current];
    if (!f.copies.empty())
        bug("ends while copies are under way");
    f.state = DONE;
    ndone++;
    pause_fiber();
    abort();
}

void prepare(fiber &f)
{
    if (!f.stack) {
        void *p = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            bug("no memory for its stack");
        f.stack = static_cast<char *>(p);
    }
    void **top = reinterpret_cast<void **>(f.stack + STACK_BYTES);
    *--top = nullptr; /* where a caller's return address would be: keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f.sp = top;
    f.state = READY;
    f.group = 0;
}

void copy_now(const copy &c)
{
    if (c.nvalid)
        memcpy(c.dst, c.src, c.nvalid);
    memset(static_cast<char *>(c.dst) + c.nvalid, 0, c.nbytes - c.nvalid);
}

uint64_t draw()
{
    uint64_t x = shim_seed * 0x9e3779b97f4a7c15u + draws++;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void arrange()
{
    for (unsigned i = 0; i < nthreads; i++)
        order[i] = shim_seed == 1 ? nthreads - 1 - i : i;
    for (unsigned i = nthreads; shim_seed > 1 && i > 1; i--)
        std::swap(order[i - 1], order[draw() % i]);
}

/* A round runs each fiber that can run until it waits; where the order is odd those of one warp alone, so that a warp gets as far ahead of the others as barriers
 * let it. */
void run_block()
{
    for (unsigned i = 0; i < nthreads; i++)
        prepare(fibers[i]);
    for (warp &w : warps)
        w = warp();
    nbarrier = ndone = 0;
    memset(shared, 0xff, shared_size);
    while (ndone < nthreads) {
        bool ran = false;
        unsigned only = 0;
        arrange();
        for (unsigned i = 0; i < nthreads; i++)
            if (fibers[order[i]].state == READY && !(shim_seed % 2 && ran && order[i] / WARP != only)) {
                ran = true;
                only = order[i] / WARP;
                resume(order[i]);
            }
        if (!ran)
            bug("waits for threads that never come");
    }
}

} // namespace

void shim_run(dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body fn, void *ctx)
{
    if (nthread == 0 || nthread % WARP || nthread > 1024)
        bug("blocks are whole warps, up to 1024 threads");
    if (fibers.size() < nthread)
        fibers.resize(nthread);
    warps.assign(nthread / WARP, warp());
    order.resize(nthread);
    nthreads = nthread;
    body = fn;
    body_ctx = ctx;
    gridDim = grid;
    blockDim = dim3(nthread);
    shared_size = shared_nbytes;
    shared = aligned_alloc(128, (shared_nbytes + 127) / 128 * 128 + 128);
    const uint64_t nblock = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t b = 0; b < nblock; b++) {
        const uint64_t at = shim_seed == 1 ? nblock - 1 - b : b;
        blockIdx.x = (unsigned)(at % grid.x);
        blockIdx.y = (unsigned)(at / grid.x % grid.y);
        blockIdx.z = (unsigned)(at / grid.x / grid.y);
        run_block();
    }
    free(shared);
}

void *shim_shared(size_t nbytes)
{
    if (nbytes > shared_size)
        bug("uses more shared memory than its launch gave");
    return shared;
}

void shim_barrier(void)
{
    if (ndone)
        bug("at a barrier that others have left the kernel without");
    fibers[current].state = AT_BARRIER;
    if (++nbarrier == nthreads) {
        nbarrier = 0;
        for (unsigned i = 0; i < nthreads; i++)
            fibers[i].state = READY;
    }
    pause_fiber();
}

void shim_warp(shim_warp_fn together, void *mine)
{
    warp &w = warps[current / WARP];
    if (w.narrived && w.together != together)
        bug("its warp is at another operation");
    w.together = together;
    w.lane[current % WARP] = mine;
    fibers[current].state = AT_WARP;
    if (++w.narrived == WARP) {
        together(w.lane);
        w.narrived = 0;
        for (unsigned i = 0; i < WARP; i++)
            fibers[current / WARP * WARP + i].state = READY;
    }
    pause_fiber();
}

void shim_copy_async(void *dst, const void *src, size_t nbytes, size_t nvalid)
{
    fiber &f = fibers[current];
    if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % nbytes)
        bug("copies to or from an odd address");
    const copy c = {dst, src, nbytes, nvalid, f.group};
    if (shim_seed % 2)
        copy_now(c);
    else
        f.copies.push_back(c);
}

void shim_copy_commit(void)
{
    fibers[current].group++;
}

/* All groups but the nleft last ones that were committed. */
void shim_copy_wait(unsigned nleft)
{
    fiber &f = fibers[current];
    std::vector<copy> later;
    for (const copy &c : f.copies) {
        if (c.group + nleft >= f.group) {
            later.push_back(c);
            continue;
        }
        copy_now(c);
    }
    f.copies = later;
}
