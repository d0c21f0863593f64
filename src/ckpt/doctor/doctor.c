/* SPDX-License-Identifier: Apache-2.0 */
/* The table of checks, and the run through it. */
#include <fsdpck/doctor.h>

#include <inttypes.h>

#include "base/ioutil.h"
#include "doctor/checks.h"
#include "engine/source_impl.h"

enum {
    ANY,
    WHOLE = 1 << 0,   /* headers and index are sound; a check of incomplete weights would blame them again */
    MODEL = 1 << 1,   /* a model: it has a config.json, and is no adapter */
    ADAPTER = 1 << 2, /* an adapter */
    BASE = 1 << 3,    /* a base was given */
    DEEP = 1 << 4,    /* weights may be read */
    RUN = 1 << 5,     /* a training's folder */
};

static const struct check {
    const char *name;
    doctor_check_fn *run;
    unsigned needs;
} checks[] = {
    { "json", fsdpck_doctor_json, ANY },
    { "index", fsdpck_doctor_index, ANY },
    { "files", fsdpck_doctor_files, ANY },
    { "extra-files", fsdpck_doctor_extra_files, ANY },
    { "entries", fsdpck_doctor_entries, ANY },
    { "placement", fsdpck_doctor_placement, ANY },
    { "shards", fsdpck_doctor_shards, MODEL },
    { "total-size", fsdpck_doctor_total_size, WHOLE },
    { "second-set", fsdpck_doctor_second_set, WHOLE | MODEL },
    { "twice", fsdpck_doctor_twice, ANY },
    { "ranks", fsdpck_doctor_ranks_files, RUN },
    { "latest", fsdpck_doctor_latest, RUN },
    { "wrappers", fsdpck_doctor_wrappers, WHOLE | MODEL },
    { "leftovers", fsdpck_doctor_leftovers, WHOLE | MODEL },
    { "empty", fsdpck_doctor_empty, WHOLE },
    { "layers", fsdpck_doctor_layers, WHOLE | MODEL },
    { "mtp", fsdpck_doctor_mtp, WHOLE | MODEL },
    { "layer-parts", fsdpck_doctor_layer_parts, WHOLE | MODEL },
    { "shapes", fsdpck_doctor_shapes, WHOLE | MODEL },
    { "alike", fsdpck_doctor_alike, WHOLE | MODEL },
    { "experts", fsdpck_doctor_experts, WHOLE | MODEL },
    { "rows", fsdpck_doctor_vocabulary_rows, WHOLE | MODEL },
    { "head", fsdpck_doctor_head, WHOLE | MODEL },
    { "dtype", fsdpck_doctor_dtype, WHOLE | MODEL },
    { "dtype-keys", fsdpck_doctor_dtype_keys, MODEL },
    { "mixed-dtypes", fsdpck_doctor_mixed_dtypes, WHOLE | MODEL },
    { "vision", fsdpck_doctor_vision, WHOLE | MODEL },
    { "audio", fsdpck_doctor_audio, WHOLE | MODEL },
    { "tower", fsdpck_doctor_tower, WHOLE | MODEL },
    { "processor", fsdpck_doctor_processor, MODEL },
    { "tied-keys", fsdpck_doctor_tied_keys, MODEL },
    { "rope-keys", fsdpck_doctor_rope_keys, MODEL },
    { "precision", fsdpck_doctor_precision, WHOLE | MODEL },
    { "fused-experts", fsdpck_doctor_fused_experts, WHOLE | MODEL },
    { "remote-code", fsdpck_doctor_remote_code, MODEL },
    { "quantization-config", fsdpck_doctor_quant_config, WHOLE | MODEL },
    { "quantized-weights", fsdpck_doctor_quant_parts, WHOLE | MODEL },
    { "quantization-files", fsdpck_doctor_quant_files, MODEL },
    { "quantization-ignored", fsdpck_doctor_quant_ignored, WHOLE | MODEL },
    { "quantization-layers", fsdpck_doctor_quant_layers, WHOLE | MODEL },
    { "tokenizer-files", fsdpck_doctor_tokenizer_files, MODEL },
    { "vocabulary", fsdpck_doctor_vocabulary, WHOLE | MODEL },
    { "special-ids", fsdpck_doctor_special_ids, MODEL },
    { "chat-end", fsdpck_doctor_chat_end, MODEL },
    { "sampling", fsdpck_doctor_sampling, MODEL },
    { "special-tokens", fsdpck_doctor_special_tokens, MODEL },
    { "special-files", fsdpck_doctor_special_files, MODEL },
    { "padding", fsdpck_doctor_padding, MODEL },
    { "templates", fsdpck_doctor_templates, MODEL },
    { "no-template", fsdpck_doctor_no_template, MODEL },
    { "template-tokens", fsdpck_doctor_template_tokens, MODEL },
    { "lora-pairs", fsdpck_doctor_pairs, WHOLE | ADAPTER },
    { "lora-ranks", fsdpck_doctor_ranks, WHOLE | ADAPTER },
    { "lora-targets", fsdpck_doctor_targets, WHOLE | ADAPTER },
    { "lora-experts", fsdpck_doctor_expert_adapter, WHOLE | ADAPTER },
    { "lora-base-path", fsdpck_doctor_base_path, ADAPTER },
    { "lora-consumer", fsdpck_doctor_consumer, ADAPTER },
    { "lora-rows", fsdpck_doctor_adapter_rows, WHOLE | ADAPTER | BASE },
    { "lora-base", fsdpck_doctor_adapter_base, WHOLE | ADAPTER | BASE },
    { "lora-expert-sizes", fsdpck_doctor_expert_sizes, WHOLE | ADAPTER | BASE },
    { "base-names", fsdpck_doctor_base_names, WHOLE | MODEL | BASE },
    { "base-shapes", fsdpck_doctor_base_shapes, WHOLE | MODEL | BASE },
    { "base-dtypes", fsdpck_doctor_base_dtypes, WHOLE | MODEL | BASE },
    { "base-config", fsdpck_doctor_base_config, MODEL | BASE },
    { "values", fsdpck_doctor_values, WHOLE | DEEP },
    { "lora-untrained", fsdpck_doctor_untrained, WHOLE | ADAPTER | DEEP },
    { "new-rows", fsdpck_doctor_new_rows, WHOLE | MODEL | BASE | DEEP },
    { "unchanged", fsdpck_doctor_unchanged, WHOLE | MODEL | BASE | DEEP },
};

