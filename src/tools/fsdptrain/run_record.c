/* SPDX-License-Identifier: Apache-2.0 */
#include "run_record.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <fsdpck/fsdpck.h>

#include "common/json_out.h"
#include "plan_table.h"

struct run_record *run_record_new(void)
{
    struct run_record *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return r == MAP_FAILED ? NULL : r;
}

/* A killed run may have left half a line: begin a new one behind it. */
static bool is_torn(int fd)
{
    const off_t end = lseek(fd, 0, SEEK_END);
    char last = '\n';
    return end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n';
}

/* One write, so that lines of several processes do not mix. Takes the object. Only a start creates the file: the folder
 * of a later line may be another one that was put in its place. */
static bool append(const struct run_record *r, json_t *o, bool creates)
{
    char *text = json_dumps(o, 0), *line = NULL;
    const int fd =
        text ? open(r->path, O_RDWR | O_APPEND | (creates ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC, 0666) : -1;
    const int n = fd < 0 ? -1 : asprintf(&line, "%s%s\n", is_torn(fd) ? "\n" : "", text);
    const bool ok = n > 0 && write(fd, line, (size_t)n) == n;
    if (fd >= 0)
        close(fd);
    if (n >= 0)
        free(line);
    free(text);
    json_decref(o);
    return ok;
}

static json_t *event(const char *kind)
{
    return json_pack("{s:s, s:I}", "event", kind, "time", (json_int_t)time(NULL));
}

/* "AMD EPYC 9B45", as Linux names it; "" where it does not. */
static void find_processor(char *out, size_t nbytes)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "re");
    *out = '\0';
    while (f && !*out && fgets(line, sizeof line, f)) {
        const char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon)
            snprintf(out, nbytes, "%.*s", (int)strcspn(colon + 1 + strspn(colon + 1, " "), "\n"),
                     colon + 1 + strspn(colon + 1, " "));
    }
    if (f)
        fclose(f);
}

static json_t *machine_json(const struct train_start *s, const char *launcher)
{
    char processor[200], system[200];
    struct utsname u = { 0 };
    uname(&u);
    find_processor(processor, sizeof processor);
    snprintf(system, sizeof system, "%s %s %s", u.sysname, u.release, u.machine);
    json_t *o = json_object();
    json_out_put(o, "fsdptrain", json_string(fsdpck_version()));
    json_out_put(o, "host", json_out_text(u.nodename));
    json_out_put(o, "system", json_out_text(system));
    json_out_put(o, "processor", json_out_text(processor));
    json_out_put(o, "processors", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_out_put(o, "memory_bytes", json_out_u64((uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE)));
    json_out_put(o, "device", s->device ? json_out_text(s->device) : json_string("cpu"));
    json_out_put(o, "ranks", json_out_u64(s->nranks));
    json_out_put(o, "threads_of_a_rank", json_out_u64(s->nthreads));
    json_out_put(o, "launcher", json_out_text(*launcher ? launcher : "none"));
    json_out_put(o, "gather", json_string(s->copies ? "copy" : "map"));
    return o;
}

/* The rank's memory by kind: the parts of plan.peak_nbytes, under the keys of `fsdptrain plan --json`. */
static json_t *memory_json(const struct train_plan *p)
{
    const struct {
        const char *key;
        uint64_t nbytes;
    } kinds[] = {
        { "shard_bytes", p->shard_nbytes },
        { "gradient_bytes", p->gradient_nbytes },
        { "optimizer_bytes", p->optimizer_nbytes },
        { "gather_buffer_bytes", p->buffer_nbytes },
        { "kept_bytes", p->kept_nbytes },
        { "exchange_buffer_bytes", p->exchange_nbytes },
        { "token_message_bytes", p->message_nbytes },
        { "snapshot_bytes", p->snapshot_nbytes },
        { "spare_bytes", p->spare_nbytes },
        { "activation_bytes", p->activation_nbytes },
        { "sample_bytes", p->sample_nbytes },
        { "peak_bytes", p->peak_nbytes },
        { "all_ranks_bytes", p->all_ranks_nbytes },
    };
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].nbytes)
            json_out_put(o, kinds[i].key, json_out_u64(kinds[i].nbytes));
    return o;
}

static json_t *data_json(const struct train_data_facts *f)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "documents", (json_int_t)f->ndocs, "rows", (json_int_t)f->nrows,
                     "tokens", (json_int_t)f->ntok, "supervised_tokens", (json_int_t)f->nsupervised,
                     "longest_document_tokens", (json_int_t)f->longest_ntok);
}

static void name_file(struct run_record *r, const struct train_config *config)
{
    snprintf(r->path, sizeof r->path, "%s/events.jsonl", config->output_dir);
}

bool run_record_start(struct run_record *r, const struct train_start *s, const char *launcher, const char *command)
{
    struct run_record own = { 0 }, *to = s->tenant ? &own : r; /* other tenants have other files */
    json_t *o = event("start");
    name_file(to, s->config);
    json_out_put(o, "step", json_out_u64(s->step));
    json_out_put(o, "steps", json_out_u64(s->plan.nsteps));
    json_out_put(o, "family", json_out_text(s->family));
    json_out_put(o, "parameters_trained", json_out_u64(s->plan.ntrained));
    json_out_put(o, "parameters_frozen", json_out_u64(s->plan.nfrozen));
    json_out_put(o, "command", json_out_text(command));
    json_out_put(o, "machine", machine_json(s, launcher));
    json_out_put(o, "data", data_json(&s->data));
    json_out_put(o, "memory", memory_json(&s->plan));
    json_out_put(o, "groups", plan_table_json(&s->plan));
    json_out_put(o, "config", json_incref(s->config->root));
    to->started = append(to, o, true);
    return to->started;
}

/* Samples are notes too, and have a file of their own. */
static bool is_sample(const char *line)
{
    int end = 0;
    return sscanf(line, "step %*u, sample %*u: %n", &end) == 0 && end > 0;
}

void run_record_note(const struct run_record *r, const char *line)
{
    if (!r->started || is_sample(line))
        return;
    json_t *o = event("note");
    json_out_put(o, "text", json_out_text(line));
    append(r, o, false);
}

void run_record_end(const struct run_record *r, const struct train_result *done, const struct fsdpck_error *err)
{
    char text[2048];
    if (!r->started)
        return;
    const bool whole = !err->code && done->ndone >= done->nsteps && !done->save_failed && !done->diverged;
    json_t *o = event("end");
    json_out_put(o, "step", json_out_u64(done->ndone));
    json_out_put(o, "how",
                 json_string(err->code        ? "failed"
                             : done->diverged ? "diverged"
                             : whole          ? "finished"
                                              : "stopped"));
    if (err->code)
        json_out_put(o, "text", json_out_text(fsdpck_error_format(err, text, sizeof text)));
    append(r, o, false);
}

void run_record_tenant_note(const struct train_config *config, const char *line)
{
    struct run_record own = { .started = true };
    name_file(&own, config);
    run_record_note(&own, line);
}

void run_record_tenant_end(const struct train_config *config, const struct train_result *done)
{
    struct run_record own = { .started = true };
    name_file(&own, config);
    run_record_end(&own, done, &(struct fsdpck_error){ .code = done->failure, .message = "see the notes of the run" });
}
