/* SPDX-License-Identifier: Apache-2.0 */
/* Plain loops; no value is reused between tokens. */
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "../kernels/philox_ref.h"

struct reference_tensor *reference_find(const struct reference *m, const char *before, const char *path,
                                        const char *after)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s%s", before, path, after);
    for (size_t i = 0; i < m->ntensors; i++) {
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    }
    return NULL;
}

static double *room(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof *p);
    if (!p)
        abort();
    return p;
}

static double scale_of(const struct reference *m, int64_t r)
{
    return m->alpha / (m->rslora ? sqrt((double)r) : (double)r);
}

/* drop(x): (ntok, ncol), token0 the first token's place in the step; the caller frees. */
static double *drop(const struct reference *m, const char *path, const double *x, int64_t ntok, int64_t ncol,
                    int64_t token0)
{
    const struct kern_dropout how = { .p = (float)m->dropout,
                                      .rng = { .seed = m->seed, .name = XXH32(path, strlen(path), 0) },
                                      .token0 = token0,
                                      .width = ncol };
    double *dropped = room(ntok * ncol);
    for (int64_t t = 0; t < ntok; t++)
        for (int64_t j = 0; j < ncol; j++)
            dropped[t * ncol + j] = x[t * ncol + j] * dropout_ref(&how, t, j);
    return dropped;
}

/* y[t] += scale·B·A·drop(x[t]) */
static void add_adapter(const struct reference *m, const char *path, const double *x, int64_t ntok, int64_t token0,
                        double *y)
{
    const struct reference_tensor *a = reference_find(m, "base_model.model.", path, ".lora_A.weight"),
                                  *b = reference_find(m, "base_model.model.", path, ".lora_B.weight");
    if (!a)
        return;
    double *dropped = drop(m, path, x, ntok, a->ncol, token0);
    for (int64_t t = 0; t < ntok; t++) {
        for (int64_t k = 0; k < a->nrow; k++) {
            double s = 0;
            for (int64_t j = 0; j < a->ncol; j++)
                s += a->data[k * a->ncol + j] * dropped[t * a->ncol + j];
            for (int64_t i = 0; i < b->nrow; i++)
                y[t * b->nrow + i] += scale_of(m, a->nrow) * b->data[i * a->nrow + k] * s;
        }
    }
    free(dropped);
}

void reference_norms(const struct reference *m, const char *path, double *norms)
{
    const struct reference_tensor *w = reference_find(m, "", path, ".weight"),
                                  *a = reference_find(m, "base_model.model.", path, ".lora_A.weight");
    const struct reference_tensor *b = reference_find(m, "base_model.model.", path, ".lora_B.weight");
    for (int64_t i = 0; i < w->nrow; i++) {
        double squares = 0;
        for (int64_t j = 0; j < w->ncol; j++) {
            double x = w->data[i * w->ncol + j];
            for (int64_t k = 0; k < a->nrow; k++)
                x += scale_of(m, a->nrow) * b->data[i * a->nrow + k] * a->data[k * a->ncol + j];
            squares += x * x;
        }
        norms[i] = sqrt(squares);
    }
}

/* DoRA as in PEFT: adds (g - 1)·W·drop(x) + g·scale·B·A·drop(x) to the base's output. add: (ntok, nout),
 * scale·B·A·drop(x). */
static void add_dora(const struct reference *m, const char *path, const struct reference_tensor *w, const double *x,
                     int64_t ntok, int64_t token0, const double *add, double *y)
{
    const struct reference_tensor *magnitude = reference_find(m, "base_model.model.", path, ".lora_magnitude_vector"),
                                  *norms = reference_find(m, "norms.", path, "");
    double *dropped = drop(m, path, x, ntok, w->ncol, token0);
    for (int64_t t = 0; t < ntok; t++) {
        for (int64_t i = 0; i < w->nrow; i++) {
            double base = 0, g = magnitude->data[i] / norms->data[i];
            for (int64_t j = 0; j < w->ncol; j++)
                base += w->data[i * w->ncol + j] * dropped[t * w->ncol + j];
            y[t * w->nrow + i] += (g - 1) * base + g * add[t * w->nrow + i];
        }
    }
    free(dropped);
}

