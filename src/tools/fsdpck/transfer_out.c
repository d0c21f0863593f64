/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the result of a transfer, as text or JSON. */
#include "transfer_out.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/json_out.h"
#include "common/text.h"
#include "commands.h"

static int print_json(const char *out, const struct fsdpck_mesh *mesh, const struct fsdpck_transfer_result *r)
{
    json_t *o = json_object();
    bool ok = json_out_put(o, "out", json_out_text(out));
    if (*r->save_id)
        ok = json_out_put(o, "save_id", json_out_text(r->save_id)) && ok;
    if (mesh) {
        ok = json_out_put(o, "ranks", json_out_u64(fsdpck_mesh_nranks(mesh))) && ok;
        ok = json_out_put(o, "mesh", json_out_mesh(mesh)) && ok;
    }
    ok = json_out_put(o, "tensors", json_out_u64(r->ntensors)) && ok;
    ok = json_out_put(o, "files", json_out_u64(r->nfiles)) && ok;
    ok = json_out_put(o, "payload_bytes", json_out_u64(r->payload_nbytes)) && ok;
    ok = json_out_put(o, "written_bytes", json_out_u64(r->written_nbytes)) && ok;
    ok = json_out_put(o, "read_bytes", json_out_u64(r->read_nbytes)) && ok;
    ok = json_out_put(o, "left_behind_tensors", json_out_u64(r->nleft_tensors)) && ok;
    ok = json_out_put(o, "left_behind_values", json_out_u64(r->nleft_items)) && ok;
    ok = json_out_put(o, "seconds", json_out_double(r->seconds)) && ok;
    return json_out_print(o, ok, EXIT_DONE);
}

int transfer_out_print(const char *out, const struct fsdpck_mesh *mesh, const struct fsdpck_transfer_result *r,
                       bool json)
{
    char tensors[TEXT_NBYTES], among[TEXT_NBYTES], nbytes[TEXT_NBYTES], seconds[TEXT_NBYTES], rate[TEXT_NBYTES];
    if (json)
        return print_json(out, mesh, r);
    text_print(stdout, out);
    printf(": %s, %s, %s in %s (%s)\n", text_count(r->ntensors, "tensor", tensors),
           mesh ? text_count(fsdpck_mesh_nranks(mesh), "rank", among) : text_count(r->nfiles, "file", among),
           text_bytes(r->payload_nbytes, nbytes), text_seconds(r->seconds, seconds),
           text_rate(r->payload_nbytes, r->seconds, rate));
    return EXIT_DONE;
}
