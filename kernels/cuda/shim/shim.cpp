/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's fibers and their scheduler. Runs one launch at a time, in the calling thread. */
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

void shim_bug(const char *words)
{
    fprintf(stderr, "shim: block (%u, %u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
            words);
    abort();
}

namespace {

enum { STACK_BYTES = 132 << 10, WARP = 32, GROUP = 128, SHARED_ALIGNMENT = 1024 };
enum state { READY, AT_BARRIER, AT_WARP, AT_GROUP, DONE };

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
    void *fake; /* fake stack of AddressSanitizer */
    std::vector<copy> copies;
    unsigned group;   /* the open group of asynchronous copies */
    bool unpublished; /* has finished copies that shim_publish has not published yet */
};

struct warp {
    shim_warp_fn together;
    void *lane[WARP];
    unsigned narrived;
};

/* A product in flight: the operands of each thread. */
struct product {
    shim_group_fn together;
    size_t nbytes;
    std::vector<char> brought;
    unsigned number; /* index of its commit group */
};

struct group {
    product arriving;
    std::vector<product> under_way;
    unsigned narrived, open; /* index of the commit group that is still open */
};

std::vector<fiber> fibers; /* their stacks are reused by the next launch */
std::vector<warp> warps;
std::vector<group> groups;
std::vector<unsigned> order;
void *main_sp, *main_fake;
const void *main_bottom;
size_t main_nbytes;
unsigned current, nthreads, nbarrier, ndone;
bool unpublished; /* unpublished copies lie behind the last barrier; products must not read them */
shim_body body;
void *body_ctx;
void *shared;
size_t shared_size;
uint64_t draws;

/* Saves the callee-saved registers, switches stacks, and resumes there. */
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
        shim_bug("ends while copies are under way");
    if (nthreads % GROUP == 0 && !groups[current / GROUP].under_way.empty())
        shim_bug("ends while products are under way");
    f.state = DONE;
    ndone++;
    pause_fiber();
    abort();
}

void prepare(fiber &f)
{
    if (!f.stack) {
        void *p =
            mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            shim_bug("no memory for its stack");
        f.stack = static_cast<char *>(p);
    }
    /* Stacks lie whole pages apart: with their frames at one place in them, all would share a few lines of a cache. */
    const size_t apart = static_cast<size_t>(&f - fibers.data()) % 64 * 640;
    void **top = reinterpret_cast<void **>(f.stack + STACK_BYTES - apart);
    *--top = nullptr; /* dummy return address: keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f.sp = top;
    f.state = READY;
    f.group = 0;
    f.unpublished = false;
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

/* In each round every ready fiber runs until it waits. With an odd seed only those of one warp run, so that a warp gets
 * as far ahead of the others as barriers allow. */
void run_block()
{
    for (unsigned i = 0; i < nthreads; i++)
        prepare(fibers[i]);
    for (warp &w : warps)
        w = warp();
    for (group &g : groups)
        g = group();
    unpublished = false;
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
            shim_bug("waits for threads that never come");
    }
}

} // namespace

void shim_run(dim3 grid, unsigned nthread, size_t shared_nbytes, shim_body fn, void *ctx)
{
    if (nthread == 0 || nthread % WARP || nthread > 1024)
        shim_bug("blocks are whole warps, up to 1024 threads");
    if (fibers.size() < nthread)
        fibers.resize(nthread);
    warps.assign(nthread / WARP, warp());
    groups.assign(nthread / GROUP, group());
    order.resize(nthread);
    nthreads = nthread;
    body = fn;
    body_ctx = ctx;
    gridDim = grid;
    blockDim = dim3(nthread);
    shared_size = shared_nbytes;
    shared =
        aligned_alloc(SHARED_ALIGNMENT,
                      (shared_nbytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT + SHARED_ALIGNMENT);
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
        shim_bug("uses more shared memory than its launch gave");
    return shared;
}

void shim_barrier(void)
{
    if (ndone)
        shim_bug("at a barrier that others have left the kernel without");
    unpublished |= fibers[current].unpublished;
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
        shim_bug("its warp is at another operation");
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

namespace {

/* Markers of operations that take no operands. */
void at_commit(void *const[GROUP])
{
}
void at_wait(void *const[GROUP])
{
}

/* The first thread to arrive sets the operation; the others must arrive at the same one. */
void come_to(group &g, shim_group_fn what)
{
    if (g.narrived && g.arriving.together != what)
        shim_bug("its group is at another operation");
    g.arriving.together = what;
}

/* Counts an arrival. The last thread makes all of them ready and gets true. */
bool all_arrived(group &g)
{
    fibers[current].state = AT_GROUP;
    if (++g.narrived < GROUP)
        return false;
    g.narrived = 0;
    for (unsigned i = 0; i < GROUP; i++)
        fibers[current / GROUP * GROUP + i].state = READY;
    return true;
}

void multiply(product &p)
{
    void *lane[GROUP];
    for (unsigned i = 0; i < GROUP; i++)
        lane[i] = p.brought.data() + i * p.nbytes;
    p.together(lane);
}

group &own_group()
{
    if (nthreads % GROUP)
        shim_bug("is in no whole warpgroup");
    return groups[current / GROUP];
}

} // namespace

void shim_group(shim_group_fn together, const void *mine, size_t nbytes)
{
    group &g = own_group();
    if (unpublished)
        shim_bug("its group reads copies that were not published");
    come_to(g, together);
    if (g.narrived == 0)
        g.arriving = product{ together, nbytes, std::vector<char>(GROUP * nbytes), g.open };
    memcpy(g.arriving.brought.data() + current % GROUP * nbytes, mine, nbytes);
    if (all_arrived(g)) {
        if (shim_seed % 2)
            multiply(g.arriving);
        g.under_way.push_back(g.arriving);
    }
    pause_fiber();
}

void shim_group_commit(void)
{
    group &g = own_group();
    come_to(g, at_commit);
    if (all_arrived(g))
        g.open++;
    pause_fiber();
}

void shim_group_wait(unsigned nleft)
{
    group &g = own_group();
    come_to(g, at_wait);
    if (all_arrived(g)) {
        std::vector<product> later;
        for (product &p : g.under_way)
            if (p.number + nleft >= g.open)
                later.push_back(p);
            else if (shim_seed % 2 == 0)
                multiply(p);
        g.under_way = later;
    }
    pause_fiber();
}

void shim_publish(void)
{
    fibers[current].unpublished = false;
}

void shim_copy_async(void *dst, const void *src, size_t nbytes, size_t nvalid)
{
    fiber &f = fibers[current];
    if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % nbytes)
        shim_bug("copies to or from an odd address");
    const copy c = { dst, src, nbytes, nvalid, f.group };
    if (shim_seed % 2)
        copy_now(c);
    f.copies.push_back(c);
}

void shim_copy_commit(void)
{
    fibers[current].group++;
}

/* Completes all but the last nleft committed groups. */
void shim_copy_wait(unsigned nleft)
{
    fiber &f = fibers[current];
    std::vector<copy> later;
    for (const copy &c : f.copies) {
        if (c.group + nleft >= f.group) {
            later.push_back(c);
            continue;
        }
        if (shim_seed % 2 == 0)
            copy_now(c);
        f.unpublished = true;
    }
    f.copies = later;
}