/* y = x·Wᵀ + bias + adapter; the caller frees. */
static double *linear(const struct reference *m, const char *path, const struct reference_tensor *w, const double *x,
                      int64_t ntok, int64_t token0)
{
    const struct reference_tensor *bias = reference_find(m, "", path, ".bias");
    double *y = room(ntok * w->nrow);
    for (int64_t t = 0; t < ntok; t++) {
        for (int64_t i = 0; i < w->nrow; i++) {
            double s = bias ? bias->data[i] : 0;
            for (int64_t j = 0; j < w->ncol; j++)
                s += w->data[i * w->ncol + j] * x[t * w->ncol + j];
            y[t * w->nrow + i] = s;
        }
    }
    if (m->dora && reference_find(m, "norms.", path, "")) {
        double *add = room(ntok * w->nrow);
        add_adapter(m, path, x, ntok, token0, add);
        add_dora(m, path, w, x, ntok, token0, add, y);
        free(add);
    } else {
        add_adapter(m, path, x, ntok, token0, y);
    }
    return y;
}

static double *layer_linear(const struct reference *m, int64_t layer, const char *module, const double *x, int64_t ntok,
                            int64_t token0)
{
    char path[120];
    snprintf(path, sizeof path, "model.layers.%lld.%.80s", (long long)layer, module);
    return linear(m, path, reference_find(m, "", path, ".weight"), x, ntok, token0);
}

/* y = x/rms(x)·gamma for each of n vectors; the caller frees. */
static double *norm(const struct reference *m, const char *path, const double *x, int64_t n, int64_t width)
{
    const double *gamma = reference_find(m, "", path, ".weight")->data;
    double *y = room(n * width);
    for (int64_t i = 0; i < n; i++) {
        double squares = 0;
        for (int64_t j = 0; j < width; j++)
            squares += x[i * width + j] * x[i * width + j];
        for (int64_t j = 0; j < width; j++)
            y[i * width + j] = x[i * width + j] / sqrt(squares / (double)width + m->eps) * gamma[j];
    }
    return y;
}

static double *layer_norm(const struct reference *m, int64_t layer, const char *name, const double *x, int64_t n,
                          int64_t width)
{
    char path[120];
    snprintf(path, sizeof path, "model.layers.%lld.%s", (long long)layer, name);
    return norm(m, path, x, n, width);
}

/* Scaling of Llama 3.1: long wavelengths are stretched, short ones unchanged, those between interpolated. */
static double llama3(const struct reference *m, double f)
{
    double wave = 2 * M_PI / f, smooth = (m->original / wave - 1) / (4 - 1);
    return smooth <= 0 ? f / m->factor : smooth >= 1 ? f : (1 - smooth) * f / m->factor + smooth * f;
}

/* Scaling of YaRN: by the number of turns of a feature over the original context. */
static double yarn(const struct reference *m, double f, int64_t j)
{
    double d = (double)m->rotary, per = d / (2 * log(m->theta));
    double low = fmax(floor(per * log(m->original / (32 * 2 * M_PI))), 0),
           high = fmin(ceil(per * log(m->original / (2 * M_PI))), d - 1);
    double ramp = ((double)j - low) / (high == low ? 0.001 : high - low);
    ramp = fmin(fmax(ramp, 0), 1);
    return f / m->factor * ramp + f * (1 - ramp);
}

static double frequency(const struct reference *m, int64_t j)
{
    double f = pow(m->theta, -2.0 * (double)j / (double)m->rotary);
    switch (m->rope) {
    case REFERENCE_LINEAR: return f / m->factor;
    case REFERENCE_LLAMA3: return llama3(m, f);
    case REFERENCE_YARN: return yarn(m, f, j);
    default: return f;
    }
}

/* Feature j of a head rotates with feature j + rotary/2. */
static void turn(const struct reference *m, double *x, int64_t ntok, int64_t nhead)
{
    const int64_t d = m->head_dim, half = m->rotary / 2;
    const double longer = m->rope == REFERENCE_YARN ? 0.1 * log(m->factor) + 1 : 1;
    for (int64_t t = 0; t < ntok; t++) {
        for (int64_t j = 0; j < half; j++) {
            double angle = (double)t * frequency(m, j), c = cos(angle) * longer, s = sin(angle) * longer;
            for (int64_t h = 0; h < nhead; h++) {
                double *v = x + (t * nhead + h) * d + j, first = v[0], second = v[half];
                v[0] = first * c - second * s;
                v[half] = second * c + first * s;
            }
        }
    }
}

