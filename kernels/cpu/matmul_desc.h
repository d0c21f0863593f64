/* SPDX-License-Identifier: Apache-2.0 */
/* How oneDNN is told of a product. */
#ifndef CPU_MATMUL_DESC_H
#define CPU_MATMUL_DESC_H

#include "cpu/matmul.h"

#include <oneapi/dnnl/dnnl.h>

/* The caller destroys *pd. */
dnnl_status_t cpu_matmul_desc(dnnl_engine_t engine, const struct cpu_matmul *shape, dnnl_primitive_desc_t *pd);

#endif