const char *fsdpck_severity_name(enum fsdpck_severity severity)
{
    static const char *const names[] = { "note", "warning", "error" };
    return names[severity];
}

void fsdpck_doctor_advise_base(const struct doctor *d, struct doctor_words *words, const char *before)
{
    const char *quote = d->base ? "'" : "";
    doctor_say(words->mend, "%sfsdpck export '%.600s' OUT --complete-from %s%.600s%s", before, d->model->in_quotes,
               quote, d->base ? d->base->in_quotes : "BASE", quote);
}

void fsdpck_doctor_say_shape(const struct doctor_tensor *t, char *out, size_t nbytes)
{
    size_t used = 0;
    *out = '\0';
    for (uint32_t i = 0; i < t->ndim && used < nbytes; i++)
        used += (size_t)snprintf(out + used, nbytes - used, "%s%" PRIu64, i ? " x " : "", t->shape[i]);
}

void fsdpck_doctor_report(struct doctor *d, enum fsdpck_severity severity, const char *file, const char *subject,
                          const struct doctor_words *words)
{
    const struct fsdpck_finding f = { severity, d->check, file, subject, words->found, words->expected, words->mend };
    uint64_t *const counts[] = { &d->result->nnotes, &d->result->nwarnings, &d->result->nerrors };
    ++*counts[severity];
    d->report(d->ctx, &f);
}