/* One query against the keys that it sees, and a sink, without a value: o += softmax·V. */
static void attend_one(const struct reference *m, int64_t t, int64_t first, double sink, const double *q,
                       const double *k, const double *v, double *o)
{
    const int64_t d = m->head_dim, pitch = m->nkv * d;
    double *p = room(t + 1), most = sink, sum = 0;
    for (int64_t s = first; s <= t; s++) {
        for (int64_t j = 0; j < d; j++)
            p[s] += q[j] * k[s * pitch + j] / sqrt((double)d);
        most = fmax(most, p[s]);
    }
    sum = exp(sink - most);
    for (int64_t s = first; s <= t; s++)
        sum += p[s] = exp(p[s] - most);
    for (int64_t s = first; s <= t; s++) {
        for (int64_t j = 0; j < d; j++)
            o[j] += p[s] / sum * v[s * pitch + j];
    }
    free(p);
}

static double *attend(const struct reference *m, int64_t layer, const double *q, const double *k, const double *v,
                      int64_t ntok)
{
    const int64_t d = m->head_dim, window = layer >= m->first_window ? m->window : 0;
    char path[120];
    snprintf(path, sizeof path, "model.layers.%lld.self_attn.sinks", (long long)layer);
    const struct reference_tensor *sinks = reference_find(m, "", path, "");
    double *o = room(ntok * m->nhead * d);
    for (int64_t t = 0; t < ntok; t++) {
        for (int64_t h = 0; h < m->nhead; h++) {
            int64_t kv = h / (m->nhead / m->nkv), at = (t * m->nhead + h) * d;
            attend_one(m, t, window && t >= window ? t - window + 1 : 0, sinks ? sinks->data[h] : -INFINITY, q + at,
                       k + kv * d, v + kv * d, o + at);
        }
    }
    return o;
}

static void add_to(double *x, double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
    free(y);
}

static void attention(const struct reference *m, int64_t layer, double *x, int64_t ntok, int64_t token0)
{
    double *h = layer_norm(m, layer, "input_layernorm", x, ntok, m->hidden),
           *q = layer_linear(m, layer, "self_attn.q_proj", h, ntok, token0);
    double *k = layer_linear(m, layer, "self_attn.k_proj", h, ntok, token0),
           *v = layer_linear(m, layer, "self_attn.v_proj", h, ntok, token0);
    if (m->qk_norm) {
        double *raw_q = q, *raw_k = k;
        q = layer_norm(m, layer, "self_attn.q_norm", raw_q, ntok * m->nhead, m->head_dim);
        k = layer_norm(m, layer, "self_attn.k_norm", raw_k, ntok * m->nkv, m->head_dim);
        free(raw_q);
        free(raw_k);
    }
    turn(m, q, ntok, m->nhead);
    turn(m, k, ntok, m->nkv);
    double *o = attend(m, layer, q, k, v, ntok);
    add_to(x, layer_linear(m, layer, "self_attn.o_proj", o, ntok, token0), ntok * m->hidden);
    free(h);
    free(q);
    free(k);
    free(v);
    free(o);
}

