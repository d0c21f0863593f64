/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which products the panel kernels compute, and collects the operands that such a product adds up. */
#include "cpu/packed.h"

#include "cpu/packed_plan.h"
#include "cpu/stream.h"

static bool add_part(struct cpu_packed *w, struct cpu_packed_part o)
{
    enum kern_dtype dtype = w->g->a.dtype;
    if (o.k == 0)
        return true;
    if (w->nparts == CPU_PACKED_PARTS || o.a.dtype != dtype || o.b.dtype != dtype)
        return false;
    o.at = w->units;
    w->units += cpu_packed_units(w, o.k);
    w->parts[w->nparts++] = o;
    return true;
}

bool cpu_packed_collect(struct kern_stream *stream, const struct cpu_product *p, struct cpu_packed *w)
{
    const struct kern_gemm *g = &p->g;
    *w = (struct cpu_packed){ .stream = stream, .panels = stream->panels[g->a.dtype], .g = g, .m = g->m, .n = g->n };
    bool good = w->panels && p->drop_a.p == 0 && p->drop_b.p == 0 && g->alpha != 0 &&
                (g->nlowrank == 0 || (g->alpha == 1 && !g->trans_a));
    good = good && add_part(w, (struct cpu_packed_part){ g->a, g->b, g->k, g->trans_a, g->trans_b, 0 });
    for (int i = 0; i < g->nlowrank && good; i++) {
        const struct kern_lowrank *r = &g->lowrank[i];
        good = r->alpha == 1 && r->dropout.p == 0 && r->row0 == 0 && r->nrow == g->m &&
               add_part(w, (struct cpu_packed_part){ r->s, r->b, r->r, false, r->trans_b, 0 });
    }
    return good && w->nparts > 0;
}

bool cpu_packed_product(struct kern_stream *stream, const struct cpu_product *p)
{
    struct cpu_packed w;
    if (!cpu_packed_collect(stream, p, &w))
        return false;
    cpu_packed_choose(stream->choices, &w);
    return true;
}