static bool applies(const struct check *c, const struct doctor *d)
{
    bool adapter = doctor_is_adapter(d->model);
    return !(c->needs & MODEL && (adapter || !fsdpck_doctor_has_file(d->model, "config.json"))) &&
           !(c->needs & ADAPTER && !adapter) && !(c->needs & BASE && !d->base) && !(c->needs & DEEP && !d->deep) &&
           !(c->needs & RUN && !fsdpck_doctor_is_run(d->model));
}

static int run_checks(struct doctor *d)
{
    for (size_t i = 0; i < sizeof checks / sizeof *checks && !d->err->code; i++) {
        if (!applies(&checks[i], d))
            continue;
        d->check = checks[i].name;
        bool decided = !(checks[i].needs & WHOLE && !d->model->whole) && checks[i].run(d);
        ++*(decided ? &d->result->nchecked : &d->result->nunchecked);
    }
    return d->err->code;
}

static int read_base(struct doctor_model *base, const char *path, const struct fsdpck_options *opt,
                     struct fsdpck_error *err)
{
    int rc = fsdpck_doctor_model_read(base, path, opt->io, err);
    if (!rc && !base->whole) {
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "cannot serve as the base: its weights are incomplete");
        fsdpck_error_hint(err, "fsdpck doctor %.180s tells what is wrong", path);
    }
    return rc;
}

/* Folders that are no model's: of a training, or none that is known. */
static int check_folder(const struct doctor_model *m, const struct fsdpck_doctor_request *req, struct fsdpck_error *err)
{
    if (m->found)
        return 0;
    if (fsdpck_doctor_is_run(m)) {
        const char *option = !req ? NULL : req->base ? "--base" : req->deep ? "--deep" : NULL;
        return !option ? 0
                       : fsdpck_error_set(err, FSDPCK_ERR_USAGE, m->path,
                                          "is a training's folder: %s is for models and adapters", option);
    }
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, m->path,
                     "is no Hugging Face folder: expected *.safetensors files or a config.json in it");
    fsdpck_error_hint(err, "export it to one first, or check other kinds with fsdpck verify");
    return err->code;
}

int fsdpck_doctor(const char *path, const struct fsdpck_doctor_request *req, const struct fsdpck_options *opt,
                  fsdpck_finding_fn report, void *report_ctx, struct fsdpck_doctor_result *result,
                  struct fsdpck_error *err)
{
    struct fsdpck_options options = opt ? *opt : (struct fsdpck_options){ 0 };
    struct fsdpck_error own = { 0 };
    struct doctor_model model = { 0 }, other = { 0 };
    fsdpck_options_fill(&options);
    *result = (struct fsdpck_doctor_result){ 0 };
    const char *base = req ? req->base : NULL, *consumer = req ? req->consumer : NULL;
    if (consumer && !fsdpck_doctor_is_consumer(consumer))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "no program '%s' is known to load adapters", consumer);
    int64_t start = options.io->now_ns(options.io->ctx);
    struct doctor d = { .model = &model,
                        .base = base ? &other : NULL,
                        .consumer = consumer,
                        .deep = req && req->deep,
                        .opt = &options,
                        .report = report,
                        .ctx = report_ctx,
                        .result = result,
                        .err = &own };
    int rc = fsdpck_doctor_model_read(&model, path, options.io, &own);
    if (!rc)
        rc = check_folder(&model, req, &own);
    if (!rc && base)
        rc = read_base(&other, base, &options, &own);
    if (!rc && consumer && !doctor_is_adapter(&model))
        rc = fsdpck_error_set(&own, FSDPCK_ERR_USAGE, path,
                              "is no adapter (it has no adapter_config.json): --for is "
                              "the program that loads an adapter");
    if (!rc)
        rc = run_checks(&d);
    result->ntensors += model.tensors.count; /* beside those of a training's folder */
    result->nfiles += model.files.count;
    result->seconds = (double)(options.io->now_ns(options.io->ctx) - start) * 1e-9;
    fsdpck_doctor_model_free(&model);
    fsdpck_doctor_model_free(&other);
    if (rc && err && err->code == 0)
        *err = own;
    return rc;
}