/* names: of the gate, the up and the down module; the caller frees. */
static double *gated(const struct reference *m, int64_t layer, char names[3][80], int64_t inner, const double *h,
                     int64_t ntok, int64_t token0)
{
    double *gate = layer_linear(m, layer, names[0], h, ntok, token0),
           *up = layer_linear(m, layer, names[1], h, ntok, token0);
    for (int64_t i = 0; i < ntok * inner; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    double *y = layer_linear(m, layer, names[2], up, ntok, token0);
    free(gate);
    free(up);
    return y;
}

/* Each turn takes the largest score that is left. */
static void take_best(const double *scores, int64_t nscores, int64_t n, bool *taken)
{
    memset(taken, 0, (size_t)nscores * sizeof *taken);
    for (int64_t k = 0; k < n; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < nscores; e++)
            if (!taken[e] && (best < 0 || scores[e] > scores[best]))
                best = e;
        taken[best] = true;
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Only experts of the groups whose two best have the largest sums may be chosen. */
static void leave_groups(const struct reference *m, double *scores)
{
    const int64_t each = m->nexperts / m->ngroup;
    double *sums = room(m->ngroup);
    bool taken[REFERENCE_MOST_EXPERTS];
    for (int64_t g = 0; g < m->ngroup; g++) {
        take_best(scores + g * each, each, 2, taken);
        for (int64_t e = 0; e < each; e++)
            sums[g] += taken[e] ? scores[g * each + e] : 0;
    }
    take_best(sums, m->ngroup, m->top_groups, taken);
    for (int64_t e = 0; e < m->nexperts; e++)
        scores[e] = taken[e / each] ? scores[e] : -INFINITY;
    free(sums);
}

static void choose_experts(const struct reference *m, int64_t layer, const double *logits, bool *chosen)
{
    char path[120];
    double *scores = room(m->nexperts);
    snprintf(path, sizeof path, "model.layers.%lld.mlp.gate", (long long)layer);
    const struct reference_tensor *bias = reference_find(m, "", path, ".e_score_correction_bias");
    for (int64_t e = 0; e < m->nexperts; e++)
        scores[e] = m->sigmoid ? sigmoid(logits[e]) + bias->data[e] : logits[e];
    if (m->ngroup > 1)
        leave_groups(m, scores);
    take_best(scores, m->nexperts, m->top_k, chosen);
    free(scores);
}

/* Weights of the experts of a token; 0: not chosen. */
static void weigh_experts(const struct reference *m, const double *logits, const bool *chosen, double *weights)
{
    double all = 0, part = 0;
    for (int64_t e = 0; e < m->nexperts; e++) {
        weights[e] = m->sigmoid ? sigmoid(logits[e]) : exp(logits[e]);
        all += weights[e];
        part += chosen[e] ? weights[e] : 0;
    }
    for (int64_t e = 0; e < m->nexperts; e++)
        m->probs[e] += weights[e] / all;
    const double sum = m->normalised ? part : m->sigmoid ? 1 : all;
    for (int64_t e = 0; e < m->nexperts; e++)
        weights[e] = chosen[e] ? weights[e] / sum * m->routed_scale : 0;
}

/* The expert that every token shares, with the weight σ(w·h) or none. */
static void share(const struct reference *m, int64_t layer, const double *h, double *x, int64_t ntok, int64_t token0)
{
    char one[3][80] = { "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj" };
    char many[3][80] = { "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj" };
    double *weights = m->sigmoid ? NULL : layer_linear(m, layer, "mlp.shared_expert_gate", h, ntok, token0),
           *y = gated(m, layer, m->sigmoid ? many : one, m->shared_inner, h, ntok, token0);
    for (int64_t i = 0; i < ntok * m->hidden; i++)
        x[i] += y[i] * (weights ? sigmoid(weights[i / m->hidden]) : 1);
    free(weights);
    free(y);
}

/* Row e of a tensor of all experts of a layer. */
static const double *fused(const struct reference *m, int64_t layer, const char *name, int64_t e)
{
    char path[120];
    snprintf(path, sizeof path, "model.layers.%lld.mlp.experts.%s", (long long)layer, name);
    const struct reference_tensor *x = reference_find(m, "", path, "");
    return x->data + e * x->ncol;
}

/* An expert of gpt-oss, whose matrices are (in, out), with gate and up in turn; the caller frees. */
static double *gpt_oss_expert(const struct reference *m, int64_t layer, int64_t e, const double *h, int64_t ntok)
{
    const int64_t inner = m->expert_inner;
    const double *w = fused(m, layer, "gate_up_proj", e), *bias = fused(m, layer, "gate_up_proj_bias", e);
    const double *down = fused(m, layer, "down_proj", e), *down_bias = fused(m, layer, "down_proj_bias", e);
    double *y = room(ntok * m->hidden);
    for (int64_t t = 0; t < ntok; t++) {
        for (int64_t i = 0; i < m->hidden; i++)
            y[t * m->hidden + i] = down_bias[i];
        for (int64_t k = 0; k < inner; k++) {
            double gate = bias[2 * k], up = bias[2 * k + 1];
            for (int64_t j = 0; j < m->hidden; j++) {
                gate += h[t * m->hidden + j] * w[j * 2 * inner + 2 * k];
                up += h[t * m->hidden + j] * w[j * 2 * inner + 2 * k + 1];
            }
            gate = fmin(gate, m->limit);
            up = fmax(-m->limit, fmin(up, m->limit));
            for (int64_t i = 0; i < m->hidden; i++)
                y[t * m->hidden + i] += (up + 1) * gate * sigmoid(m->slope * gate) * down[k * m->hidden + i];
        }
    }
    return y;
}

/* Every expert computes every token; those that are not chosen have the weight 0. Adapters of experts are without
 * dropout. */
static void experts(const struct reference *m, int64_t layer, const char *block, const double *h, double *x,
                    int64_t ntok, int64_t token0)
{
    const bool mixtral = strcmp(block, "mlp") != 0;
    char router[80], names[3][80];
    double *weights = room(ntok * m->nexperts);
    snprintf(router, sizeof router, "%s.%s", block, m->slope > 0 ? "router" : "gate");
    double *logits = layer_linear(m, layer, router, h, ntok, 0);
    for (int64_t t = 0; t < ntok; t++) {
        bool *chosen = m->chosen + (layer * m->ntokens + token0 + t) * m->nexperts;
        if (m->chooses)
            choose_experts(m, layer, logits + t * m->nexperts, chosen);
        weigh_experts(m, logits + t * m->nexperts, chosen, weights + t * m->nexperts);
    }
    for (int64_t e = 0; e < m->nexperts; e++) {
        snprintf(names[0], sizeof names[0], "%s.experts.%lld.%s", block, (long long)e, mixtral ? "w1" : "gate_proj");
        snprintf(names[1], sizeof names[1], "%s.experts.%lld.%s", block, (long long)e, mixtral ? "w3" : "up_proj");
        snprintf(names[2], sizeof names[2], "%s.experts.%lld.%s", block, (long long)e, mixtral ? "w2" : "down_proj");
        double *y =
            m->slope > 0 ? gpt_oss_expert(m, layer, e, h, ntok) : gated(m, layer, names, m->expert_inner, h, ntok, 0);
        for (int64_t i = 0; i < ntok * m->hidden; i++)
            x[i] += weights[i / m->hidden * m->nexperts + e] * y[i];
        free(y);
    }
    free(logits);
    free(weights);
    if (m->shared_inner)
        share(m, layer, h, x, ntok, token0);
}

static bool has_router(const struct reference *m, int64_t layer, const char *block)
{
    char path[120];
    snprintf(path, sizeof path, "model.layers.%lld.%s.%s", (long long)layer, block, m->slope > 0 ? "router" : "gate");
    return reference_find(m, "", path, ".weight") != NULL;
}

static void mlp(const struct reference *m, int64_t layer, double *x, int64_t ntok, int64_t token0)
{
    char names[3][80] = { "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj" };
    double *h = layer_norm(m, layer, "post_attention_layernorm", x, ntok, m->hidden);
    if (has_router(m, layer, "mlp"))
        experts(m, layer, "mlp", h, x, ntok, token0);
    else if (has_router(m, layer, "block_sparse_moe"))
        experts(m, layer, "block_sparse_moe", h, x, ntok, token0);
    else
        add_to(x, gated(m, layer, names, m->inner, h, ntok, token0), ntok * m->hidden);
    free(h);
}

/* Adapter of an embedding: B·A[:, id], without dropout. */
static double *embed(const struct reference *m, const struct reference_document *doc)
{
    static const char path[] = "model.embed_tokens";
    const struct reference_tensor *w = reference_find(m, "", path, ".weight"),
                                  *a = reference_find(m, "base_model.model.", path, ".lora_embedding_A");
    const struct reference_tensor *b = reference_find(m, "base_model.model.", path, ".lora_embedding_B");
    double *x = room(doc->ntok * m->hidden);
    for (int64_t t = 0; t < doc->ntok; t++) {
        for (int64_t i = 0; i < m->hidden; i++) {
            x[t * m->hidden + i] = w->data[doc->ids[t] * m->hidden + i];
            for (int64_t k = 0; a && k < a->nrow; k++)
                x[t * m->hidden + i] +=
                    scale_of(m, a->nrow) * b->data[i * a->nrow + k] * a->data[k * m->nvocab + doc->ids[t]];
        }
    }
    return x;
}

static double cross_entropy(const double *logits, int64_t n, int32_t target)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, logits[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return most + log(sum) - logits[target];
}

double reference_loss(const struct reference *m, const struct reference_document *doc)
{
    const struct reference_tensor *head = reference_find(m, "", m->tied ? "model.embed_tokens" : "lm_head", ".weight");
    double *x = embed(m, doc), loss = 0;
    for (int64_t layer = 0; layer < m->nlayer; layer++) {
        attention(m, layer, x, doc->ntok, doc->token0);
        mlp(m, layer, x, doc->ntok, doc->token0);
    }
    double *h = norm(m, "model.norm", x, doc->ntok, m->hidden),
           *logits = linear(m, "lm_head", head, h, doc->ntok, doc->token0);
    for (int64_t t = 0; t + 1 < doc->ntok; t++) {
        if (doc->labels[t + 1] >= 0)
            loss += cross_entropy(logits + t * m->nvocab, m->nvocab, doc->labels[t + 1]);
    }
    free(x);
    free(h);
    free(logits);
    return loss;
}
